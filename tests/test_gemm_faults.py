"""Faults of the int8 matrix product: caught by the suite's own strategies, named, and told apart."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from conformance.bits import DTYPES, from_bits, same
from conformance.faults import Context
from conformance.materialize import materialize
from oracles.spec.rounding import round_to
from tests.harness_runs import FORMATS, drawn, judge
from tests.mutants import caught, mutant

STEPS = ("gemm_quantize", "gemm_accumulate", "gemm_epilogue")
WHOLE = ("gemm_int8", "gemm_dynamic")
FAULTS = {name: {fault.name: fault for fault in FORMATS[name].faults} for name in (*STEPS, *WHOLE)}
# Shown by the cases in ``large`` alone, whose sums or rows are long enough.
LONG = {
    "gemm_accumulate": {
        "sum-fp32": "M=2,N=3,K=1101,a=max,b=max",
        "sum-int32-saturates": "M=1,N=1,K=131072,a=top,b=top",
    },
    "gemm_quantize": {
        "extremes-of-first-512": "M=3,K=1100,x=last(1)",
        "extremes-of-first-1024": "M=3,K=1100,x=last(1)",
    },
}
# More than the default number of cases; the suite has 60 for each of three output dtypes, and the
# frozen cases.
RARE = {
    "a-transposed": 500,
    "b-transposed": 300,
    "k-last-tile-only-256": 400,
    "k-tail-skipped-128": 200,
    "k-tail-clamped-128": 200,
    "k-tail-overlaps-128": 300,
    "codes-by-127-over-absmax": 500,
    "extremes-of-first-128": 300,
    "bias-after-rounding": 200,
    "bf16-half-away": 500,
    "accumulator-truncated": 300,
    "zero-in-floats": 300,
}
ONE_BY_ONE = [(name, fault) for name in STEPS for fault in FAULTS[name] if fault not in LONG.get(name, {})]


@pytest.mark.parametrize(("name", "fault"), ONE_BY_ONE)
def test_fault_is_caught_and_named(name, fault):
    verdict = caught(name, FAULTS[name][fault], RARE.get(fault, 100))
    assert verdict.kind in ("MISMATCH", "NONFINITE_CLASS")
    assert verdict.located
    assert fault in [cause.name for cause in verdict.causes]


@pytest.mark.parametrize(
    ("name", "fault", "fields"), [(n, f, fields) for n, rows in LONG.items() for f, fields in rows.items()]
)
def test_long_case_shows_it(name, fault, fields):
    assert fields in FORMATS[name].large
    verdict = judge(mutant(FORMATS[name], FAULTS[name][fault]), f"{name}:{fields},out=fp32").verdict
    assert verdict.kind == "MISMATCH"
    assert fault in [cause.name for cause in verdict.causes]


def differences(name: str) -> dict[str, int]:
    """In how many of the suite's cases each fault of a format shows."""
    fmt = FORMATS[name]
    found = dict.fromkeys(FAULTS[name], 0)
    for out in DTYPES:
        frozen = [fmt.parse(text).replace(out=out) for text in (*fmt.tile_cases, *fmt.large)]
        for case in (*drawn(name, 150, out=out), *frozen):
            weight, _ = materialize(fmt, case)
            model = fmt.unpack(weight)
            want = round_to(model.values(), DTYPES[out])
            for fault in fmt.faults:
                bits = fault.decode(Context(weight, model, DTYPES[out]))
                found[fault.name] += bits is not None and not same(bits, want, DTYPES[out]).all()
    return found


@pytest.mark.parametrize("name", WHOLE)
def test_every_fault_of_the_whole_shows_in_the_suite(name):
    # Only a K that no activation tensor of today has makes a sum leave int32.
    never = {"sum-int32-saturates"}
    assert {fault for fault, count in differences(name).items() if not count} <= never


