"""Registration of int8_affine."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from conformance.axes import Labels, in_order
from conformance.case import Case
from conformance.dims import Choice, Patterned, Pick, Shape, one_of
from conformance.faults import int8_affine as faults
from conformance.faults import rounding
from conformance.formats._grouped import (
    DTYPES,
    SCALE_DTYPE,
    SCALES,
    WORDS,
    Dependent,
    Size,
    steps_above_zero,
)
from conformance.patterns import Pattern, scale_values, word_bytes
from conformance.randomness import raw_ints
from conformance.registry import Format, Packing
from kernels import int8_affine
from kernels.int8_affine import Granularity, Int8AffineWeight
from oracles.base import Oracle
from oracles.compressed_tensors_int8 import COMPRESSED_TENSORS
from oracles.spec.int8_affine import places, unpack
from oracles.torch_int8 import TORCH, TORCH_DECOMPOSED
from oracles.torchao_int8 import TORCHAO, TORCHAO_TENSOR

CODES = {"int8": torch.int8, "uint8": torch.uint8}
# What shares a scale, as the packed type says it.
PER: dict[str, tuple[Granularity, int | None]] = {
    "tensor": ("tensor", None),
    "row": ("channel", 0),
    "column": ("channel", 1),
    "group": ("group", 1),
}
PACKERS = ("torch", "torchao", "torchao-tensor", "compressed-tensors")
# Positions in the range of codes: the end, the middle, one after another, anywhere.
ZEROS = {"mid": False, "lowest": False, "highest": False, "ramp": False, "random": True}

WHY = (
    "half a step; the packers multiply by fp32(1 / scale) and add the zero point in float32: roundings of "
    "numbers below 512 move a value less than 255 * 2**-22 of a step across a tie"
)


@dataclasses.dataclass(frozen=True)
class _Shape(Shape):
    """Squares, on which a wrong axis does not show as a wrong shape, and both ways of not being one."""

    def draw(self, pick: Pick, drawn: Mapping[str, Any]) -> tuple[int, ...]:
        if pick(2):
            return one_of(pick, ((2, 2), (5, 5), (3, 17), (17, 3), (16, 16), (33, 33)))
        return super().draw(pick, drawn)


def _sizes(drawn: Mapping[str, Any]) -> tuple[int, ...]:
    """Groups that divide the columns, or not; of one column; of more than there are."""
    if drawn["per"] != "group":
        return (16,)
    n_cols = drawn["shape"][1]
    near = (n_cols, n_cols - 1, n_cols + 1, n_cols // 2)
    return (16, 8, 5, 32, 4, 1, 2, 7, 64, 128, *(size for size in near if size > 0))


def _divisors(drawn: Mapping[str, Any]) -> tuple[int, ...]:
    if drawn["per"] != "group":
        return (16,)
    n_cols = drawn["shape"][1]
    return tuple(size for size in (16, 32, 8, 64, 5, 2, n_cols) if n_cols % size == 0)


def _ranges(drawn: Mapping[str, Any]) -> tuple[str, ...]:
    return ("full", "full", "narrow") if drawn["codes"] == "int8" else ("full",)


def _packed_per(drawn: Mapping[str, Any]) -> tuple[str, ...]:
    return {
        "torch": ("tensor", "row", "column"),
        "torchao": tuple(PER),
        "torchao-tensor": ("tensor", "row"),
        "compressed-tensors": ("tensor", "row", "group"),
    }[drawn["packer"]]


def _packed_codes(drawn: Mapping[str, Any]) -> tuple[str, ...]:
    return ("int8",) if drawn["packer"] in ("torchao-tensor", "compressed-tensors") else tuple(CODES)


PACKER = Choice("packer", "torch", choices=PACKERS, generated=("torch",))
DIMS = (
    PACKER,
    Choice("per", "row", choices=tuple(PER), generated=("row", "group", "column", "tensor", "group")),
    Choice("codes", "int8", choices=tuple(CODES)),
    Dependent("range", "full", choices=("full", "narrow"), narrow=_ranges),
    Choice("zero", "none", choices=("none", "same", "int32")),
    Patterned("zp", Pattern("random", 0), known=ZEROS),
    _Shape("shape", (2, 32), rank=2),
    Size("g", 16, _sizes, minimum=1),
    SCALE_DTYPE,
    WORDS,
    SCALES,
)
PACK_DIMS = (
    dataclasses.replace(PACKER, generated=None),
    Dependent("per", "row", choices=tuple(PER), narrow=_packed_per),
    Dependent("codes", "int8", choices=tuple(CODES), narrow=_packed_codes),
    Size("g", 16, _divisors, minimum=1),
    # Packers divide by the scale, and take it to be positive.
    dataclasses.replace(SCALES, generated=("one", "ordinary", "small", "huge")),
)


# --- weights ----------------------------------------------------------------------------------


def _scale_shape(case: Case, shape: tuple[int, int]) -> tuple[int, ...]:
    rows, cols = shape
    return {"tensor": (1,), "row": (rows,), "column": (cols,), "group": (rows, -(-cols // case["g"]))}[
        case["per"]
    ]


def _reach(case: Case) -> tuple[int, int]:
    """Smallest and largest code."""
    if case["codes"] == "uint8":
        return (0, 255)
    return (-127 if case["range"] == "narrow" else -128, 127)


def _stored_zeros(case: Case, zeros: np.ndarray) -> torch.Tensor | None:
    if case["zero"] == "none":
        return None
    dtype = torch.int32 if case["zero"] == "int32" else CODES[case["codes"]]
    return torch.from_numpy(zeros).to(dtype)


def _zeros(case: Case, shape: tuple[int, ...]) -> np.ndarray:
    """Zero points int64 of the case's pattern, over the whole range of the codes."""
    count = int(np.prod(shape))
    pattern = case["zp"]
    if pattern.name == "random":
        above = raw_ints(f"zero/{pattern.number}", count, 256)
    else:
        flat = np.arange(count, dtype=np.int64)
        above = {"mid": flat * 0 + 128, "lowest": flat * 0, "highest": flat * 0 + 255, "ramp": flat % 256}[
            pattern.name
        ]
    return (above + (0 if case["codes"] == "uint8" else -128)).reshape(shape)


