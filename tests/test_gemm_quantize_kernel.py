"""gemm_quantize: codes, scales and zero points to the bit, ties, corners, and how far values may be off."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest
import torch

from conformance.formats._gemm import FINITE, RULES, activations
from conformance.patterns import Pattern
from kernels.gemm_quantize import QuantizeInput, code_range, quantize, round_trip
from oracles.spec.gemm_quantize import floats, quantized
from tests.kernel_weights import DEVICE, DTYPES

INF = float("inf")

if DEVICE.type == "cpu":
    # Of the interpreter's bfloat16, casts of subnormal numbers are wrong.
    from conformance import interpreter

    interpreter.correct()

# The interpreter computes with NumPy, which warns where hardware gives inf or NaN in silence.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def make(rule: str, x: torch.Tensor) -> QuantizeInput:
    name, signed = RULES[rule]
    return QuantizeInput(x.to(DEVICE), name, signed)  # type: ignore[arg-type]


def drawn(name: str, dtype: torch.dtype, shape: tuple[int, int] = (9, 67)) -> torch.Tensor:
    numbered = name not in ("zeros", "ones", "ramp")
    return activations(Pattern(name, 3 if numbered else None), shape, dtype)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("pattern", [*FINITE, "inf", "nan"])
def test_codes_scales_and_zeros(rule, dtype, pattern):
    weight = make(rule, drawn(pattern, dtype))
    model = quantized(weight)
    for rows, cols in ((16, 128), (2, 16)):
        got = quantize(weight, rows=rows, cols=cols)
        assert got.codes.dtype == (torch.int8 if weight.signed else torch.uint8)
        assert np.array_equal(got.codes.cpu().numpy(), model.codes)
        assert np.array_equal(got.scale.cpu().numpy(), model.scale)
        if got.zero is None:
            assert not model.zero.any()
        else:
            assert np.array_equal(got.zero.cpu().numpy(), model.zero)
        back = round_trip(weight, dtype=torch.float32, rows=rows, cols=cols)
        assert np.array_equal(back.cpu().numpy(), model.values(), equal_nan=True)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("pattern", FINITE)
def test_values_are_within_half_a_step(rule, dtype, pattern):
    """The bound of the text: half a step and 2**-14 of one, where the scale is a normal number and 128
    of it are finite."""
    weight = make(rule, drawn(pattern, dtype, (30, 200)))
    model = quantized(weight)
    limits = np.finfo(np.float32)
    normal = (model.scale >= 127 * limits.tiny) & (model.scale <= limits.max / 128)
    error = np.abs(model.values().astype(np.float64) - floats(weight))[normal]
    assert (error <= model.steps()[normal] * (0.5 + 2.0**-14)).all()
    assert normal.any() or pattern in ("zeros", "tiny", "huge")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_ties_go_to_even(dtype):
    x = torch.tensor([[127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 125.5, 126.5]], dtype=dtype)
    for rule in ("scale", "absmax"):
        assert quantize(make(rule, x)).codes.tolist() == [[127, 0, 2, 2, 0, -2, -2, 126, 126]]


def test_the_pattern_of_ties_is_made_of_ties():
    weight = make("scale", drawn("ties", torch.bfloat16, (20, 100)))
    steps = floats(weight) / quantized(weight).scale[:, None]
    assert (np.abs(steps - np.trunc(steps)) == 0.5).mean() > 0.3


def test_near_ties_are_within_an_ulp():
    weight = make("scale", drawn("near", torch.float32, (20, 100)))
    steps = np.abs(floats(weight).astype(np.float64) / quantized(weight).scale[:, None])
    off = np.abs(steps - np.trunc(steps) - 0.5)
    assert ((off > 0) & (off < 2.0**-16)).mean() > 0.3


def test_rules_differ_where_the_text_says():
    x = torch.tensor([[-1.0, 0.0, 0.25]])
    low, high = -1.0, 0.25
    assert quantize(make("scale", x)).scale.item() == np.float32(1) / np.float32(127)
    assert quantize(make("full", x)).scale.item() == np.float32(1) / np.float32(127.5)
    assert quantize(make("absmax", x)).scale.item() == 1.0
    made = quantize(make("minmax-u8", x))
    assert made.zero is not None
    assert made.scale.item() == np.float32(high - low) / np.float32(255)
    assert made.codes.tolist() == [[0, 204, 255]]
    assert made.zero.item() == 204
    assert [code_range(*RULES[rule]) for rule in RULES] == [
        (-127, 127),
        (-128, 127),
        (-127, 127),
        (-128, 127),
        (0, 255),
    ]


@pytest.mark.parametrize("rule", RULES)
def test_rows_of_zeros_decode_to_zero(rule):
    got = round_trip(make(rule, torch.zeros(3, 40)), dtype=torch.float32)
    assert torch.equal(got.cpu().view(torch.int32), torch.zeros(3, 40, dtype=torch.int32))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("value", [INF, -INF, float("nan")])
def test_a_row_that_is_not_finite_is_nan_and_no_other(rule, value):
    x = torch.ones(3, 40)
    x[1, 7] = value
    weight = make(rule, x)
    got = round_trip(weight, dtype=torch.float32, cols=16)
    assert bool(got[1].isnan().all())
    assert bool(got[[0, 2]].isfinite().all())
    with pytest.raises(ValueError, match=r"^x: expected finite values, found .* at flat index 47$"):
        weight.validate(deep=True)


@pytest.mark.parametrize(
    ("changes", "error", "sentence"),
    [
        ({"x": torch.zeros(3)}, ValueError, "x: expected 2 dimensions, found shape [3]"),
        (
            {"x": torch.zeros(3, 4, dtype=torch.int8)},
            TypeError,
            "x: expected dtype one of float16, bfloat16, float32, found int8",
        ),
        (
            {"x": torch.zeros(3, 0)},
            ValueError,
            "x: expected at least one element a row, found shape [3, 0]",
        ),
        ({"rule": "max"}, ValueError, "rule: expected one of scale, full, absmax, minmax, found 'max'"),
        ({"signed": 1}, TypeError, "signed: expected a bool, found int"),
        ({"signed": False}, ValueError, "signed: expected True with rule scale, found False"),
    ],
)
def test_bad_input(changes, error, sentence):
    weight = dataclasses.replace(make("scale", torch.ones(3, 4)), **changes)
    for run in (quantize, lambda given: round_trip(given, dtype=torch.float16)):
        with pytest.raises(error, match=f"^{re.escape(sentence)}$"):
            run(weight)


@pytest.mark.parametrize("option", ["rows", "cols", "num_warps"])
def test_tile_sizes_that_cannot_be_launched(option):
    with pytest.raises(ValueError, match=rf"^{option}: expected a power of two, found 3$"):
        quantize(make("scale", torch.ones(3, 4)), **{option: 3})
