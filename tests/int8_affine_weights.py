"""Small int8_affine weights for tests: random codes, every channel and group with its own scale."""

from __future__ import annotations

import numpy as np
import torch

from conformance.bits import same, to_bits
from kernels.int8_affine import Granularity, Int8AffineWeight
from oracles.spec.int8_affine import unpack
from oracles.spec.rounding import round_to

PER: dict[str, tuple[Granularity, int | None]] = {
    "tensor": ("tensor", None),
    "row": ("channel", 0),
    "column": ("channel", 1),
    "group": ("group", 1),
}


def make(
    per: str,
    *,
    shape: tuple[int, int] = (5, 37),
    codes: torch.dtype = torch.int8,
    zero: str = "none",
    scale: torch.dtype = torch.float32,
    group_size: int = 8,
    seed: int = 1,
) -> Int8AffineWeight:
    """A valid weight; ``zero`` is ``none``, ``same`` (the dtype of the codes) or ``int32``."""
    generator = torch.Generator().manual_seed(seed)
    rows, cols = shape
    granularity, axis = PER[per]
    places = {"tensor": (1,), "row": (rows,), "column": (cols,), "group": (rows, -(-cols // group_size))}[per]
    zero_point = None
    if zero != "none":
        drawn = torch.randint(0, 256, places, generator=generator).to(torch.uint8).view(codes)
        zero_point = drawn.to(torch.int32) if zero == "int32" else drawn
    scales = torch.rand(places, generator=generator) + 0.25
    negative = torch.rand(places, generator=generator) < 0.3
    return Int8AffineWeight(
        codes=torch.randint(0, 256, shape, generator=generator).to(torch.uint8).view(codes),
        scale=torch.where(negative, -scales, scales).to(scale),
        zero_point=zero_point,
        granularity=granularity,
        axis=axis,
        group_size=group_size if per == "group" else None,
    )


def mismatches(weight: Int8AffineWeight, got: torch.Tensor) -> int:
    """Elements whose bits differ from the exact model's; any NaN equals any NaN."""
    want = round_to(unpack(weight).values(), got.dtype)
    return int(np.count_nonzero(~same(to_bits(got), want, got.dtype)))
