"""The three AWQ kernels against the exact model, bit for bit, and what they refuse."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from conformance import interpreter
from kernels import awq_cols, awq_quads, awq_rows
from kernels._awq import padded_groups
from tests.awq_weights import DEVICE, MAKE, MODULES, cols, differences, quads, rows, unpack, want
from tests.kernel_weights import change

DTYPES = [pytest.param(dtype, id=str(dtype)[6:]) for dtype in (torch.float16, torch.bfloat16, torch.float32)]
SMALL = {"awq_cols": {"words": 4}, "awq_rows": {"words": 8}, "awq_quads": {"eighths": 8}}
LAYOUTS = list(MODULES)


@pytest.fixture(autouse=True, scope="module")
def _rounding_interpreter() -> None:
    if DEVICE.type == "cpu":
        interpreter.probe()  # casts to bfloat16 truncate otherwise


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with np.errstate(all="ignore"):
        yield


def run(weight: Any, dtype: torch.dtype, **options: Any) -> torch.Tensor:
    name = next(name for name in LAYOUTS if type(weight).__module__ == f"kernels.{name}")
    return MODULES[name].dequantize(weight, dtype=dtype, **{**SMALL[name], **options})


def check(weight: Any, dtype: torch.dtype, **options: Any) -> None:
    assert differences(run(weight, dtype, **options), want(weight, dtype)) == 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", DTYPES)
@pytest.mark.parametrize(
    ("n_rows", "columns", "group_size"),
    [
        (1, 8, -1),
        (8, 40, 1),
        (13, 8, 13),  # one group, K prime
        (15, 72, 5),  # groups shorter than a tile and no divisor of it
        (14, 24, 7),
        (33, 16, 64),  # a group that spans more than K
        (64, 40, 32),
    ],
)
def test_cols(n_rows, columns, group_size, scale, dtype):
    check(cols(n_rows, columns, group_size, scale), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", DTYPES)
@pytest.mark.parametrize(
    ("n_rows", "outputs", "group_size"),
    [
        (128, 3, -1),
        (64, 1, 16),
        (96, 5, 32),
        (192, 8, 64),
        (136, 4, 136),  # 17 words
        (264, 2, 132),  # the groups' border is inside a word
    ],
)
def test_rows(n_rows, outputs, group_size, scale, dtype):
    check(rows(n_rows, outputs, group_size, scale), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("n_rows", "outputs", "group_size"),
    [
        (64, 4, -1),
        (64, 8, 16),
        (192, 12, 32),
        (128, 8, 64),
        (320, 4, 160),
        (2112, 4, 132),  # the groups' border is inside a run of eight codes
    ],
)
def test_quads(n_rows, outputs, group_size, dtype):
    check(quads(n_rows, outputs, group_size), dtype)


@pytest.mark.parametrize("tile", [1, 2, 16])
@pytest.mark.parametrize("n_tile_rows", [1, 2, 8])
@pytest.mark.parametrize("name", LAYOUTS)
def test_any_tile_gives_the_same(name, n_tile_rows, tile):
    weight = MAKE[name](*{"awq_cols": (12, 40, 6)}.get(name, (64, 8, 32)))
    check(weight, torch.float16, rows=n_tile_rows, **dict.fromkeys(SMALL[name], tile))


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_code_of_every_slot_meets_every_zero(name):
    codes = torch.arange(16).repeat_interleave(16)  # code and zero of 256 columns
    if name == "awq_cols":
        nibbles = torch.stack([codes, codes.reshape(16, 16).T.reshape(-1)])
        order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])
        words = sum(nibbles.reshape(2, 32, 8)[:, :, order[slot]] << (4 * slot) for slot in range(8))
        words = torch.where(words >= 2**31, words - 2**32, words).to(torch.int32).to(DEVICE)
        scales = torch.full((1, 256), 0.25, dtype=torch.float16, device=DEVICE)
        got = run(awq_cols.AWQColsWeight(words[:1], words[1:], scales, -1), torch.float32)
        assert torch.equal(got.cpu()[0], (nibbles[0] - nibbles[1]) * 0.25)
    else:
        weight = MAKE[name](256, 8, -1)
        model = unpack(weight)
        assert {int(code) for code in model.codes.reshape(-1)} == set(range(16))
        check(weight, torch.float32)


SCALES = {
    "negative": [-0.5, -3.0, -(2.0**-14), -0.0],
    "zero": [0.0, -0.0, 0.0, 1.0],
    "subnormal": [2.0**-24, -(2.0**-24), 1023 * 2.0**-24, 2.0**-15],
    "huge": [65504.0, -65504.0, 4368.0, 4367.5],
    "mixed": [2.0**-24, 65504.0, 1.0, 0.1],
    "infinite": [float("inf"), float("-inf"), float("nan"), 1.0],
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("profile", SCALES)
@pytest.mark.parametrize("name", LAYOUTS)
def test_extreme_scales(name, profile, dtype):
    weight = MAKE[name](*{"awq_cols": (32, 16, 16)}.get(name, (64, 8, 32)))
    values = torch.tensor(SCALES[profile], dtype=torch.float16, device=DEVICE)
    scales = values.repeat(weight.scales.numel() // 4).reshape(weight.scales.shape)
    weight = dataclasses.replace(weight, scales=scales)
    if name == "awq_quads":
        weight = dataclasses.replace(weight, qzeros=scales.flip(0))
    check(weight, dtype)


@pytest.mark.parametrize("scale", [2.0**-149, 2.0**-126, 3.0e38, -3.0e38, 1e-45])
def test_float32_scales_to_the_edge(scale):
    weight = cols(8, 16, 8, torch.float32)
    weight = dataclasses.replace(weight, scales=torch.full_like(weight.scales, scale))
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        check(weight, dtype)


def test_float32_scales_round_to_float32_first():
    """(15 - 0) * s is no float32; its float32 is a tie of float16, which then goes to even."""
    weight = cols(1, 8, 1, torch.float32)
    scale = np.float32(2049 / 15)
    assert np.float32(scale * np.float32(15)) == 2049
    assert scale.astype(np.float64) * 15 != 2049
    full = torch.full_like(weight.qweight, -1)
    weight = awq_cols.AWQColsWeight(full, full * 0, torch.full_like(weight.scales, float(scale)), 1)
    assert (run(weight, torch.float16) == 2048).all()
    check(weight, torch.float16)


@pytest.mark.parametrize("name", ["awq_cols", "awq_rows"])
def test_code_equal_to_zero_gives_zero_at_any_scale(name):
    """-zero * scale in float16 overflows here: https://github.com/vllm-project/vllm/pull/55532."""
    weight = MAKE[name](*{"awq_cols": (8, 8, 8)}.get(name, (64, 8, 64)))
    weight = type(weight)(
        torch.full_like(weight.qweight, -1),
        torch.full_like(weight.qzeros, -1),
        torch.full_like(weight.scales, 5000.0),
        weight.group_size,
    )
    got = run(weight, torch.float16)
    assert torch.equal(got.view(torch.int16), torch.zeros_like(got).view(torch.int16))


