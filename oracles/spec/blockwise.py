"""Exact model of nf4, fp4 and blockwise8 (the text is in ``kernels/_blockwise.py``)."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from kernels._blockwise import BlockwiseWeight
from oracles.spec.rounding import numpy_bytes

# The two codes of a byte, the high nibble first.
_NIBBLES = np.stack([np.arange(256) >> 4, np.arange(256) & 15], axis=1)


@dataclasses.dataclass(frozen=True)
class BlockwiseModel:
    """Attributes: codes int64 [n]; block int64 [n], the scale each element uses; absmax
    float32 [B], after any nested step; codebook float32 [2**bits]; shape of the output."""

    codes: np.ndarray
    block: np.ndarray
    absmax: np.ndarray
    codebook: np.ndarray
    shape: tuple[int, ...]

    def values(self) -> np.ndarray:
        with np.errstate(all="ignore"):
            return (self.codebook.take(self.codes) * self.absmax.take(self.block)).reshape(self.shape)

    def steps(self) -> np.ndarray:
        gaps = np.diff(np.unique(self.codebook[np.isfinite(self.codebook)].astype(np.float64)))
        smallest = gaps.min() if gaps.size else 0.0
        with np.errstate(all="ignore"):
            return np.abs(self.absmax[self.block].astype(np.float64) * smallest).reshape(self.shape)


def nested_absmax(
    codes: np.ndarray, codebook: np.ndarray, absmax: np.ndarray, offset: np.ndarray, blocksize: int
) -> np.ndarray:
    """absmax float32 [B] of a nested weight: two float32 roundings, product then sum."""
    with np.errstate(all="ignore"):
        product = codebook[codes] * absmax[np.arange(codes.size) // blocksize]
        return (product + offset).astype(np.float32)


def unpack(weight: BlockwiseWeight) -> BlockwiseModel:
    """Unpack a blockwise weight: even elements from the high nibble, odd from the low one."""
    data = numpy_bytes(weight.packed)
    n = math.prod(weight.shape)
    if weight.bits == 4:
        codes = _NIBBLES.take(data, axis=0).reshape(-1)[:n]
    else:
        codes = data.astype(np.int64)
    absmax = weight.absmax.cpu().numpy()
    if weight.nested is not None:
        absmax = nested_absmax(
            absmax,
            weight.nested.codebook.cpu().numpy(),
            weight.nested.absmax.cpu().numpy(),
            weight.nested.offset.cpu().numpy(),
            weight.nested.blocksize,
        )
    block = np.repeat(np.arange(absmax.size, dtype=np.int64), weight.blocksize)[:n]
    return BlockwiseModel(codes, block, absmax, weight.codebook.cpu().numpy(), tuple(weight.shape))