# Cases that no other fault explains.
NAMED = [
    ("gemm_quantize", "round-half-up", "M=3,K=33,x=ties(1)"),
    ("gemm_quantize", "round-truncate", "M=3,K=33"),
    ("gemm_quantize", "round-half-then-truncate", "M=3,K=33"),
    ("gemm_quantize", "scale-of-next-row-wrapped", "M=3,K=33"),
    ("gemm_quantize", "scale-of-previous-row-wrapped", "M=3,K=33"),
    ("gemm_quantize", "extremes-of-tensor", "M=3,K=33"),
    ("gemm_quantize", "extremes-of-first-32", "M=3,K=100,x=last(1)"),
    ("gemm_quantize", "levels-127.5", "M=3,K=33"),
    ("gemm_quantize", "scale-of-next-row", "M=3,K=33"),
    ("gemm_quantize", "codes-by-scale-of-next-row", "M=3,K=33"),
    ("gemm_quantize", "scale-through-fp16", "M=8,K=64,x=near(1),xdtype=fp32"),
    ("gemm_quantize", "stored-scale-through-fp16", "M=8,K=64,x=near(1),xdtype=fp32"),
    ("gemm_quantize", "clamp-missing", "M=3,K=33,x=ties(1),rule=full"),
    ("gemm_quantize", "inverse-one-ulp-high", "M=8,K=64,x=near(1),xdtype=fp32"),
    ("gemm_quantize", "codes-by-division", "M=8,K=64,x=near(1),xdtype=fp32"),
    ("gemm_quantize", "codes-by-127-over-absmax", "M=8,K=64,x=near(1),xdtype=fp32"),
    ("gemm_quantize", "zero-truncated", "M=3,K=33,rule=minmax"),
    ("gemm_quantize", "absmax-decoded-by-division", "M=3,K=33,rule=absmax"),
    ("gemm_accumulate", "sum-int8", "M=3,N=9,K=33"),
    ("gemm_accumulate", "sum-int16-wraps", "M=3,N=9,K=33"),
    ("gemm_accumulate", "sum-int16-saturates", "M=3,N=9,K=33"),
    ("gemm_accumulate", "sum-pairs-saturate-int16", "M=3,N=9,K=33,codes=uint8"),
    ("gemm_accumulate", "sum-fp16", "M=3,N=9,K=33"),
    ("gemm_accumulate", "a-other-signedness", "M=3,N=9,K=33"),
    ("gemm_accumulate", "a-shift-not-restored", "M=3,N=9,K=33,codes=uint8"),
    ("gemm_accumulate", "b-transposed", "M=3,N=16,K=16"),
    ("gemm_accumulate", "a-transposed", "M=16,N=9,K=16"),
    ("gemm_accumulate", "result-transposed", "M=8,N=8,K=33"),
    ("gemm_accumulate", "k-tail-clamped-16", "M=3,N=9,K=41"),
    ("gemm_epilogue", "zero-sign-flipped", "M=3,N=9,azero=token,aper=token"),
    ("gemm_epilogue", "zero-sums-unscaled", "M=3,N=9,azero=token,aper=token"),
    ("gemm_epilogue", "zero-other-signedness", "M=3,N=9,azero=token,aper=token"),
    ("gemm_epilogue", "zero-of-next-token", "M=3,N=9,azero=token,aper=token"),
    ("gemm_epilogue", "scales-swapped", "M=8,N=8,aper=token"),
    ("gemm_epilogue", "a-scale-of-next", "M=3,N=9,aper=token"),
    ("gemm_epilogue", "a-scale-of-next-wrapped", "M=3,N=9,aper=token"),
    ("gemm_epilogue", "w-scale-of-previous-wrapped", "M=3,N=9,aper=token"),
    ("gemm_epilogue", "w-scale-of-first", "M=3,N=9,aper=token"),
    ("gemm_epilogue", "result-truncated-to-integer", "M=8,N=33,bias=fp32,aper=token"),
    ("gemm_epilogue", "result-rounded-to-integer", "M=8,N=33,aper=token"),
    ("gemm_epilogue", "result-rounded-to-integer", "M=8,N=33,bias=fp32,aper=token"),
    ("gemm_epilogue", "bias-before-scales", "M=3,N=9,bias=fp32,aper=token"),
    ("gemm_epilogue", "bias-by-row", "M=8,N=8,bias=fp32,aper=token"),
    ("gemm_epilogue", "bias-twice", "M=3,N=9,bias=fp32,aper=token"),
    ("gemm_epilogue", "bias-fused", "M=8,N=33,bias=fp32,aper=token"),
    ("gemm_epilogue", "scales-multiplied-first", "M=8,N=33,aper=token"),
    ("gemm_epilogue", "weight-scale-first", "M=8,N=33,aper=token"),
    ("gemm_epilogue", "accumulator-truncated", "M=8,N=33,acc=ties(1),aper=token"),
    ("gemm_epilogue", "absmax-constant-6.200124e-05", "M=3,N=9,order=absmax,aper=token"),
    ("gemm_int8", "sum-int16-wraps", "M=3,N=9,K=33,aper=token"),
    ("gemm_int8", "zero-sums-unscaled", "M=3,N=9,K=33,azero=token,aper=token"),
    ("gemm_int8", "zero-after-scales", "M=8,N=9,K=33,azero=token,aper=token"),
    ("gemm_int8", "bias-twice", "M=3,N=9,K=33,bias=fp16,aper=token"),
    ("gemm_int8", "w-scale-of-next", "M=3,N=9,K=33,aper=token"),
    ("gemm_dynamic", "round-half-up", "M=3,N=9,K=33,x=ties(1),rule=scale"),
    ("gemm_dynamic", "extremes-of-tensor", "M=3,N=9,K=33"),
    ("gemm_dynamic", "codes-by-scale-of-next-row", "M=3,N=9,K=33"),
    ("gemm_dynamic", "sum-int16-wraps", "M=3,N=9,K=33"),
    ("gemm_int8", "result-rounded-to-integer", "M=3,N=9,K=33,aper=token"),
    ("gemm_int8", "a-scale-of-next-wrapped", "M=3,N=9,K=33,aper=token"),
    ("gemm_dynamic", "bias-before-scales", "M=3,N=9,K=33,bias=fp32"),
    ("gemm_dynamic", "round-half-then-truncate", "M=3,N=9,K=33,rule=scale"),
    ("gemm_dynamic", "a-scale-of-previous-wrapped", "M=3,N=9,K=33"),
]