@pytest.mark.parametrize(("zero", "expected"), [(-(2.0**-24), 3074.0), (0.0, 3076.0), (2.0**-24, 3076.0)])
def test_quads_round_once(zero, expected):
    """3 * 1025 is a tie of float16 and swallows the scaled zero in float32, not in the exact sum."""
    weight = quads(64, 4, 64)
    weight = awq_quads.AWQQuadsWeight(
        torch.full_like(weight.qweight, 0x3333),
        torch.full_like(weight.scales, 1025.0),
        torch.full_like(weight.qzeros, zero),
        64,
    )
    assert (run(weight, torch.float16) == expected).all()
    check(weight, torch.bfloat16)


@pytest.mark.parametrize("name", LAYOUTS)
def test_strided_inputs_and_output(name):
    weight = MAKE[name](*{"awq_cols": (12, 40, 6)}.get(name, (64, 8, 32)))
    strided = weight
    for field in ("qweight", "qzeros", "scales"):
        strided = change(strided, field, lambda tensor: tensor.T.contiguous().T)
    first, second = weight.output_shape
    canvas = torch.full((first, second + 3), 7.0, dtype=torch.float16, device=DEVICE)
    out = canvas[:, :second]
    assert run(strided, torch.float16, out=out) is out
    assert differences(out, want(weight, torch.float16)) == 0
    assert (canvas[:, second:] == 7).all()


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("awq_cols", (0, 8, 4)),
        ("awq_cols", (4, 0, 4)),
        ("awq_rows", (64, 0, 64)),
        ("awq_quads", (64, 0, 64)),
    ],
)
def test_no_elements(name, shape):
    weight = MAKE[name](*shape)
    if shape[0] == 0:
        weight = dataclasses.replace(weight, qzeros=weight.qzeros[:0], scales=weight.scales[:0])
    assert run(weight, torch.float16).shape == weight.output_shape


def to(dtype: torch.dtype) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda tensor: tensor.to(dtype)


