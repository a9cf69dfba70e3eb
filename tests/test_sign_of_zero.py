"""A wrong value stays one: shrinking, votes and causes do not turn it into the sign of a zero."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import core

from conformance.bits import from_bits
from conformance.harness import Failure
from conformance.investigate import investigate
from conformance.patterns import Pattern
from conformance.registry import Format, Relaxation, parse_case
from conformance.running import alike, run_drawn
from conformance.strategies import cases
from oracles.base import Oracle, Provenance
from oracles.spec.rounding import round_to
from tests.harness_runs import FORMATS, NO_ORACLE, harness, judge, planted

INT8 = FORMATS["gemm_int8"]
ZEROS = "gemm_int8:azp=mid,scales=negative(0),a=zeros,b=zeros,out=fp32"

NEGATIVE = cases(INT8, route="words", out="fp32", scales=Pattern("negative", 1))


def right(weight, *, dtype):
    return from_bits(round_to(INT8.unpack(weight).values(), dtype), dtype)


def without_signs(weight, *, dtype):
    """Scales without their sign: wrong values, and for products of 0 the wrong zero."""
    return right(
        dataclasses.replace(weight, a_scale=weight.a_scale.abs(), w_scale=weight.w_scale.abs()), dtype=dtype
    )


def adding_zero(weight, dtype):
    return right(weight, dtype=dtype) + 0.0


def with_oracle(answer, *relaxed: str) -> Format:
    provenance = Provenance("package", "1", "1", "package.function", "call")
    oracle = Oracle("a", lambda: provenance, lambda device: None, answer)
    why = "it adds 0: -0 becomes +0"
    relaxations = tuple(Relaxation(name, torch.float32, 0, why) for name in relaxed)
    return dataclasses.replace(INT8, oracles=(oracle,), relaxations=relaxations)


def test_an_oracle_that_does_not_show_the_sign_of_zero_is_on_neither_side():
    verdict = judge(without_signs, ZEROS, fmt=with_oracle(adding_zero, "a"), oracles=None).verdict
    assert verdict.kind == "MISMATCH"
    assert verdict.signs_alone
    assert verdict.summary.startswith("kernel is wrong (spec): ")
    assert verdict.summary.endswith("; a says nothing of it, as registered: it adds 0: -0 becomes +0")


def test_without_a_registered_reason_the_same_oracle_has_a_side():
    verdict = judge(without_signs, ZEROS, fmt=with_oracle(adding_zero), oracles=None).verdict
    assert verdict.kind == "SPLIT"
    assert "spec disputed: kernel = a" in verdict.summary


def test_a_right_kernel_is_within_what_is_registered():
    verdict = judge(right, ZEROS, fmt=with_oracle(adding_zero, "a"), oracles=None).verdict
    assert verdict.kind == "WITHIN"
    assert verdict.summary.count("it adds 0") == 1


def test_a_wrong_value_does_not_shrink_to_the_sign_of_a_zero(monkeypatch):
    run = harness(without_signs, oracles=NO_ORACLE)
    seen = []
    check = run.check

    def checked(case, **extra):
        try:
            return check(case, **extra)
        except Failure as failure:
            seen.append(failure.checked.verdict.signs_alone)
            raise

    run.check = checked
    for seed in range(8):
        monkeypatch.setattr(core, "global_force_seed", seed)
        with pytest.raises(Failure) as caught:
            run_drawn(run, "test", NEGATIVE)
        assert not caught.value.checked.verdict.signs_alone
    assert True in seen, "no case showed the sign alone: this shows nothing"


def test_the_sign_of_a_zero_alone_is_found_where_nothing_else_is_wrong(monkeypatch):
    monkeypatch.setattr(core, "global_force_seed", 1)

    def positive(weight, *, dtype):
        return right(weight, dtype=dtype) + 0.0

    run = harness(positive, oracles=NO_ORACLE)
    with pytest.raises(Failure) as caught:
        run_drawn(run, "test", NEGATIVE)
    assert caught.value.checked.verdict.signs_alone


def test_what_fails_alike():
    found = {
        name: alike(judge(kernel, case).verdict)
        for name, kernel, case in (
            ("values", without_signs, "gemm_int8:scales=negative(1),out=fp32"),
            ("classes", without_signs, "gemm_int8:M=5,N=33,aper=token,scales=inf(1),out=fp32"),
            ("signs", without_signs, ZEROS),
            ("shape", lambda weight, *, dtype: right(weight, dtype=dtype)[:1], ZEROS),
        )
    }
    assert found["values"] == found["classes"] == found["shape"] == ("values", False)
    assert found["signs"] == ("values", True)


def test_a_cause_that_a_larger_case_refutes_is_not_named():
    run = harness(without_signs, oracles=NO_ORACLE)
    checked = run.judge(parse_case(ZEROS))
    assert "w-scale-of-first" in [cause.name for cause in checked.verdict.causes]
    verdict = investigate(run, checked, planted(without_signs)).verdict
    assert [cause.name for cause in verdict.causes] == ["unknown"]
    assert "fits this case alone: " in verdict.causes[0].text