def _options(case: Case) -> dict[str, Any]:
    granularity, axis = PER[case["per"]]
    size = case["g"] if granularity == "group" else None
    return {"granularity": granularity, "axis": axis, "group_size": size}


def _words(case: Case) -> Int8AffineWeight:
    rows, cols = case["shape"]
    codes = torch.from_numpy(word_bytes(case["words"], rows * cols)).view(CODES[case["codes"]])
    narrow = case["range"] == "narrow"
    if narrow:
        codes = codes.clamp(min=-127) if codes.dtype is torch.int8 else codes
    shape = _scale_shape(case, (rows, cols))
    scale = scale_values(case["scales"], int(np.prod(shape)), DTYPES[case["sdtype"]]).reshape(shape)
    zero = _stored_zeros(case, _zeros(case, shape))
    return Int8AffineWeight(codes.reshape(rows, cols), scale, zero, narrow_range=narrow, **_options(case))


def _through(
    case: Case, oracle: Oracle, values: np.ndarray, scale: torch.Tensor, zeros: np.ndarray
) -> Packing:
    """Pack ``values``, which lie within the codes' reach."""
    assert oracle.pack is not None
    single = torch.from_numpy(values.astype(np.float32))
    packed = oracle.pack(
        single.clone(), scale, _stored_zeros(case, zeros), dtype=CODES[case["codes"]], **_options(case)
    )
    packed = dataclasses.replace(packed, narrow_range=case["range"] == "narrow")
    packed.validate(deep=True)
    return Packing(packed, single.double().numpy(), unpack(packed).steps() * (0.5 + 255 * 2.0**-22), WHY)


