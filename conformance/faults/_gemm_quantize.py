"""Wrong quantizations of activations; the catalogue with their names is ``gemm_quantize.py``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import torch

from conformance.faults import Context, Values
from conformance.faults._gemm import Decode, next_one, through
from kernels.gemm_dynamic import DynamicGemmInput
from kernels.gemm_quantize import QuantizeInput
from oracles.spec.gemm import Int8GemmModel
from oracles.spec.gemm_quantize import (
    Parameters,
    QuantizeModel,
    Rounding,
    codes_of,
    extremes,
    floats,
    parameters,
)


@dataclasses.dataclass(frozen=True)
class Rows:
    """Rows that are quantized: float32 [M, K], their rule, and the right parameters."""

    x: np.ndarray
    rule: str
    signed: bool
    right: Parameters

    def model(self, found: Parameters, codes: np.ndarray | None = None) -> QuantizeModel:
        """Rows with other parameters, and with the codes that follow from them or others."""
        codes = codes_of(self.x, found) if codes is None else codes
        return QuantizeModel(codes, found.scale, found.zero, self.rule)

    def of_extremes(self, low: np.ndarray, high: np.ndarray) -> QuantizeModel:
        return self.model(parameters(low, high, self.rule, self.signed))


Change = Callable[[Rows], QuantizeModel | None]


def quantized(change: Change) -> Decode:
    """Another quantization, alone or as the first step of a product."""

    def decode(ctx: Context) -> np.ndarray | None:
        whole = isinstance(ctx.weight, DynamicGemmInput)
        weight: QuantizeInput = ctx.weight.activations if whole else ctx.weight
        x = floats(weight)
        right = parameters(*extremes(x, weight.rule), weight.rule, weight.signed)
        with np.errstate(all="ignore"):
            made = change(Rows(x, weight.rule, weight.signed, right))
        if made is None:
            return None
        if not whole:
            return ctx.bits(made)
        assert isinstance(ctx.model, Int8GemmModel)
        return ctx.bits(dataclasses.replace(ctx.model, a=made.codes, a_scale=made.scale, a_zero=made.zero))

    return decode


# --- rounding ---------------------------------------------------------------------------------


def rounded(rounding: Rounding) -> Decode:
    return quantized(lambda rows: rows.model(rows.right, codes_of(rows.x, rows.right, rounding)))


def half_away(numbers: np.ndarray) -> np.ndarray:
    return np.copysign(np.floor(np.abs(numbers) + 0.5), numbers)


def half_up(numbers: np.ndarray) -> np.ndarray:
    return np.floor(numbers + 0.5)


def half_then_truncate(numbers: np.ndarray) -> np.ndarray:
    return np.trunc(numbers + 0.5)


# --- extremes ---------------------------------------------------------------------------------


def of_tensor(rows: Rows) -> QuantizeModel | None:
    low, high = extremes(rows.x, rows.rule)
    if high.size < 2:
        return None
    return rows.of_extremes(np.full_like(low, low.min()), np.full_like(high, high.max()))


def of_first_tile(tile: int) -> Decode:
    def change(rows: Rows) -> QuantizeModel | None:
        if rows.x.shape[1] <= tile:
            return None
        return rows.of_extremes(*extremes(rows.x[:, :tile], rows.rule))

    return quantized(change)


def without_negatives(rows: Rows) -> QuantizeModel | None:
    if rows.rule == "minmax":
        return None
    high = np.maximum(rows.x.max(axis=1, initial=0), 0)
    return rows.of_extremes(high * 0, high)


def without_zero(rows: Rows) -> QuantizeModel | None:
    """The range of a row need not hold 0."""
    if rows.rule != "minmax" or not rows.x.size:
        return None
    return rows.of_extremes(rows.x.min(axis=1), rows.x.max(axis=1))


# --- scales -----------------------------------------------------------------------------------


def _with(right: Parameters, scale: np.ndarray) -> Parameters:
    """Parameters with another scale, from which the inverse is made."""
    return dataclasses.replace(right, scale=scale, inverse=np.float32(1) / scale)


def divided_by(levels: float, rules: tuple[str, ...]) -> Decode:
    def change(rows: Rows) -> QuantizeModel | None:
        if rows.rule not in rules:
            return None
        high = extremes(rows.x, rows.rule)[1]
        if rows.rule == "absmax":
            return rows.model(
                dataclasses.replace(rows.right, inverse=np.float32(1) / high * np.float32(levels))
            )
        return rows.model(_with(rows.right, high / np.float32(levels)))

    return quantized(change)


def scale_by_reciprocal(rows: Rows) -> QuantizeModel | None:
    """absmax * fp32(1 / 127), as torch divides a CUDA tensor by a number."""
    divisor = {"scale": 127.0, "full": 127.5, "minmax": 255.0}.get(rows.rule)
    if divisor is None:
        return None
    low, high = extremes(rows.x, rows.rule)
    reach = high - low if rows.rule == "minmax" else high
    return rows.model(_with(rows.right, reach * (np.float32(1) / np.float32(divisor))))


def scale_through(dtype: torch.dtype) -> Decode:
    def change(rows: Rows) -> QuantizeModel | None:
        if rows.rule == "absmax":
            return None
        return rows.model(_with(rows.right, through(dtype, rows.right.scale).astype(np.float32)))

    return quantized(change)


def stored_through(dtype: torch.dtype) -> Decode:
    """Codes by the right scale, which is rounded when it is stored."""

    def change(rows: Rows) -> QuantizeModel:
        stored = through(dtype, rows.right.scale).astype(np.float32)
        return rows.model(dataclasses.replace(rows.right, scale=stored), codes_of(rows.x, rows.right))

    return quantized(change)


def at_least(least: float) -> Decode:
    def change(rows: Rows) -> QuantizeModel | None:
        if rows.rule == "absmax":
            return None
        return rows.model(_with(rows.right, np.maximum(rows.right.scale, np.float32(least))))

    return quantized(change)


def decoded_by(other: Callable[[np.ndarray], np.ndarray]) -> Change:
    """Right codes with the scale and zero of other rows."""

    def change(rows: Rows) -> QuantizeModel:
        right, codes = rows.right, codes_of(rows.x, rows.right)
        return rows.model(dataclasses.replace(right, scale=other(right.scale), zero=other(right.zero)), codes)

    return change


def coded_by_next(rows: Rows) -> QuantizeModel | None:
    """Codes by the next row's scale, decoded with the right one."""
    wrong = dataclasses.replace(
        rows.right, inverse=next_one(rows.right.inverse), zero=next_one(rows.right.zero)
    )
    return rows.model(dataclasses.replace(rows.right, zero=wrong.zero), codes_of(rows.x, wrong))


