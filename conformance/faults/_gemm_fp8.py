"""Wrong decoders of the fp8 matrix product; the catalogue with their names is ``gemm_fp8.py``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from conformance.bits import to_float
from conformance.faults import Context, Values
from conformance.faults._gemm import Decode, through
from oracles.spec.fp8 import VALUES
from oracles.spec.gemm_fp8 import BLOCK, Fp8GemmModel, codes_of
from oracles.spec.rounding import round_to


def model_of(ctx: Context) -> Fp8GemmModel:
    assert isinstance(ctx.model, Fp8GemmModel)
    return ctx.model


def changed(ctx: Context, **fields: Any) -> np.ndarray:
    """Output of the model with other fields."""
    return ctx.bits(dataclasses.replace(model_of(ctx), **fields))


# --- codes --------------------------------------------------------------------------------------


def _exponent_and_mantissa(bits: int, bias: int) -> np.ndarray:
    """float64 [256] of bytes with ``bits`` of mantissa, by the text of IEEE 754 without its last binade."""
    code = np.arange(256)
    exponent, mantissa = (code & 127) >> bits, code & ((1 << bits) - 1)
    size = np.where(
        exponent == 0,
        mantissa * 2.0 ** (1 - bias - bits),
        ((1 << bits) + mantissa) * 2.0 ** (exponent - 1.0 * bias - bits),
    )
    return np.where(code >= 128, -size, size)


def _fnuz() -> np.ndarray:
    """e4m3fnuz: bias 8, no -0, and 0x80 is the only NaN."""
    table = _exponent_and_mantissa(3, 8)
    table[0x80] = np.nan
    return table


def _e5m2() -> np.ndarray:
    table = _exponent_and_mantissa(2, 15)
    for sign in (0, 0x80):
        table[sign | 0x7C] = np.inf
        table[sign | 0x7D : (sign | 0x7F) + 1] = np.nan
    return np.where(np.arange(256) == 0xFC, -np.inf, table)


def _implicit_one() -> np.ndarray:
    """Exponent 0 as any other: (1 + m / 8) * 2**-7."""
    code = np.arange(256)
    size = (8 + (code & 7)) * 2.0**-10
    return np.where(code & 0x78, VALUES, np.where(code >= 128, -size, size))


def _with(table: np.ndarray, places: np.ndarray, values: np.ndarray) -> np.ndarray:
    return np.where(places, values, table)


_CODE = np.arange(256)
FNUZ, E5M2, IMPLICIT_ONE = _fnuz(), _e5m2(), _implicit_one()
FLUSHED = _with(VALUES, (_CODE & 0x78) == 0, np.copysign(0.0, VALUES))
NAN_480 = _with(VALUES, (_CODE & 0x7F) == 0x7F, np.where(_CODE >= 128, -480.0, 480.0))
UNSIGNED = np.abs(VALUES)


def codes_read_by(table: np.ndarray) -> Decode:
    """The bytes of both operands mean something else."""

    def decode(ctx: Context) -> np.ndarray | None:
        a, b = codes_of(ctx.weight)
        return changed(ctx, a=table[a], b=table[b])

    return decode


# --- sums ---------------------------------------------------------------------------------------


def inner(change: Callable[[int], np.ndarray | None]) -> Decode:
    """Only some places of K count: ``change(K)`` gives them, each in the block it is in."""

    def decode(ctx: Context) -> np.ndarray | None:
        model = model_of(ctx)
        kept = change(model.a.shape[1])
        if kept is None:
            return None
        mask = np.zeros(model.a.shape[1], bool)
        mask[kept] = True
        # Zeros, so that NaN among what is left out does not come in.
        return changed(ctx, a=np.where(mask, model.a, 0.0), b=np.where(mask, model.b, 0.0))

    return decode


def tail_skipped(tile: int) -> Decode:
    return inner(lambda n: None if n % tile == 0 else np.arange(n // tile * tile))


def last_block_only(n_inner: int) -> np.ndarray | None:
    first = (n_inner - 1) // BLOCK * BLOCK
    return np.arange(first, n_inner) if n_inner > BLOCK else None


def summed_in(dtype: torch.dtype) -> Decode:
    """Products added one after the other in a 16-bit dtype."""

    def decode(ctx: Context) -> np.ndarray | None:
        model = model_of(ctx)
        found = []
        with np.errstate(all="ignore"):
            for span in model.spans():
                total: np.ndarray = np.zeros((model.a.shape[0], model.b.shape[0]))
                for k in range(span.start, span.stop):
                    total = through(dtype, total + model.a[:, k, None] * model.b[None, :, k])
                found.append(total)
        return changed(ctx, sums=np.stack(found)) if found else None

    return decode


def sums_through(dtype: torch.dtype) -> Decode:
    """Sums of blocks, or the whole, rounded to 16 bits before the scales."""
    return lambda ctx: changed(ctx, sums=through(dtype, model_of(ctx).parts()))


# --- axes ---------------------------------------------------------------------------------------


def result_transposed(ctx: Context) -> np.ndarray | None:
    rows, cols = ctx.weight.output_shape
    if rows != cols or rows < 2:
        return None
    values = to_float(round_to(np.ascontiguousarray(model_of(ctx).values().T), ctx.dtype), ctx.dtype)
    return ctx.bits(Values(values))


def operand_transposed(name: str) -> Decode:
    """A square operand read with its axes exchanged."""

    def decode(ctx: Context) -> np.ndarray | None:
        held = getattr(ctx.model, name)
        square = held.shape[0] == held.shape[1] > 1
        return changed(ctx, **{name: np.ascontiguousarray(held.T)}) if square else None

    return decode
