"""Faults of squeezellm: caught by the suite's own strategy, named, and told apart."""

from __future__ import annotations

import pytest

from conformance.bits import from_bits
from oracles import squeezellm as oracles
from oracles.spec.rounding import round_to
from tests.harness_runs import FORMATS, judge
from tests.mutants import caught, mutant

FMT = FORMATS["squeezellm"]
FAULTS = {fault.name: fault for fault in FMT.faults}
# More than the default number of cases; the suite has 60 for each of three output dtypes and its
# frozen cases.
RARE = {
    "bf16-half-away": 300,
    "full-rows-along-columns": 300,
    "table-of-row": 200,
    "packed-along-columns": 200,
}


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_caught_and_named(name):
    verdict = caught("squeezellm", FAULTS[name], RARE.get(name, 120))
    assert verdict.kind in ("MISMATCH", "NONFINITE_CLASS")
    assert verdict.located
    assert name in [cause.name for cause in verdict.causes]


# Cases that no other fault explains.
NAMED = [
    ("table-of-next-channel", "N=17"),
    ("table-of-previous-channel", "N=17,bits=3"),
    ("table-transposed", "N=17"),
    ("slots-reversed", "N=17"),
    ("sign-extend-top", "N=17"),
    ("straddle-carry-dropped", "bits=3,N=17"),
    ("straddle-signed-shift", "bits=3,N=17"),
    ("ten-codes-per-word", "bits=3,N=17"),
    ("sparse-dropped", "N=17,sparse=few(1)"),
    ("sparse-twice", "N=17,sparse=few(1)"),
    ("sparse-replaces", "N=17,sparse=few(1),full=3"),
    ("csr-rows-as-columns", "N=17,sparse=few(1)"),
    ("csr-pointer-off-by-one", "N=17,sparse=few(1)"),
    ("full-rows-dropped", "N=17,full=3"),
    ("full-rows-twice", "N=17,full=3"),
    ("full-rows-by-position", "N=17,full=3"),
    ("full-rows-along-columns", "N=32,full=3"),
    ("full-row-before-outlier", "N=17,full=3,sparse=few(1),vals=ordinary(3)"),
    ("corrections-summed-first", "N=17,full=3,sparse=few(1),vals=ordinary(3)"),
    ("table-through-fp16", "N=17,sparse=few(1)"),
]


@pytest.mark.parametrize(("name", "fields"), NAMED)
def test_fault_is_the_only_cause_named(name, fields):
    verdict = judge(mutant(FMT, FAULTS[name]), f"squeezellm:{fields},out=fp32").verdict
    assert verdict.kind == "MISMATCH"
    assert [cause.name for cause in verdict.causes] == [name]


def test_sum_in_the_output_dtype():
    verdict = judge(
        mutant(FMT, FAULTS["sparse-after-rounding"]), "squeezellm:N=17,sparse=few(1),out=bf16"
    ).verdict
    assert [cause.name for cause in verdict.causes] == ["sparse-after-rounding"]


@pytest.mark.parametrize("name", oracles.recorded_names())
def test_the_recorded_cases_catch_a_wrong_table(name):
    """With the recorded answers as an oracle: the spec and the original kernels agree against it."""
    verdict = judge(
        mutant(FMT, FAULTS["table-of-next-channel"]),
        f"squeezellm:recorded={name},out=fp32",
        oracles=frozenset({"squeezellm"}),
    ).verdict
    assert verdict.kind == "MISMATCH"
    assert "spec = squeezellm" in verdict.summary or name == "w4_dup"


@pytest.mark.parametrize("name", oracles.recorded_names())
def test_a_right_decoder_is_exact_on_the_recorded_cases(name):
    def right(weight, *, dtype):
        return from_bits(round_to(FMT.unpack(weight).values(), dtype), dtype)

    run = {"oracles": frozenset({"squeezellm"})}
    verdict = judge(right, f"squeezellm:recorded={name},out=fp32", **run).verdict
    # The sign of a zero is not to be seen in a sum of products.
    assert verdict.kind == ("WITHIN" if name == "w4_dup" else "EXACT")
    assert not verdict.failed


def test_report_says_where():
    kernel = mutant(FMT, FAULTS["sparse-dropped"])
    where = judge(kernel, "squeezellm:bits=3,N=17,sparse=all,full=1").verdict.located[0].where
    assert "row 0, column 0, word 0 of the column, slot 0, code" in where
    assert "outlier" in where
    kernel = mutant(FMT, FAULTS["straddle-carry-dropped"])
    where = judge(kernel, "squeezellm:bits=3,N=17,words=ones").verdict.located[0].where
    assert "row 10, column 0, words 0 and 1 of the column, slot 10, code 7" in where
    assert where.endswith("no outlier")


def test_names_are_distinct():
    assert len(FAULTS) == len(FMT.faults)