@pytest.mark.parametrize(("name", "fault", "fields"), NAMED)
def test_fault_is_the_only_cause_named(name, fault, fields):
    verdict = judge(mutant(FORMATS[name], FAULTS[name][fault]), f"{name}:{fields},out=fp32").verdict
    assert verdict.kind == "MISMATCH"
    assert [cause.name for cause in verdict.causes] == [fault]


def test_a_result_that_was_an_integer_for_a_while_is_named():
    """As a kernel does it, without a bias and with one: a cast to int32 has no -0."""
    fmt = FORMATS["gemm_int8"]
    for fields, name in (
        ("M=3,N=9,K=33,aper=token", "product-truncated-to-integer"),
        ("M=3,N=9,K=33,aper=token,bias=fp16", "result-truncated-to-integer"),
    ):

        def cast(weight, *, dtype):
            values = torch.from_numpy(fmt.unpack(weight).values())
            return values.to(torch.int32).to(dtype)

        verdict = judge(cast, f"gemm_int8:{fields},out=fp32").verdict
        assert name in [cause.name for cause in verdict.causes]


def test_the_step_that_is_wrong_is_the_one_that_is_named():
    """One fault in each step, seen through the whole product alone."""
    for fault, kind in (
        ("round-truncate", "gemm_quantize"),
        ("k-tail-skipped-32", "gemm_accumulate"),
        ("a-scale-of-next", "gemm_epilogue"),
    ):
        run = mutant(FORMATS["gemm_dynamic"], FAULTS["gemm_dynamic"][fault])
        verdict = judge(run, "gemm_dynamic:M=3,N=9,K=57,out=fp32").verdict
        assert fault in [cause.name for cause in verdict.causes]
        assert {cause.name for cause in verdict.causes} <= set(FAULTS[kind])


def test_ties_away_from_zero_look_like_an_inverse_that_is_too_high():
    run = mutant(FORMATS["gemm_quantize"], FAULTS["gemm_quantize"]["round-half-away"])
    verdict = judge(run, "gemm_quantize:M=3,K=33,x=ties(1),out=fp32").verdict
    assert [cause.name for cause in verdict.causes] == ["round-half-away", "inverse-one-ulp-high"]
    verdict = judge(run, "gemm_quantize:M=8,K=64,x=near(1),xdtype=fp32,out=fp32").verdict
    assert [cause.name for cause in verdict.causes] == ["round-half-away"]


@pytest.mark.parametrize(
    ("name", "fault", "fields", "words"),
    [
        ("gemm_quantize", "levels-128", "M=3,K=33", "token 0, element 0, x "),
        ("gemm_accumulate", "sum-int8", "M=3,N=9,K=33", "token 0, channel 0, byte 1 of accumulator"),
        (
            "gemm_epilogue",
            "zero-ignored",
            "M=3,N=9,azero=token,aper=token",
            "token 0, channel 0, accumulator",
        ),
        ("gemm_int8", "bias-missing", "M=3,N=9,bias=fp16,aper=token", ", bias "),
    ],
)
def test_report_says_where(name, fault, fields, words):
    verdict = judge(mutant(FORMATS[name], FAULTS[name][fault]), f"{name}:{fields},out=fp32").verdict
    assert words in verdict.located[0].where


@pytest.mark.parametrize("name", [*STEPS, *WHOLE])
def test_right_decoder_is_exact(name):
    def right(weight, *, dtype):
        return from_bits(round_to(FORMATS[name].unpack(weight).values(), dtype), dtype)

    assert judge(right, f"{name}:", oracles=None).verdict.kind == "EXACT"


@pytest.mark.parametrize("name", [*STEPS, *WHOLE])
def test_names_are_distinct(name):
    assert len(FAULTS[name]) == len(FORMATS[name].faults)


def test_faults_say_when_they_cannot_show():
    fmt = FORMATS["gemm_int8"]
    weight = fmt.words(fmt.parse("M=2,N=3,K=32,aper=tensor,wper=tensor"))
    ctx = Context(weight, fmt.unpack(weight), torch.float32)
    silent = {name for name, fault in FAULTS["gemm_int8"].items() if fault.decode(ctx) is None}
    assert {
        "zero-ignored",
        "bias-missing",
        "a-scale-of-next",
        "w-scale-of-first",
        "scales-swapped",
        "a-shift-not-restored",
        "b-transposed",
        "k-tail-skipped-32",
        "absmax-as-scale",
    } <= silent


def test_bytes_tell_accumulators_apart_that_a_float_view_does_not():
    """0x7FC00001 and 0x7FC00002 are both NaN as float32."""
    fmt = FORMATS["gemm_accumulate"]
    weight = fmt.words(fmt.parse("M=1,N=1,K=1"))
    right = fmt.unpack(weight)
    one, two = (dataclasses.replace(right, acc=np.array([[number]])) for number in (0x7FC00001, 0x7FC00002))
    assert not np.array_equal(one.values(), two.values())