def _spread(case: Case, per_scale: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """One value an element, of one value a scale."""
    if case["per"] == "row":
        per_scale = per_scale[:, None]
    if case["per"] == "group":
        per_scale = per_scale[:, np.arange(shape[1]) // case["g"]]
    return np.broadcast_to(per_scale, shape)


def _pack(case: Case, oracle: Oracle) -> Packing:
    shape = case["shape"]
    low, high = _reach(case)
    scales = _scale_shape(case, shape)
    scale = scale_values(case["scales"], int(np.prod(scales)), DTYPES[case["sdtype"]]).reshape(scales)
    zeros = _zeros(case, scales) if case["zero"] != "none" else np.zeros(scales, np.int64)
    position = low + steps_above_zero(case["words"], shape, 8) * ((high - low) / 255)
    step = _spread(case, scale.double().numpy(), shape)
    return _through(case, oracle, (position - _spread(case, zeros, shape)) * step, scale, zeros)


def _pack_real(case: Case, values: torch.Tensor, oracle: Oracle) -> Packing:
    weight = values.double().numpy()
    low, high = _reach(case)
    size, cols = case["g"], weight.shape[1]
    if case["per"] == "group":
        starts = np.arange(0, cols, size)
        least = np.minimum.reduceat(weight, starts, axis=1)
        most = np.maximum.reduceat(weight, starts, axis=1)
    else:
        axis = {"tensor": None, "row": 1, "column": 0}[case["per"]]
        least = np.atleast_1d(weight.min(axis=axis))
        most = np.atleast_1d(weight.max(axis=axis))
    least, most = np.minimum(least, 0), np.maximum(most, 0)
    if case["zero"] == "none":
        step = np.maximum(-least, most) / max(high, -low)
    else:
        step = (most - least) / (high - low)
    scale = torch.from_numpy(step).to(DTYPES[case["sdtype"]])
    step = scale.double().numpy()
    step[step == 0] = 1.0
    zeros = np.zeros(step.shape, np.int64)
    if case["zero"] != "none":
        zeros = np.clip(np.rint(low - least / step), low, high).astype(np.int64)
    scale = torch.from_numpy(step).to(scale.dtype)
    # The scale and the zero are rounded: what the codes do not reach is clipped here.
    s, z = _spread(case, step, weight.shape), _spread(case, zeros, weight.shape)
    return _through(case, oracle, np.clip(weight, (low - z) * s, (high - z) * s), scale, zeros)


def _locate(weight: Int8AffineWeight, index: tuple[int, ...]) -> str:
    row, col = index
    model = unpack(weight)
    place, code = int(model.place[index]), int(model.codes[index])
    where = {"tensor": "the only scale", "channel": f"scale {place} (axis {weight.axis})"}.get(
        weight.granularity, ""
    )
    if weight.granularity == "group":
        assert weight.group_size is not None
        short = (
            weight.codes.shape[1] % weight.group_size
            and col // weight.group_size == weight.scale.shape[1] - 1
        )
        where = f"group {col // weight.group_size}{' (the last, short one)' if short else ''}"
    kind = "signed" if weight.codes.dtype is torch.int8 else "unsigned"
    return (
        f"row {row}, column {col}, {where}, {kind} code {code}, zero {int(model.zeros[place])}, "
        f"scale {model.scales[place]:.6g}"
    )


def _axes(weight: Int8AffineWeight) -> Labels:
    """Group of columns, if there are any, and the byte of a 32-bit word."""
    shape, size = weight.output_shape, weight.group_size
    groups = {} if size is None else {"group": np.arange(shape[1]) // size}
    return in_order(shape, 4, **groups, scale=places(weight))


FORMATS = (
    Format(
        name="int8_affine",
        summary="int8 and uint8 by tensor, row, column or group, symmetric or with zero points",
        weight_type=Int8AffineWeight,
        kernel=int8_affine.dequantize,
        oracles=(TORCH, TORCH_DECOMPOSED, TORCHAO, TORCHAO_TENSOR, COMPRESSED_TENSORS),
        unpack=unpack,
        dims=DIMS,
        words=_words,
        pack=_pack,
        pack_real=_pack_real,
        locate=_locate,
        axes=_axes,
        tiles={"case": {"rows": 16, "cols": 2048}, "small": {"rows": 2, "cols": 16}, "default": {}},
        faults=faults.FAULTS + rounding.FAULTS,
        inner=1,
        real_variants=(
            {"range": "narrow", "sdtype": "fp32"},
            {"packer": "torch", "per": "tensor", "codes": "uint8", "zero": "same"},
            {"packer": "torchao", "per": "column", "zero": "int32", "sdtype": "bf16"},
            {"packer": "torchao", "per": "group", "g": 32, "codes": "uint8", "zero": "same"},
            {"packer": "torchao-tensor", "zero": "same", "sdtype": "fp32"},
            {"packer": "compressed-tensors", "per": "group", "g": 128, "zero": "same"},
        ),
        real_step=13,
        pack_dims=PACK_DIMS,
        tile_cases=(
            "shape=3x17",
            "shape=5x33,per=column,zero=same",
            "shape=3x31,per=group,g=5,zero=int32",
            "shape=4x48,per=group,g=16,codes=uint8,zero=same",
            "shape=16x16,per=column",
            "shape=5x33,per=column,codes=uint8,zero=same,zp=random(3)",
            "shape=1x1,per=tensor",
            "shape=7x5,per=tensor,sdtype=fp32",
            "shape=7x15,per=tensor,codes=uint8,zero=int32",
            "shape=9x33,scales=ties(1)",
            # A tile that starts deep inside a group.
            "shape=2x300,per=group,g=200",
            # Subnormal products of a float32, which a GPU may flush.
            "shape=3x17,scales=subnormal(1),sdtype=fp32",
            "shape=3x17,scales=subnormal(2),sdtype=bf16,zero=same",
        ),
        large=(
            "shape=3x1100,per=group,g=512,zero=same",
            "shape=9x1100,per=group,g=48,zero=int32",
            "shape=700x33,zero=same",
            # A zero point beyond int8.
            "shape=9x1100,per=tensor,codes=uint8,zero=int32,zp=highest",
        ),
        zero_size=(
            "shape=0x64",
            "shape=3x0",
            "shape=0x64,per=column,zero=same",
            "shape=3x0,per=group",
            "shape=0x0,per=tensor",
        ),
        nonfinite=(
            "shape=5x33,scales=inf(1)",
            "shape=5x33,scales=nan(1),per=column,zero=same",
            "shape=5x33,scales=inf(1),words=zeros",
            "shape=5x33,scales=inf(2),per=group,g=8,zero=int32,sdtype=bf16",
            "shape=5x33,scales=nan(2),per=group,g=7,sdtype=fp32,codes=uint8",
            # Zero times scale is beyond float16; their difference is 0.
            "shape=5x33,scales=huge(1),words=ones,codes=uint8,zero=same,zp=highest",
        ),
    ),
)
