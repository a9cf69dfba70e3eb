"""Faults of int8_affine: caught by the suite's own strategy, named, and told apart."""

from __future__ import annotations

import pytest
import torch

from conformance.bits import from_bits
from conformance.faults import Context
from oracles.spec.rounding import round_to
from tests.harness_runs import FORMATS, judge
from tests.mutants import caught, mutant

FMT = FORMATS["int8_affine"]
FAULTS = {fault.name: fault for fault in FMT.faults}
# More than the default number of cases; the suite has 60 for each of three output dtypes, the
# frozen cases and a hundred from real layers.
RARE = {"bf16-half-away": 300, "group-of-tile-1024": 0, "clamped-to-127": 120, "zero-times-scale-fused": 120}


@pytest.mark.parametrize("name", [name for name in FAULTS if RARE.get(name, 1)])
def test_fault_is_caught_and_named(name):
    verdict = caught("int8_affine", FAULTS[name], RARE.get(name, 100))
    assert verdict.kind in ("MISMATCH", "NONFINITE_CLASS")
    assert verdict.located
    assert name in [cause.name for cause in verdict.causes]


# Cases that no other fault explains.
NAMED = [
    ("zero-sign-flipped", "shape=9x33,zero=same"),
    ("zero-other-signedness", "shape=9x33,zero=same"),
    ("zero-other-signedness", "shape=9x33,zero=same,codes=uint8"),
    ("codes-other-signedness", "shape=9x33,codes=uint8"),
    ("codes-other-signedness", "shape=9x33,zero=same"),
    ("difference-wraps", "shape=9x33,zero=same"),
    ("clamped-to-127", "shape=9x257"),
    ("scale-wrong-axis", "shape=16x16"),
    ("scale-wrong-axis", "shape=16x16,per=column,zero=same"),
    ("scale-of-next", "shape=9x33"),
    ("scale-of-previous", "shape=9x64,per=group,g=8"),
    ("group-of-tile-16", "shape=3x64,per=group,g=8"),
    ("group-of-tile-1024", "shape=3x2100,per=group,g=300"),
    ("group-scales-transposed", "shape=3x64,per=group,g=8"),
    ("tail-group-previous", "shape=3x60,per=group,g=16"),
    ("zero-times-scale-hoisted", "shape=9x33,zero=same,sdtype=fp32"),
    ("product-in-scale-dtype", "shape=9x33,zero=same,sdtype=bf16"),
]


@pytest.mark.parametrize(("name", "fields"), NAMED)
def test_fault_is_the_only_cause_named(name, fields):
    verdict = judge(mutant(FMT, FAULTS[name]), f"int8_affine:{fields},out=fp32").verdict
    assert verdict.kind == "MISMATCH"
    assert [cause.name for cause in verdict.causes] == [name]


def test_report_says_where():
    verdict = judge(
        mutant(FMT, FAULTS["tail-group-previous"]), "int8_affine:shape=3x60,per=group,zero=same"
    ).verdict
    assert "row 0, column 48, group 3 (the last, short one), signed code" in verdict.located[0].where
    verdict = judge(mutant(FMT, FAULTS["scale-of-next"]), "int8_affine:shape=3x60,codes=uint8").verdict
    assert "row 0, column 0, scale 0 (axis 0), unsigned code" in verdict.located[0].where


def test_names_are_distinct():
    assert len(FAULTS) == len(FMT.faults)


@pytest.mark.parametrize("fields", ["", "per=group,g=8,zero=same,shape=5x40", "per=tensor,zero=int32"])
def test_right_decoder_is_exact(fields):
    def right(weight, *, dtype):
        return from_bits(round_to(FMT.unpack(weight).values(), dtype), dtype)

    assert judge(right, f"int8_affine:{fields}", oracles=None).verdict.kind == "EXACT"


def test_faults_say_when_they_cannot_show():
    """A symmetric weight of one scale has no zero, axis or group to be wrong about."""
    weight = FMT.words(FMT.parse("per=tensor,shape=3x8,sdtype=fp32"))
    ctx = Context(weight, FMT.unpack(weight), torch.float32)
    silent = {name for name, fault in FAULTS.items() if fault.decode(ctx) is None}
    assert {"zero-sign-flipped", "scale-wrong-axis", "scale-of-next", "group-of-tile-16"} <= silent
