"""Exact model of gemm_cast_fp8 (the text is in ``kernels/gemm_cast_fp8.py``)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from kernels.gemm_cast_fp8 import CastInput
from oracles.spec.fp8 import LARGEST, VALUES, decode, encode

BLOCK = 128

Encode = Callable[[np.ndarray], np.ndarray]


@dataclasses.dataclass(frozen=True)
class CastModel:
    """Codes uint8 [M, K], and the scale float32 [M, K] of each of them."""

    codes: np.ndarray
    scale: np.ndarray

    def decoded(self) -> np.ndarray:
        """float64 values of the codes."""
        return decode(self.codes)

    def values(self) -> np.ndarray:
        with np.errstate(all="ignore"):
            return self.decoded().astype(np.float32) * self.scale

    def steps(self) -> np.ndarray:
        """What one step of each code is worth."""
        size = self.codes & 127
        below = VALUES[np.clip(size, 0, 125)]
        with np.errstate(all="ignore"):
            return np.abs(self.scale.astype(np.float64)) * (VALUES[np.clip(size, 0, 125) + 1] - below)


def floats(weight: CastInput) -> np.ndarray:
    """Activations float32 [M, K], widened exactly."""
    return weight.x.cpu().float().numpy()


def block_starts(n_cols: int, per: str) -> np.ndarray:
    """int64 [K]: the block of each column; 0 where a row is one."""
    return np.arange(n_cols) // BLOCK if per == "block" else np.zeros(n_cols, np.int64)


def absmax(x: np.ndarray, block: np.ndarray) -> np.ndarray:
    """Largest size of each block, float32 [M, KB]; NaN counts as an infinity."""
    size = np.abs(x)
    size = np.where(np.isnan(size), np.float32(np.inf), size)
    count = int(block.max(initial=-1)) + 1
    return (
        np.stack([size[:, block == one].max(axis=1, initial=0) for one in range(count)], axis=1)
        if count
        else np.zeros((x.shape[0], 0), np.float32)
    )


def scales_of(x: np.ndarray, per: str, given: np.ndarray | None) -> np.ndarray:
    """float32 [M, K]: the scale of each element."""
    if per == "tensor":
        assert given is not None
        return np.broadcast_to(given, x.shape)
    block = block_starts(x.shape[1], per)
    with np.errstate(all="ignore"):
        return (absmax(x, block) / np.float32(LARGEST))[:, block]


def quotients(x: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """float32 [M, K] that are rounded to codes."""
    with np.errstate(all="ignore"):
        return np.where((x == 0) & (scale == 0), x, x / scale)


def cast_of(weight: CastInput) -> CastModel:
    x = floats(weight)
    scale = scales_of(x, weight.per, None if weight.scale is None else weight.scale.cpu().numpy())
    return CastModel(encode(quotients(x, scale)), scale)
