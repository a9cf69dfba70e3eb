"""kernels/int8_affine.py: decodes to the bits of the exact model, and refuses bad input by name."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest
import torch

from kernels._packed import map_tensors
from kernels.int8_affine import Int8AffineWeight, dequantize
from tests.int8_affine_weights import PER, make, mismatches
from tests.kernel_weights import DEVICE, DTYPES, same_bits

if DEVICE.type == "cpu":
    from conformance import interpreter

    interpreter.correct()

# The interpreter multiplies with NumPy, which warns where hardware gives inf or NaN in silence.
pytestmark = pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning")
INF = float("inf")


def decode(weight: Int8AffineWeight, dtype: torch.dtype = torch.float32, **options: Any) -> torch.Tensor:
    """The kernel's answer for a weight on the CPU."""
    there = map_tensors(weight, lambda name, tensor: tensor.to(DEVICE))
    return dequantize(there, dtype=dtype, **{"cols": 64, "num_warps": 1, **options}).cpu()


# --- the same bits as the exact model ---------------------------------------------------


@pytest.mark.parametrize("zero", ["none", "same", "int32"])
@pytest.mark.parametrize("codes", [torch.int8, torch.uint8], ids=str)
@pytest.mark.parametrize("per", PER)
def test_granularities_and_zeros(per: str, codes: torch.dtype, zero: str):
    weight = make(per, codes=codes, zero=zero)
    weight.validate(deep=True)
    assert mismatches(weight, decode(weight)) == 0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("scale", DTYPES, ids=str)
@pytest.mark.parametrize("per", PER)
def test_dtypes(per: str, scale: torch.dtype, dtype: torch.dtype):
    weight = make(per, scale=scale, zero="same")
    got = decode(weight, dtype)
    assert got.dtype == dtype
    assert mismatches(weight, got) == 0


@pytest.mark.parametrize("cols", [4, 16, 64])
@pytest.mark.parametrize("rows", [1, 2, 8])
@pytest.mark.parametrize("group_size", [1, 3, 8, 16, 36, 37, 38, 100], ids="g{}".format)
def test_groups_around_tiles(group_size: int, rows: int, cols: int):
    """Groups that split a tile, that span tiles, a short last one, one that covers the row."""
    weight = make("group", shape=(3, 37), group_size=group_size, zero="same")
    assert mismatches(weight, decode(weight, rows=rows, cols=cols)) == 0


@pytest.mark.parametrize("per", PER)
def test_square_weights(per: str):
    weight = make(per, shape=(16, 16), zero="same")
    assert mismatches(weight, decode(weight, cols=16)) == 0


@pytest.mark.parametrize("codes", [torch.int8, torch.uint8], ids=str)
def test_every_code_meets_every_zero(codes: torch.dtype):
    """Differences of -255 to 255: 8 bits would wrap."""
    every = torch.arange(256).to(torch.uint8)
    weight = Int8AffineWeight(
        codes=every.view(codes).repeat(256, 1),
        scale=torch.ones(256),
        zero_point=every.view(codes).clone(),
        granularity="channel",
        axis=0,
    )
    numbers = every.view(codes).float()
    got = decode(weight, cols=256, rows=256)
    assert torch.equal(got, numbers[None, :] - numbers[:, None])


def test_minus_128_is_a_code():
    weight = Int8AffineWeight(
        torch.tensor([[-128, 127]], dtype=torch.int8), torch.tensor([0.5]), None, "tensor"
    )
    assert decode(weight).tolist() == [[-64.0, 63.5]]


SPECIAL = [0.0, -0.0, 1.0, -1.0, 6e-8, -6e-8, 6e-5, 5000.0, 65504.0, -65504.0, 1e-40, 1e-45, 1.2e-38]
SPECIAL += [3e38, -3e38, 1e37, INF, -INF, float("nan")]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("scale", DTYPES, ids=str)
@pytest.mark.parametrize("per", ["row", "column"])
def test_extreme_scales(per: str, scale: torch.dtype, dtype: torch.dtype):
    """Subnormal, zero, negative, overflowing and non-finite, each met by code == zero."""
    codes = (torch.arange(len(SPECIAL)) * 13 - 120).to(torch.int8).repeat(len(SPECIAL), 1)
    weight = Int8AffineWeight(
        codes=codes if per == "row" else codes.t().contiguous(),
        scale=torch.tensor(SPECIAL, dtype=torch.float64).to(scale),
        zero_point=torch.full((len(SPECIAL),), 10, dtype=torch.int32),
        granularity="channel",
        axis=0 if per == "row" else 1,
    )
    assert mismatches(weight, decode(weight, dtype)) == 0


