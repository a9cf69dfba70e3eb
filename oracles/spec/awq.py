"""Exact models of awq_cols, awq_rows and awq_quads (the texts are in ``kernels/awq_*.py``).

All three are unpacked to the same axes, K first, whatever way the checkpoint has them.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from kernels.awq_cols import AWQColsWeight
from kernels.awq_quads import AWQQuadsWeight
from kernels.awq_rows import AWQRowsWeight

# Column held by slot 0 .. 7 of a word of the GEMM layout.
COLUMN_OF_SLOT = (0, 2, 4, 6, 1, 3, 5, 7)


@dataclasses.dataclass(frozen=True)
class AWQModel:
    """Integer zeros: awq_cols and awq_rows.

    Attributes:
        codes: int64 [K, N].
        zeros: int64 [G, N].
        scales: [G, N], exact: float32 for a float32 checkpoint, whose products are rounded to
            float32; float64 for narrower scales, whose products are exact.
        group: int64 [K], the group of each row.
        outputs_first: whether the output is [N, K].
    """

    codes: np.ndarray
    zeros: np.ndarray
    scales: np.ndarray
    group: np.ndarray
    outputs_first: bool = False

    def values(self) -> np.ndarray:
        with np.errstate(all="ignore"):
            product = (self.codes - self.zeros[self.group]) * self.scales[self.group].astype(np.float64)
            product = product.astype(self.scales.dtype)
        return _oriented(product, self.outputs_first)

    def steps(self) -> np.ndarray:
        step = np.abs(self.scales[self.group].astype(np.float64))
        return _oriented(step, self.outputs_first)


@dataclasses.dataclass(frozen=True)
class ScaledZeroModel:
    """Scaled zeros: awq_quads.

    Attributes:
        codes: int64 [K, N].
        scaled_zeros: float64 [G, N], exact; they are added.
        scales: float64 [G, N], exact.
        group: int64 [K], the group of each row.
        outputs_first: whether the output is [N, K].
    """

    codes: np.ndarray
    scaled_zeros: np.ndarray
    scales: np.ndarray
    group: np.ndarray
    outputs_first: bool = True

    def values(self) -> np.ndarray:
        # Exact: multiples of 2**-24 below 2**21 in magnitude have at most 45 bits.
        with np.errstate(all="ignore"):
            value = self.codes * self.scales[self.group] + self.scaled_zeros[self.group]
        return _oriented(value, self.outputs_first)

    def steps(self) -> np.ndarray:
        return _oriented(np.abs(self.scales[self.group]), self.outputs_first)


def _oriented(matrix: np.ndarray, outputs_first: bool) -> np.ndarray:
    return np.ascontiguousarray(matrix.T if outputs_first else matrix)


def _exact(scales: torch.Tensor) -> np.ndarray:
    dtype = torch.float32 if scales.dtype == torch.float32 else torch.float64
    return scales.cpu().to(dtype).numpy()


def _nibbles(words: torch.Tensor, slots: int) -> np.ndarray:
    """int64 [R, C, slots]: slot i is bits 4i .. 4i+3 of a word."""
    values = words.cpu().numpy().astype(np.int64)
    return np.stack([(values >> (4 * slot)) & 15 for slot in range(slots)], axis=-1)


def _by_column(words: torch.Tensor) -> np.ndarray:
    """int64 [R, 8 C] of words of the GEMM layout."""
    slots = _nibbles(words, 8)
    columns = np.empty_like(slots)
    for slot, column in enumerate(COLUMN_OF_SLOT):
        columns[..., column] = slots[..., slot]
    return columns.reshape(words.shape[0], 8 * words.shape[1])


def _groups(weight: AWQColsWeight | AWQRowsWeight | AWQQuadsWeight) -> np.ndarray:
    return np.arange(weight.n_rows, dtype=np.int64) // weight.group_rows


def unpack_cols(weight: AWQColsWeight) -> AWQModel:
    """Codes and zeros of the GEMM layout."""
    return AWQModel(
        _by_column(weight.qweight), _by_column(weight.qzeros), _exact(weight.scales), _groups(weight)
    )


def unpack_rows(weight: AWQRowsWeight) -> AWQModel:
    """Codes and zeros of the GEMV layout, without the padding."""
    groups = weight.n_groups
    codes = _nibbles(weight.qweight, 8).reshape(weight.n_outputs, weight.n_rows)
    zeros = _nibbles(weight.qzeros, 8).reshape(weight.n_outputs, weight.n_padded)[:, :groups]
    scales = _exact(weight.scales)[:, :groups]
    return AWQModel(codes.T, zeros.T, scales.T, _groups(weight), outputs_first=True)


def unpack_quads(weight: AWQQuadsWeight) -> ScaledZeroModel:
    """Codes of the GEMVFast layout, one after the other, and its scaled zeros without the padding."""
    words = weight.qweight.cpu().numpy().astype(np.int64)
    codes = np.empty((weight.n_rows, weight.n_outputs), np.int64)
    for k in range(weight.n_rows):
        chunk, inside = divmod(k, 64)
        half, place = divmod(inside, 32)
        nibble, j = divmod(place, 8)
        for lane in range(4):
            codes[k, lane::4] = (words[:, 64 * chunk + 16 * lane + 8 * half + j] >> (4 * nibble)) & 15
    groups = weight.n_groups
    scaled_zeros = weight.qzeros.cpu().to(torch.float64).numpy()[:groups]
    return ScaledZeroModel(codes, scaled_zeros, _exact(weight.scales)[:groups], _groups(weight))
