"""Dimensions of the fp8 matrix product, and the data they stand for."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from conformance.case import Case
from conformance.dims import Choice, Patterned
from conformance.formats._gemm import ROWS, _scales
from conformance.formats._grouped import Size
from conformance.patterns import Pattern
from conformance.randomness import raw_bytes, raw_ints
from kernels._fp8 import E4M3, blocks

# Around instructions of 16 and 32 codes, tiles of 64 and blocks of 128, and past two of these.
DEPTHS = (32, 1, 2, 7, 15, 16, 17, 31, 33, 48, 64, 65, 96, 127, 128, 129, 160, 256, 257, 300)
COLUMNS = (8, 1, 2, 3, 7, 16, 17, 33, 127, 128, 129, 130, 257)
# Elements of activations, weight and output that are drawn; larger ones are asked for by name.
LIMITS = (3000, 20_000, 700)


def _depths(drawn: Mapping[str, Any]) -> tuple[int, ...]:
    """Inner dimensions; as many as rows too."""
    rows = drawn.get("M", 1)
    return (*(k for k in (*DEPTHS, rows) if k * rows <= LIMITS[0]), 1)


def _columns(drawn: Mapping[str, Any]) -> tuple[int, ...]:
    """Outputs; as many as rows or as the inner dimension too, where an exchanged axis has its shape."""
    rows, depth = drawn.get("M", 1), drawn.get("K", 1)
    return (
        *(
            n
            for n in (*COLUMNS, depth, rows)
            if 0 < n <= LIMITS[1] // max(depth, 1) and (n == rows or n * rows <= LIMITS[2])
        ),
        1,
    )


FP8_ROWS = ROWS
FP8_DEPTH = Size("K", 32, _depths)
FP8_COLUMNS = Size("N", 8, _columns)
FP8_LENGTH = dataclasses.replace(FP8_DEPTH, minimum=1)
A_PER = Choice(
    "aper", "token", choices=("token", "tensor", "block", "unit"), generated=("token", "tensor", "block")
)
W_PER = Choice(
    "wper",
    "channel",
    choices=("channel", "tensor", "block", "unit"),
    generated=("channel", "tensor", "block", "block"),
)
FP8_ORDER = Choice("order", "a-w", choices=("a-w", "w-a", "product"), generated=("a-w", "w-a", "product"))

CODES = {
    "zeros": False,
    "whole": True,
    "top": False,
    "max": False,
    "onehot": True,
    "ramp": False,
    "sub": True,
    "random": True,
    "eye": False,
    "nan": True,
}
# The identity as a weight shows the other side's codes, NaN hides everything: by name.
_DRAWN = ("zeros", "whole", "whole", "whole", "top", "onehot", "ramp", "sub", "random")
FP8_LEFT = Patterned("a", Pattern("whole", 0), known=CODES, generated=_DRAWN)
FP8_RIGHT = Patterned("b", Pattern("whole", 0), known=CODES, generated=_DRAWN)
_ONE = 0x38
_LARGEST = 0x7E


def codes(pattern: Pattern, shape: tuple[int, int], side: str) -> torch.Tensor:
    """Operand float8_e4m3fn of ``shape``; ``side`` keeps equal patterns of both operands apart.

    ====== =====================================================================================
    whole  whole numbers from -4 to 4: sums of several hundred products are exact in any accumulator
    top    0x80 everywhere: -0, and NaN in e4m3fnuz
    max    448 everywhere
    onehot bit k alone (not where the byte would be NaN)
    ramp   every code but NaN, in order
    sub    subnormal codes and zeros, either sign
    random any code but NaN
    eye    the identity
    nan    as whole, one code in each other row NaN
    ====== =====================================================================================
    """
    count, label = shape[0] * shape[1], f"fp8/{side}/{pattern.name}/{pattern.number}"
    data = np.zeros(count, np.uint8)
    if pattern.name in ("top", "max"):
        data[:] = 0x80 if pattern.name == "top" else _LARGEST
    elif pattern.name == "onehot" and count:
        bit = (pattern.number or 0) % (8 * count)
        data[bit // 8] = 1 << (bit % 8)
    elif pattern.name == "ramp":
        data = _finite(np.arange(count))
    elif pattern.name == "random":
        data = _finite(raw_bytes(label, count).astype(np.int64))
    elif pattern.name == "sub":
        drawn = raw_ints(label, count, 16)
        data = ((drawn & 8) << 4 | drawn & 7).astype(np.uint8)
    elif pattern.name == "eye":
        data = np.eye(*shape, dtype=np.uint8).reshape(-1) * np.uint8(_ONE)
    elif pattern.name in ("whole", "nan"):
        # 0, 1, 2, 3, 4 as e4m3.
        sizes = np.array([0, 0x38, 0x40, 0x44, 0x48], np.uint8)
        drawn = raw_ints(label, count, 9) - 4
        data = sizes[np.abs(drawn)] | np.where(drawn < 0, 0x80, 0).astype(np.uint8)
        if pattern.name == "nan" and count:
            rows = np.arange(0, shape[0], 2)
            places = rows * shape[1] + raw_ints(label + "/place", rows.size, shape[1])
            data[places] = 0x7F | (rows % 4 << 6).astype(np.uint8)
    return torch.from_numpy(data.copy()).reshape(shape).view(E4M3)


def _finite(numbers: np.ndarray) -> np.ndarray:
    """Bytes of numbers; what would be NaN is the code next to it."""
    data = (numbers & 255).astype(np.uint8)
    return np.where(data & 0x7F == 0x7F, data - np.uint8(1), data).astype(np.uint8)


def left_codes(case: Case) -> torch.Tensor:
    return codes(case["a"], (case["M"], case["K"]), "a")


def right_codes(case: Case) -> torch.Tensor:
    return codes(case["b"], (case["N"], case["K"]), "b")


def activation_scales(case: Case) -> torch.Tensor:
    """[1], [M] or [M, KB], each its own."""
    rows, k_blocks = case["M"], blocks(case["K"])
    shape = {"tensor": (1,), "unit": (1,), "token": (rows,), "block": (rows, k_blocks)}[case["aper"]]
    return _of_shape(case, shape, case["aper"], 0)


def weight_scales(case: Case) -> torch.Tensor:
    """[1], [N] or [NB, KB], each its own."""
    cols, k_blocks = case["N"], blocks(case["K"])
    shape = {"tensor": (1,), "unit": (1,), "channel": (cols,), "block": (blocks(cols), k_blocks)}[
        case["wper"]
    ]
    return _of_shape(case, shape, case["wper"], 1)


def _of_shape(case: Case, shape: tuple[int, ...], per: str, side: int) -> torch.Tensor:
    if per == "unit":
        return torch.ones(1)
    count = int(np.prod(shape))
    return _scales(case["scales"], count, side).reshape(shape)


def given_scale(case: Case) -> torch.Tensor | None:
    """Of a cast by tensor: such that some numbers are cut and some are subnormal codes."""
    if case["per"] != "tensor":
        return None
    return _scales(case["scales"], 1, 0)
