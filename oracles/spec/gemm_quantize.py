"""Exact model of gemm_quantize (the text is in ``kernels/gemm_quantize.py``)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from kernels.gemm_quantize import QuantizeInput, code_range

INV_127 = np.float32(7.874015718698502e-3)

DIVISORS = {"scale": np.float32(127), "full": np.float32(127.5)}

Rounding = Callable[[np.ndarray], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Parameters:
    """What a row's numbers are multiplied with, and what their codes are.

    Attributes:
        scale, inverse: float32 [M].
        zero: int64 [M].
        least, most: ends of the codes' range.
    """

    scale: np.ndarray
    inverse: np.ndarray
    zero: np.ndarray
    least: int
    most: int


@dataclasses.dataclass(frozen=True)
class QuantizeModel:
    """Codes int64 [M, K] of a rule, with scale float32 [M] and zero int64 [M]."""

    codes: np.ndarray
    scale: np.ndarray
    zero: np.ndarray
    rule: str

    def values(self) -> np.ndarray:
        with np.errstate(all="ignore"):
            value = (self.codes - self.zero[:, None]).astype(np.float32) * self.scale[:, None]
            return value * INV_127 if self.rule == "absmax" else value

    def steps(self) -> np.ndarray:
        with np.errstate(all="ignore"):
            step = np.broadcast_to(self.scale.astype(np.float64)[:, None], self.codes.shape)
            return step / 127 if self.rule == "absmax" else step


def floats(weight: QuantizeInput) -> np.ndarray:
    """Activations float32 [M, K], widened exactly."""
    return weight.x.cpu().float().numpy()


def extremes(x: np.ndarray, rule: str) -> tuple[np.ndarray, np.ndarray]:
    """Low and high of each row, float32 [M]; NaN counts as an infinity."""
    held = x if rule == "minmax" else np.abs(x)
    held = np.where(np.isnan(held), np.float32(np.inf), held)
    return held.min(axis=1, initial=0), held.max(axis=1, initial=0)


def parameters(low: np.ndarray, high: np.ndarray, rule: str, signed: bool) -> Parameters:
    """Scale, inverse and zero of rows with these extremes."""
    least, most = code_range(rule, signed)
    zero = np.zeros(high.shape, np.int64)
    with np.errstate(all="ignore"):
        if rule == "absmax":
            return Parameters(high, np.float32(1) / high * np.float32(127), zero, least, most)
        if rule in DIVISORS:
            scale = high / DIVISORS[rule]
        else:
            scale = (high - low) / np.float32(255)
            zero = np.clip(least - whole(low / scale), least, most)
        return Parameters(scale, np.float32(1) / scale, zero, least, most)


def whole(numbers: np.ndarray, rounding: Rounding = np.rint) -> np.ndarray:
    """Nearest integers int64; NaN gives 0, and what is far outside of every range its end."""
    return rounding(np.clip(np.nan_to_num(numbers, nan=0.0), -1024, 1024)).astype(np.int64)


def codes_of(x: np.ndarray, found: Parameters, rounding: Rounding = np.rint) -> np.ndarray:
    """Codes int64 of float32 rows."""
    with np.errstate(all="ignore"):
        product = x * found.inverse[:, None]
    return np.clip(whole(product, rounding) + found.zero[:, None], found.least, found.most)


def quantized(weight: QuantizeInput) -> QuantizeModel:
    x = floats(weight)
    found = parameters(*extremes(x, weight.rule), weight.rule, weight.signed)
    return QuantizeModel(codes_of(x, found), found.scale, found.zero, weight.rule)
