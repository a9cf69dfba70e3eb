"""Exact model of gptq (the text is in ``kernels/gptq.py``)."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from kernels.gptq import GPTQWeight
from oracles.spec.rounding import numpy_bytes


@dataclasses.dataclass(frozen=True)
class GPTQModel:
    """A GPTQ weight, unpacked.

    Attributes:
        codes: int64 [K, N], 0..maxq.
        stored: int64 [G, N], the zero fields as they are in the file, 0..maxq.
        zeros: int64 [G, N], the zeros they mean by the weight's convention, 0..maxq+1.
        scales: float64 [G, N], the exact values of the stored scales.
        group: int64 [K], the group whose scale a row uses.
        zero_group: int64 [K], the group whose zero a row uses: the same one, unless a
            diagnosis takes them apart.
        bits: width of codes and zero fields.
        single: the scales are float32, so the product is rounded to float32 before the
            output rounding. With 16-bit scales it is exact.
    """

    codes: np.ndarray
    stored: np.ndarray
    zeros: np.ndarray
    scales: np.ndarray
    group: np.ndarray
    zero_group: np.ndarray
    bits: int
    single: bool

    def values(self) -> np.ndarray:
        # 9 bits times 24 fit the 53 of a float64: this product is exact.
        with np.errstate(all="ignore"):
            steps_from_zero = (self.codes - self.zeros[self.zero_group]).astype(np.float64)
            product = steps_from_zero * self.scales[self.group]
            return product.astype(np.float32) if self.single else product

    def steps(self) -> np.ndarray:
        return np.abs(self.scales[self.group])


def unpack_stream(bits_along_last: np.ndarray, bits: int, count: int) -> np.ndarray:
    """The first ``count`` fields of ``bits`` bits in each row of a little-endian bit stream.

    Args:
        bits_along_last: uint8 [R, n_bytes].
        bits: field width.
        count: fields a row has.

    Returns:
        int64 [R, count].
    """
    stream = np.unpackbits(bits_along_last, axis=1, bitorder="little")[:, : count * bits]
    fields = stream.reshape(stream.shape[0], count, bits).astype(np.int64)
    return fields @ (1 << np.arange(bits, dtype=np.int64))


def decode_zeros(stored: np.ndarray, bits: int, convention: str) -> np.ndarray:
    """What stored zero fields mean; the table is in ``kernels/gptq.py``."""
    if convention == "v2":
        return stored
    if convention == "v1-nowrap":
        return stored + 1
    if convention == "v1":
        return (stored + 1) % 2**bits
    raise ValueError(f"convention: expected v1, v1-nowrap or v2, found {convention!r}")


def exact_scales(scales: torch.Tensor) -> np.ndarray:
    """Scales as float64, exact (NumPy has no bfloat16: its bits are the upper half of a float32's)."""
    if scales.dtype is torch.bfloat16:
        upper = numpy_bytes(scales).view("<u2").astype(np.uint32) << np.uint32(16)
        single = upper.view(np.float32).reshape(tuple(scales.shape))
    else:
        single = scales.detach().cpu().numpy()
    return single.astype(np.float64)


def stored_zeros(weight: GPTQWeight) -> np.ndarray:
    """The zero fields as they are in the file: int64 [G, N]."""
    return unpack_stream(_row_bytes(weight.qzeros), weight.bits, weight.output_shape[1])


def stores_maxq(weight: GPTQWeight) -> bool:
    """Whether any stored zero is maxq, the one value on which the v1 conventions differ."""
    return bool((stored_zeros(weight) == 2**weight.bits - 1).any())


def unpack(weight: GPTQWeight) -> GPTQModel:
    """Unpack a GPTQ weight: each column of codes and each row of zeros is one bit stream."""
    n_rows = weight.output_shape[0]
    codes = unpack_stream(_row_bytes(weight.qweight.t()), weight.bits, n_rows).T
    stored = stored_zeros(weight)
    if weight.g_idx is None:
        group = np.arange(n_rows, dtype=np.int64) // weight.group_rows
    else:
        group = weight.g_idx.cpu().numpy().astype(np.int64)
    return GPTQModel(
        codes=codes,
        stored=stored,
        zeros=decode_zeros(stored, weight.bits, weight.zeros),
        scales=exact_scales(weight.scales),
        group=group,
        zero_group=group,
        bits=weight.bits,
        single=weight.scales.dtype is torch.float32,
    )


def _row_bytes(words: torch.Tensor) -> np.ndarray:
    return numpy_bytes(words).reshape(words.shape[0], words.shape[1] * 4)
