"""Faults of the fp8 product and of the cast: caught by the suite's own strategies, named, and told apart."""

from __future__ import annotations

import pytest
import torch

from conformance.bits import DTYPES, from_bits, same
from conformance.faults import Context
from conformance.materialize import materialize
from oracles.spec.rounding import round_to
from tests.harness_runs import FORMATS, drawn, judge
from tests.mutants import caught, mutant

NAMES = ("gemm_cast_fp8", "gemm_fp8")
FAULTS = {name: {fault.name: fault for fault in FORMATS[name].faults} for name in NAMES}
# More than the default number of cases; the suite has 60 for each of three output dtypes, and the
# frozen cases.
RARE = {
    "bias-after-rounding": 200,
    "bf16-half-away": 300,
    "codes-by-inverse": 200,
    "codes-by-448-over-absmax": 200,
    "saturation-missing": 200,
}


@pytest.mark.parametrize(("name", "fault"), [(name, fault) for name in NAMES for fault in FAULTS[name]])
def test_fault_is_caught_and_named(name, fault):
    verdict = caught(name, FAULTS[name][fault], RARE.get(fault, 100))
    assert verdict.kind in ("MISMATCH", "NONFINITE_CLASS")
    assert verdict.located
    assert fault in [cause.name for cause in verdict.causes]


# Cases that no other fault explains.
NAMED = [
    ("gemm_fp8", "codes-read-as-e4m3fnuz", "M=3,N=9,K=33"),
    ("gemm_fp8", "codes-read-as-e5m2", "M=3,N=9,K=33"),
    ("gemm_fp8", "subnormals-with-implicit-one", "M=3,N=9,K=33"),
    ("gemm_fp8", "subnormals-flushed", "M=3,N=9,K=33,a=ramp"),
    ("gemm_fp8", "nan-code-is-480", "M=3,N=9,K=33,a=nan(1)"),
    ("gemm_fp8", "k-tail-skipped-16", "M=3,N=9,K=60"),
    ("gemm_fp8", "k-tail-skipped-32", "M=3,N=9,K=52"),
    ("gemm_fp8", "k-tail-skipped-128", "M=3,N=9,K=192"),
    ("gemm_fp8", "k-last-block-only", "M=3,N=9,K=256"),
    ("gemm_fp8", "k-block-scale-of-first", "M=3,N=9,K=400,aper=block,wper=block"),
    ("gemm_fp8", "k-block-scale-of-tile-256", "M=3,N=9,K=400,aper=block,wper=block"),
    ("gemm_fp8", "k-last-block-unscaled", "M=3,N=9,K=200,aper=block,wper=block"),
    ("gemm_fp8", "k-block-by-extent", "M=3,N=9,K=200,aper=block,wper=block"),
    ("gemm_fp8", "w-block-by-extent", "M=3,N=257,K=200,wper=block"),
    ("gemm_fp8", "w-last-block-scale-previous", "M=3,N=300,K=200,wper=block"),
    ("gemm_fp8", "w-block-scales-transposed", "M=3,N=256,K=256,wper=block"),
    ("gemm_fp8", "a-block-scales-transposed", "M=3,N=9,K=384,aper=block"),
    ("gemm_fp8", "a-scale-of-next", "M=3,N=9,K=33"),
    ("gemm_fp8", "w-scale-inverted", "M=3,N=9,K=33"),
    ("gemm_fp8", "scale-product-in-bf16", "M=3,N=9,K=33"),
    ("gemm_fp8", "weight-scale-first", "M=8,N=33,K=33"),
    ("gemm_fp8", "block-sum-fused", "M=8,N=33,K=300,aper=block,wper=block"),
    ("gemm_fp8", "sum-bf16", "M=3,N=9,K=200,a=random(1)"),
    ("gemm_fp8", "bias-before-scales", "M=3,N=9,K=33,bias=fp32"),
    ("gemm_fp8", "bias-of-each-k-block", "M=3,N=9,K=300,bias=fp32"),
    ("gemm_cast_fp8", "round-half-away", "M=8,K=64,x=codes(1),xdtype=fp32"),
    ("gemm_cast_fp8", "round-truncate", "M=3,K=33"),
    ("gemm_cast_fp8", "rounded-through-bf16", "M=8,K=64,x=last(1),xdtype=fp32"),
    ("gemm_cast_fp8", "saturation-missing", "M=3,K=33,per=tensor,scales=small(1)"),
    ("gemm_cast_fp8", "saturates-at-256", "M=8,K=64,x=codes(1),xdtype=fp32"),
    ("gemm_cast_fp8", "subnormals-truncated", "M=8,K=64,x=codes(1),xdtype=fp32"),
    ("gemm_cast_fp8", "cast-to-e5m2", "M=3,K=33"),
    ("gemm_cast_fp8", "zeros-divided-by-zero", "M=3,K=33,x=holes(1)"),
    ("gemm_cast_fp8", "k-block-by-extent", "M=3,K=200,per=block"),
    ("gemm_cast_fp8", "codes-by-scale-of-next-row", "M=3,K=33"),
    ("gemm_cast_fp8", "scale-power-of-two", "M=3,K=33"),
]