def test_zero_times_a_large_scale_is_not_formed():
    """https://github.com/vllm-project/vllm/pull/55532"""
    codes = torch.full((2, 8), 127, dtype=torch.int8)
    zero = torch.full((2,), 127, dtype=torch.int8)
    weight = Int8AffineWeight(codes, torch.full((2,), 5000.0), zero, "channel", axis=0)
    assert same_bits(decode(weight, torch.float16), torch.zeros(2, 8, dtype=torch.float16))


@pytest.mark.parametrize("shape", [(0, 8), (3, 0), (0, 0)], ids=str)
@pytest.mark.parametrize("per", PER)
def test_zero_size(per: str, shape: tuple[int, int]):
    weight = make(per, shape=shape, zero="same")
    weight.validate(deep=True)
    assert decode(weight).shape == shape


@pytest.mark.parametrize("per", PER)
def test_strided_inputs(per: str):
    def spread(name: str, tensor: torch.Tensor) -> torch.Tensor:
        wide = torch.full((*tensor.shape, 2), 9, dtype=tensor.dtype, device=tensor.device)
        wide[..., 0] = tensor
        return wide[..., 0]

    weight = map_tensors(make(per, zero="same"), lambda name, tensor: tensor.to(DEVICE))
    got = dequantize(map_tensors(weight, spread), dtype=torch.float16)
    assert same_bits(got, dequantize(weight, dtype=torch.float16))


# --- bad input --------------------------------------------------------------------------

# make("row"): codes int8 [5, 37], scale [5], zero_point int8 [5].
BAD: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    (
        "row",
        {"codes": torch.zeros(5, 37, dtype=torch.int16)},
        TypeError,
        "codes: expected dtype one of int8, uint8, found int16",
    ),
    (
        "row",
        {"codes": torch.zeros(185, dtype=torch.int8)},
        ValueError,
        "codes: expected 2 dimensions [R, C], found shape [185]",
    ),
    (
        "row",
        {"granularity": "block"},
        ValueError,
        "granularity: expected one of tensor, channel, group, found 'block'",
    ),
    ("row", {"axis": None}, TypeError, "axis: expected an int, found NoneType"),
    ("row", {"axis": -1}, ValueError, "axis: expected 0 or 1, found -1"),
    ("row", {"axis": 2}, ValueError, "axis: expected 0 or 1, found 2"),
    ("row", {"axis": True}, TypeError, "axis: expected an int, found bool"),
    ("row", {"axis": 1}, ValueError, "scale: expected shape [37], found [5]"),
    ("tensor", {"axis": 0}, ValueError, "axis: expected None per tensor, found 0"),
    ("group", {"axis": 0}, ValueError, "axis: expected 1, which groups lie along, found 0"),
    ("group", {"group_size": None}, TypeError, "group_size: expected an int, found NoneType"),
    ("group", {"group_size": 0}, ValueError, "group_size: expected at least 1, found 0"),
    ("group", {"group_size": -1}, ValueError, "group_size: expected at least 1, found -1"),
    ("group", {"group_size": 16}, ValueError, "scale: expected shape [5, 3], found [5, 5]"),
    ("row", {"group_size": 8}, ValueError, "group_size: expected None per channel, found 8"),
    ("row", {"scale": torch.ones(5, 1)}, ValueError, "scale: expected shape [5], found [5, 1]"),
    ("tensor", {"scale": torch.ones(())}, ValueError, "scale: expected shape [1], found []"),
    (
        "row",
        {"scale": torch.ones(5, dtype=torch.float64)},
        TypeError,
        "scale: expected dtype one of float16, bfloat16, float32, found float64",
    ),
    (
        "row",
        {"zero_point": torch.zeros(5)},
        TypeError,
        "zero_point: expected dtype one of int8, uint8, int32, found float32",
    ),
    (
        "row",
        {"zero_point": torch.zeros(5, dtype=torch.uint8)},
        TypeError,
        "zero_point: expected int8 or int32, as the codes are int8, found uint8",
    ),
    (
        "row",
        {"zero_point": torch.zeros(4, dtype=torch.int8)},
        ValueError,
        "zero_point: expected shape [5], found [4]",
    ),
    ("row", {"narrow_range": 1}, TypeError, "narrow_range: expected a bool, found int"),
    (
        "row",
        {"scale": torch.ones(5, device="meta")},
        ValueError,
        "scale: expected device cpu (the device of codes), found meta",
    ),
]