def transposed(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.T.contiguous()


COLS, ROWS, QUADS = (cols, 12, 40, 6), (rows, 64, 8, 32), (quads, 64, 8, 32)
# fmt: off
BAD: list[tuple[Any, str, Callable[[Any], Any], type[Exception], str]] = [
    (COLS, "qweight", to(torch.int64), TypeError,
     "qweight: expected dtype int32, found int64"),
    (COLS, "qweight", torch.flatten, ValueError,
     "qweight: expected 2 dimensions [K, N / 8], found shape [60]"),
    (COLS, "qweight", transposed, ValueError,
     "qzeros: expected shape [1, 12], found [2, 5]"),
    (COLS, "qzeros", lambda t: t[:1], ValueError,
     "qzeros: expected shape [2, 5], found [1, 5]"),
    (COLS, "qzeros", to(torch.float16), TypeError,
     "qzeros: expected dtype int32, found float16"),
    (COLS, "qzeros", lambda t: t.to("meta"), ValueError,
     "qzeros: expected device"),
    (COLS, "scales", transposed, ValueError,
     "scales: expected shape [2, 40], found [40, 2], which is transposed"),
    (COLS, "scales", to(torch.float64), TypeError,
     "scales: expected dtype one of float16, bfloat16, float32, found float64"),
    (COLS, "scales", lambda t: t[:, :39], ValueError,
     "scales: expected shape [2, 40], found [2, 39]"),
    (COLS, "group_size", lambda g: 5, ValueError,
     "group_size: expected -1, a divisor of K = 12, or at least K, found 5"),
    (COLS, "group_size", lambda g: 0, ValueError,
     "group_size: expected -1 or at least 1, found 0"),
    (COLS, "group_size", lambda g: -2, ValueError,
     "group_size: expected at least -1, found -2"),
    (COLS, "group_size", lambda g: 6.0, TypeError,
     "group_size: expected an int, found float"),
    (ROWS, "group_size", lambda g: 8, ValueError,
     "group_size: expected 16, 32, 64 or at least 128 (the layout defines no padding for others), found 8"),
    (ROWS, "group_size", lambda g: 128, ValueError,
     "group_size: expected a divisor of K = 64, found 128"),
    (ROWS, "qweight", lambda t: t[:, :6], ValueError,
     "group_size: expected a divisor of K = 48, found 32"),
    (ROWS, "qzeros", lambda t: t[:, :1], ValueError,
     "qzeros: expected shape [8, 4], found [8, 1]"),
    (ROWS, "scales", transposed, ValueError,
     "scales: expected shape [8, 32], found [32, 8], which is transposed"),
    (QUADS, "qweight", to(torch.int32), TypeError,
     "qweight: expected dtype int16, found int32"),
    (QUADS, "qweight", lambda t: t[:, :60], ValueError,
     "qweight: expected K a multiple of 64, found 60"),
    (QUADS, "qzeros", to(torch.int32), TypeError,
     "qzeros: expected dtype float16, found int32"),
    (QUADS, "scales", to(torch.bfloat16), TypeError,
     "scales: expected dtype float16, found bfloat16"),
    (QUADS, "scales", transposed, ValueError,
     "scales: expected shape [32, 8], found [8, 32], which is transposed"),
]
# fmt: on


@pytest.mark.parametrize(
    ("make", "field", "function", "error", "text"),
    BAD,
    ids=[f"{make[0].__name__}-{field}-{index}" for index, (make, field, *_) in enumerate(BAD)],
)
def test_bad_input(make, field, function, error, text):
    weight = change(make[0](*make[1:]), field, function)
    with pytest.raises(error) as caught:
        run(weight, torch.float16)
    assert text in str(caught.value)


@pytest.mark.parametrize("name", LAYOUTS)
def test_deep_validation_finds_non_finite_scales_but_not_in_the_padding(name):
    weight = MAKE[name](64, 8, 32)
    weight.validate(deep=True)
    weight.scales.view(-1)[0] = float("inf")
    weight.validate()
    with pytest.raises(ValueError, match=r"scales.*: expected finite values, found inf at flat index 0"):
        weight.validate(deep=True)


def test_padding_is_what_autoawq_makes_room_for():
    widths = {(64, 32): 32, (1024, 32): 32, (1056, 32): 64, (64, 64): 16, (1088, 64): 32}
    widths |= {(128, 128): 8, (1152, 128): 16, (264, 132): 8, (16, 16): 64}
    assert {key: padded_groups(*key) for key in widths} == widths


def test_another_layouts_weight_is_refused():
    with pytest.raises(TypeError, match="weight: expected AWQRowsWeight, found AWQColsWeight"):
        awq_rows.dequantize(cols(8, 8, 8), dtype=torch.float16)  # type: ignore[arg-type]