@pytest.mark.parametrize(("name", "fault", "fields"), NAMED)
def test_fault_is_the_only_cause_named(name, fault, fields):
    verdict = judge(mutant(FORMATS[name], FAULTS[name][fault]), f"{name}:{fields},out=fp32").verdict
    assert verdict.kind in ("MISMATCH", "NONFINITE_CLASS")
    assert [cause.name for cause in verdict.causes] == [fault]


@pytest.mark.parametrize("name", NAMES)
def test_every_fault_shows_in_the_suite(name):
    fmt = FORMATS[name]
    shown = set()
    for out in DTYPES:
        frozen = [fmt.parse(text).replace(out=out) for text in (*fmt.tile_cases, *fmt.large)]
        for case in (*drawn(name, 60, out=out), *frozen):
            weight, _ = materialize(fmt, case)
            ctx = Context(weight, fmt.unpack(weight), DTYPES[out])
            want = round_to(ctx.model.values(), DTYPES[out])
            for fault in fmt.faults:
                if fault.name not in shown:
                    bits = fault.decode(ctx)
                    if bits is not None and not same(bits, want, DTYPES[out]).all():
                        shown.add(fault.name)
    assert shown == set(FAULTS[name])


@pytest.mark.parametrize("name", NAMES)
def test_right_decoder_is_exact(name):
    def right(weight, *, dtype):
        return from_bits(round_to(FORMATS[name].unpack(weight).values(), dtype), dtype)

    assert judge(right, f"{name}:").verdict.kind == "EXACT"


@pytest.mark.parametrize("name", NAMES)
def test_names_are_distinct(name):
    assert len(FAULTS[name]) == len(FORMATS[name].faults)


def test_faults_say_when_they_cannot_show():
    fmt = FORMATS["gemm_fp8"]
    weight = fmt.words(fmt.parse("M=2,N=3,K=32,aper=tensor,wper=tensor"))
    ctx = Context(weight, fmt.unpack(weight), torch.float32)
    silent = {name for name, fault in FAULTS["gemm_fp8"].items() if fault.decode(ctx) is None}
    assert {
        "a-scale-of-next",
        "w-scale-of-first",
        "k-tail-skipped-32",
        "k-block-scale-of-first",
        "w-block-by-extent",
        "w-block-scales-transposed",
        "block-sum-fused",
        "bias-missing",
        "a-transposed",
        "activation-scale-first",
    } <= silent


def test_report_says_where():
    run = mutant(FORMATS["gemm_fp8"], FAULTS["gemm_fp8"]["w-scale-ignored"])
    verdict = judge(run, "gemm_fp8:M=3,N=9,K=200,aper=block,wper=block,bias=fp32,out=fp32").verdict
    where = verdict.located[0].where
    assert where.startswith("token 0, channel 0, sums ")
    assert ", bias " in where
    run = mutant(FORMATS["gemm_cast_fp8"], FAULTS["gemm_cast_fp8"]["round-truncate"])
    where = judge(run, "gemm_cast_fp8:M=3,K=33,out=fp32").verdict.located[0].where
    assert ", code 0x" in where
    assert ", scale " in where
