"""Exact model of int8_affine (the text is in ``kernels/int8_affine.py``)."""

from __future__ import annotations

import dataclasses

import numpy as np

from kernels.int8_affine import Int8AffineWeight
from oracles.spec.gptq import exact_scales


@dataclasses.dataclass(frozen=True)
class Int8AffineModel:
    """An 8-bit affine weight, unpacked.

    Attributes:
        codes: int64 [R, C], -128..127 or 0..255.
        zeros: int64 [P], the zero points in the flat order of the scales; 0 when symmetric.
        scales: float64 [P], the exact values of the stored scales.
        place: int64 [R, C], the position of an element's scale.
        zero_place: int64 [R, C], of its zero point: the same, unless a diagnosis takes them apart.
        single: the scales are float32, so the product is rounded to float32 before the output
            rounding. With 16-bit scales it is exact.
    """

    codes: np.ndarray
    zeros: np.ndarray
    scales: np.ndarray
    place: np.ndarray
    zero_place: np.ndarray
    single: bool

    def values(self) -> np.ndarray:
        # 9 bits times 24 fit the 53 of a float64: this product is exact.
        with np.errstate(all="ignore"):
            steps_from_zero = (self.codes - self.zeros[self.zero_place]).astype(np.float64)
            product = steps_from_zero * self.scales[self.place]
            return product.astype(np.float32) if self.single else product

    def steps(self) -> np.ndarray:
        return np.abs(self.scales[self.place])


def places(weight: Int8AffineWeight) -> np.ndarray:
    """Position of each element's scale in the flat order of ``scale``: int64 [R, C]."""
    n_rows, n_cols = weight.codes.shape
    row, col = np.arange(n_rows, dtype=np.int64)[:, None], np.arange(n_cols, dtype=np.int64)[None, :]
    if weight.granularity == "tensor":
        found = row * 0 + col * 0
    elif weight.granularity == "channel":
        found = row + col * 0 if weight.axis == 0 else row * 0 + col
    else:
        assert weight.group_size is not None
        found = row * weight.scale.shape[1] + col // weight.group_size
    return found


def unpack(weight: Int8AffineWeight) -> Int8AffineModel:
    place = places(weight)
    scales = exact_scales(weight.scale).reshape(-1)
    if weight.zero_point is None:
        zeros = np.zeros(scales.shape, np.int64)
    else:
        zeros = weight.zero_point.cpu().numpy().astype(np.int64).reshape(-1)
    return Int8AffineModel(
        codes=weight.codes.cpu().numpy().astype(np.int64),
        zeros=zeros,
        scales=scales,
        place=place,
        zero_place=place,
        single=str(weight.scale.dtype) == "torch.float32",
    )
