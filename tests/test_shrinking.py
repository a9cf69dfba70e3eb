"""What a failure shrinks to: the least case that still shows it."""

from __future__ import annotations

import math

import pytest

from conformance.patterns import Pattern
from tests import planted
from tests.harness_runs import first_failure, harness, minimal


def has_short_last_block(case) -> bool:
    n = math.prod(case["shape"])
    return n > case["blocksize"] and n % case["blocksize"] != 0


@pytest.mark.parametrize("name", ["nf4", "fp4", "blockwise8"])
def test_short_last_block(name):
    """Little more than one block (5x15 counts as simple, its numbers are small); the rest at its simplest."""
    found = minimal(name, has_short_last_block)
    assert math.prod(found["shape"]) <= found["blocksize"] + 16
    assert found["blocksize"] == 64
    assert (found["words"], found["scales"]) == (Pattern("zeros"), Pattern("one"))
    assert (found["absmax"], found["layout"], found["dest"], found["out"]) == (
        "plain",
        "contiguous",
        "given",
        "fp16",
    )


def test_planted_tail_fault_shrinks_to_it():
    failure = first_failure(harness(planted.tail_of_previous_block), "nf4", out="fp16")
    assert failure is not None
    case = failure.checked.verdict.case
    assert math.prod(case["shape"]) == case["blocksize"] + 1
    assert case["words"] in (Pattern("zeros"), Pattern("ones"))
    assert case["scales"] == Pattern("ordinary", 0)
    assert (case["absmax"], case["layout"], case["dest"]) == ("plain", "contiguous", "given")
    assert failure.checked.verdict.causes[0].name == "tail-block-absmax-previous"


@pytest.mark.parametrize("name", ["nf4", "llm_int8"])
def test_any_failure_shrinks_to_one_element(name):
    found = minimal(name, lambda case: True)
    assert math.prod(found["shape"]) == 1
    assert (found["words"], found["scales"]) == (Pattern("zeros"), Pattern("one"))


@pytest.mark.parametrize(
    ("condition", "want"),
    [
        (lambda c: c["words"] != Pattern("zeros"), {"words": Pattern("ones")}),
        (lambda c: c["words"].name == "random", {"words": Pattern("random", 0)}),
        (lambda c: c["scales"].name == "mixed", {"scales": Pattern("mixed", 0)}),
        (lambda c: (c["scales"].number or 0) > 3, {"scales": Pattern("ordinary", 4)}),
        (lambda c: c["layout"] != "contiguous", {"layout": "offset"}),
        (lambda c: c["dest"] == "strided", {"dest": "strided", "layout": "contiguous"}),
    ],
    ids=["words", "random", "mixed", "number", "layout", "dest"],
)
def test_dimensions_shrink_alone(condition, want):
    """The dimension that matters to its least value, the others to their simplest."""
    found = minimal("llm_int8", condition)
    simplest = {"shape": (1, 1), "words": Pattern("zeros"), "scales": Pattern("one"), "layout": "contiguous"}
    for name, value in {**simplest, **want}.items():
        assert found[name] == value
