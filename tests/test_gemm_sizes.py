"""The fixed cases reach the sizes of layers, and the values that a bias can have."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from conformance.bits import from_bits
from conformance.formats._gemm import WHOLE_DEPTHS
from conformance.formats._gemm_bias import BIAS_PATTERNS, bias_values
from conformance.patterns import Pattern
from oracles.spec.rounding import round_to
from tests.harness_runs import FORMATS, drawn, harness

PRODUCTS = ("gemm_accumulate", "gemm_int8", "gemm_dynamic")
BIASED = ("gemm_epilogue", "gemm_int8", "gemm_dynamic")
FIXED = ("tile_cases", "large", "nonfinite")


def first_failing(name: str, change: Callable[[Any], Any], fixed: tuple[str, ...] = FIXED) -> str:
    """Id of the first fixed case on which a kernel fails that decodes ``change`` of the model."""
    fmt = FORMATS[name]

    def kernel(weight, *, dtype):
        return from_bits(round_to(change(fmt.unpack(weight)).values(), dtype), dtype)

    run = harness(kernel)
    for text in (text for kind in fixed for text in getattr(fmt, kind)):
        verdict = run.judge(fmt.parse(text).replace(out="fp32")).verdict
        if verdict.failed:
            assert verdict.kind in ("MISMATCH", "NONFINITE_CLASS")
            return verdict.case.id
    return ""


def shallower(depth: Callable[[int], int]) -> Callable[[Any], Any]:
    """Sums over the first ``depth(K)`` of K."""

    def change(model):
        k = depth(model.a.shape[1])
        sums = model.a[:, :k] @ model.b[:, :k].T
        return dataclasses.replace(model, acc=sums)

    return change


def spoiled(rows: Callable[[int], bool], first_column: int) -> Callable[[Any], Any]:
    """Sums of 1 where the number of rows is such, from a column on."""

    def change(model):
        sums = model.a @ model.b.T
        if rows(len(sums)):
            sums[:, first_column:] = 1
        return dataclasses.replace(model, acc=sums)

    return change


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize(
    "change",
    [
        spoiled(lambda m: 18 <= m <= 32, 0),
        spoiled(lambda m: 34 <= m <= 69, 0),
        spoiled(lambda m: 70 < m <= 96, 0),
        spoiled(lambda m: m > 96, 0),
        spoiled(lambda m: True, 130),
        spoiled(lambda m: True, 1000),
        shallower(lambda k: k - 1 if 257 < k < 1101 else k),
        shallower(lambda k: k - 256 if k > 256 and k % 256 == 0 else k),
        shallower(lambda k: k // 2 if k % 512 == 0 else k),
        shallower(lambda k: min(k, 3600)),
    ],
    ids=[
        "M 18..32",
        "M 34..69",
        "M 71..96",
        "M above 96",
        "N above 130",
        "N above 1000",
        "K 258..1100",
        "K of whole 256",
        "K of whole 512",
        "K above 3600",
    ],
)
def test_sizes_of_layers_are_fixed_cases(name, change):
    assert first_failing(name, change, ("tile_cases", "large"))


@pytest.mark.parametrize("name", PRODUCTS)
def test_drawn_depths_are_whole_tiles_too(name):
    assert set(WHOLE_DEPTHS) <= {case["K"] for case in drawn(name, 300, M=1)}


# --- bias -----------------------------------------------------------------------------------------


def with_bias(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Any], Any]:
    def changed(model):
        bias = model.bias
        with np.errstate(all="ignore"):
            return model if bias is None else dataclasses.replace(model, bias=change(bias))

    return changed


def _fixed_point(bias):
    return np.clip(np.rint(np.nan_to_num(bias) * 4096), -32768, 32767).astype(np.float32) / 4096


def _two_bf16(bias):
    whole = torch.from_numpy(bias)
    high = whole.bfloat16().float()
    low = (whole - high).bfloat16().float()
    return torch.where(torch.isfinite(whole), high + low, whole).numpy()


def _flushed(bias):
    return np.where(
        np.abs(bias) < np.finfo(np.float32).smallest_normal, np.copysign(np.float32(0), bias), bias
    )


def _without_sign_of_zero(bias):
    return bias + np.float32(0)


@pytest.mark.parametrize("name", BIASED)
@pytest.mark.parametrize(
    ("change", "pattern"),
    [
        (_fixed_point, "bvals=fine"),
        (_two_bf16, "bvals=fine"),
        (_flushed, "bvals=tiny"),
        (_without_sign_of_zero, "bvals=negzero"),
        (lambda bias: np.clip(bias, -65504, 65504), "bvals="),
        (np.nan_to_num, "bvals="),
        (lambda bias: np.where(np.isnan(bias), np.float32(0), bias), "bvals=nan"),
        (lambda bias: np.where(np.isinf(bias), np.float32(np.nan), bias), "bvals=inf"),
    ],
    ids=["fixed point", "two bf16", "flushed", "no -0", "clamped", "nan_to_num", "NaN is 0", "inf is NaN"],
)
def test_bias_that_is_not_the_stored_one(name, change, pattern):
    assert pattern in first_failing(name, with_bias(change))


@pytest.mark.parametrize("name", BIASED)
def test_fixed_cases_have_a_bias_that_is_not_finite(name):
    fields = "".join(FORMATS[name].nonfinite)
    assert "bvals=inf" in fields
    assert "bvals=nan" in fields


@pytest.mark.parametrize("name", BIASED)
def test_every_finite_bias_is_drawn(name):
    patterns = {case["bvals"].name for case in drawn(name, 100, bias="fp32")}
    assert patterns == set(BIAS_PATTERNS) - {"inf", "nan"}


@pytest.mark.parametrize("pattern", BIAS_PATTERNS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_bias_patterns(pattern, dtype):
    bias = bias_values(Pattern(pattern, 3 if BIAS_PATTERNS[pattern] else None), 400, dtype)
    info, magnitude = torch.finfo(dtype), bias.double().abs()
    assert bias.dtype == dtype
    assert bool(torch.isfinite(bias).all()) == (pattern not in ("inf", "nan"))
    assert bool(torch.isnan(bias).any()) == (pattern == "nan")
    assert set(bias[torch.isinf(bias)].tolist()) == (
        {float("inf"), -float("inf")} if pattern == "inf" else set()
    )
    zeros = torch.signbit(bias[bias == 0]).tolist()
    if pattern == "negzero":
        assert zeros == [True] * 400
    elif pattern == "mixed":
        assert set(zeros) == {True, False}
    if pattern != "negzero":
        assert bool((bias < 0).any())
        assert bool((bias > 0).any())
    if pattern == "tiny":
        assert bool((magnitude < info.smallest_normal).any())
        assert float(magnitude.max()) >= info.smallest_normal
    if pattern == "huge":
        assert float(magnitude.min()) > info.max / 32
        assert float(magnitude.max()) > info.max / 2
    if pattern == "fine" and dtype is torch.float32:
        assert bool((bias.view(torch.int32) & 1).all())