# --- inverse and codes ------------------------------------------------------------------------


def inverse(change: Callable[[Rows], np.ndarray | None]) -> Decode:
    def with_it(rows: Rows) -> QuantizeModel | None:
        found = change(rows)
        return None if found is None else rows.model(dataclasses.replace(rows.right, inverse=found))

    return quantized(with_it)


def one_ulp(up: bool) -> Decode:
    """A reciprocal one step off, as rcp.approx may give it."""
    return inverse(
        lambda rows: np.nextafter(rows.right.inverse, np.float32(np.inf if up else 0), dtype=np.float32)
    )


def by_absmax(rows: Rows) -> np.ndarray | None:
    levels = {"scale": 127.0, "full": 127.5, "absmax": 127.0}.get(rows.rule)
    return None if levels is None else np.float32(levels) / extremes(rows.x, rows.rule)[1]


def by_division(rows: Rows) -> QuantizeModel | None:
    """x / scale, rounded once, instead of x times the rounded inverse."""
    if rows.rule == "absmax":
        return None
    right = rows.right
    quotient = np.nan_to_num(rows.x / right.scale[:, None], nan=0.0)
    whole = np.rint(np.clip(quotient, -1024, 1024)).astype(np.int64) + right.zero[:, None]
    return rows.model(right, np.clip(whole, right.least, right.most))


def wrapping(rows: Rows) -> QuantizeModel:
    """Without the clamp: codes modulo 256."""
    right = rows.right
    wide = codes_of(rows.x, dataclasses.replace(right, least=-2048, most=2048))
    low = 0 if right.least == 0 else -128
    return rows.model(right, (wide - low) % 256 + low)


# --- zero points ------------------------------------------------------------------------------


def zero_truncated(rows: Rows) -> QuantizeModel | None:
    if rows.rule != "minmax":
        return None
    low, right = extremes(rows.x, rows.rule)[0], rows.right
    cut = np.trunc(np.clip(np.nan_to_num(low / right.scale, nan=0.0), -1024, 1024)).astype(np.int64)
    return rows.model(dataclasses.replace(right, zero=np.clip(right.least - cut, right.least, right.most)))


def decoded_with(change: Callable[[np.ndarray], np.ndarray]) -> Decode:
    """Right codes decoded with another zero."""

    def with_it(rows: Rows) -> QuantizeModel | None:
        if rows.rule != "minmax":
            return None
        wrong = dataclasses.replace(rows.right, zero=change(rows.right.zero))
        return rows.model(wrong, codes_of(rows.x, rows.right))

    return quantized(with_it)


def absmax_by_division(ctx: Context) -> np.ndarray | None:
    """code * absmax / 127 instead of code * absmax * fp32(1 / 127)."""
    model = ctx.model
    if not isinstance(model, QuantizeModel) or model.rule != "absmax":
        return None
    with np.errstate(all="ignore"):
        return ctx.bits(Values(model.codes.astype(np.float32) * model.scale[:, None] / np.float32(127)))