@pytest.mark.parametrize(("per", "changes", "error", "sentence"), BAD, ids=[row[3] for row in BAD])
def test_bad_input(per: str, changes: dict[str, Any], error: type[Exception], sentence: str):
    weight = dataclasses.replace(make(per, zero="same"), **changes)
    out = torch.full((5, 37), 7.0, dtype=torch.float16)
    with pytest.raises(error, match=f"^{re.escape(sentence)}$"):
        dequantize(weight, dtype=torch.float16, out=out)
    assert bool((out == 7).all())


def test_signed_zero_point_of_unsigned_codes_is_refused():
    weight = make("row", codes=torch.uint8, zero="same")
    weight = dataclasses.replace(weight, zero_point=torch.zeros(5, dtype=torch.int8))
    with pytest.raises(
        TypeError, match=r"^zero_point: expected uint8 or int32, as the codes are uint8, found int8$"
    ):
        weight.validate()


def test_narrow_range_is_of_signed_codes():
    weight = dataclasses.replace(make("row", codes=torch.uint8), narrow_range=True)
    with pytest.raises(ValueError, match=r"^narrow_range: expected False with uint8 codes, found True$"):
        weight.validate()


@pytest.mark.parametrize(
    ("codes", "value", "limits"),
    [
        (torch.int8, 128, "-128 <= zero <= 127"),
        (torch.int8, -129, "-128 <= zero <= 127"),
        (torch.uint8, 256, "0 <= zero <= 255"),
        (torch.uint8, -1, "0 <= zero <= 255"),
    ],
)
def test_zero_point_out_of_range(codes: torch.dtype, value: int, limits: str):
    weight = make("row", codes=codes, zero="int32")
    assert weight.zero_point is not None
    weight.zero_point[3] = value
    weight.validate()  # reads no values
    with pytest.raises(ValueError, match=f"^zero_point: expected {limits}, found {value} at flat index 3$"):
        weight.validate(deep=True)


def test_deep_validation_of_a_narrow_range():
    weight = make("row")
    weight.codes[1, 2] = -128
    weight.codes[0] = 1
    weight.codes[1, :2] = 1
    weight.validate(deep=True)
    with pytest.raises(
        ValueError,
        match=r"^codes: expected -127 <= code <= 127 in a narrow range, found -128 at flat index 39$",
    ):
        dataclasses.replace(weight, narrow_range=True).validate(deep=True)


@pytest.mark.parametrize("value", [INF, -INF, float("nan")])
def test_deep_validation_of_scales(value: float):
    weight = make("group")
    weight.scale[0, 1] = value
    weight.validate()
    with pytest.raises(ValueError, match=rf"^scale: expected finite values, found {value} at flat index 1$"):
        weight.validate(deep=True)


@pytest.mark.parametrize(("option", "value"), [("rows", 0), ("cols", 24), ("cols", 0), ("num_warps", 3)])
def test_tile_sizes_that_cannot_be_launched(option: str, value: int):
    with pytest.raises(ValueError, match=rf"^{option}: expected .*, found {value}$"):
        dequantize(make("row"), dtype=torch.float16, **{option: value})


def test_another_packed_type_is_refused():
    with pytest.raises(TypeError, match=r"^weight: expected Int8AffineWeight, found str$"):
        dequantize("weight", dtype=torch.float16)  # type: ignore[arg-type]


@pytest.mark.parametrize("field", ["codes", "scale", "zero_point"])
def test_out_that_overlaps_an_input(field: str):
    weight = map_tensors(make("group", zero="same"), lambda name, tensor: tensor.to(DEVICE))
    tensor = getattr(weight, field)
    memory = torch.zeros(4096, dtype=torch.uint8, device=DEVICE)
    size = tensor.numel() * tensor.element_size()
    place = memory[368 : 368 + size].view(tensor.dtype).reshape(tensor.shape)
    inside = dataclasses.replace(weight, **{field: place.copy_(tensor)})
    out = memory[:370].view(torch.float16).reshape(5, 37)
    with pytest.raises(ValueError, match=rf"^out: expected .*, found an overlap with {field}$"):
        dequantize(inside, dtype=torch.float16, out=out)
