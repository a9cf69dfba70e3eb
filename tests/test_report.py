"""A failure is at most 25 lines, whatever is in it, and keeps its commands."""

from __future__ import annotations

import json

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance.compare import Comparison
from conformance.registry import parse_case
from conformance.report import LINES, report
from conformance.verdict import FAILING, KINDS, NEUTRAL, PASSING, Cause, Located, Verdict
from tests import planted
from tests.harness_runs import judge

words = st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), max_size=600)
comparisons = st.builds(
    Comparison,
    reference=st.sampled_from(["spec", "bitsandbytes", "an-oracle-with-a-long-name"]),
    n=st.integers(0, 10**9),
    wrong=st.just(np.ones(3, bool)),
    classes=st.integers(0, 3),
    max_ulp=st.integers(0, 2**32),
    max_abs=st.floats(0, 1e30),
    coarse=st.booleans(),
    element=st.booleans(),
    exact=st.booleans(),
)
line = st.text(st.characters(codec="ascii", exclude_categories=("C",)), max_size=300)
located = st.builds(Located, st.tuples(st.integers(0, 9), st.integers(0, 9)), line, line, line)
causes = st.builds(Cause, words, words, words, words, st.tuples(words))
verdicts = st.builds(
    Verdict,
    kind=st.sampled_from(FAILING),
    case=st.just(
        parse_case("nf4:shape=3x65,blocksize=32,absmax=nested,storage=int8,scales=mixed(99),out=bf16")
    ),
    kernel=words,
    device=st.sampled_from(["cpu", "cuda:0"]),
    summary=words,
    votes=st.lists(comparisons, max_size=5).map(tuple),
    oracle_votes=st.lists(comparisons, max_size=4).map(tuple),
    notes=st.lists(words, max_size=6).map(tuple),
    located=st.lists(located, max_size=8).map(tuple),
    causes=st.lists(causes, max_size=9).map(tuple),
    elements=st.integers(0, 10**9),
    apart=words,
    reading=words,
    neighbour=words,
)
COMMANDS = (("rerun", "pytest conformance --case X"), ("replay", "python -m conformance replay Y"))


@settings(max_examples=80, deadline=None, database=None)
@given(verdicts)
def test_at_most_25_lines_with_the_commands_last(verdict):
    lines = report(verdict, COMMANDS).split("\n")
    assert len(lines) <= LINES == 25
    assert lines[0] == f"{verdict.label}  {verdict.case.id}"
    assert lines[-2:] == [f"{label:<10} {command}" for label, command in COMMANDS]


@settings(max_examples=80, deadline=None, database=None)
@given(verdicts)
def test_no_element_is_cut_in_two(verdict):
    lines = report(verdict, COMMANDS).split("\n")
    numbers = [i for i, text in enumerate(lines) if text.startswith("      got ")]
    indices = [i for i, text in enumerate(lines) if text.startswith("  [")]
    assert [i + 1 for i in indices] == numbers
    assert bool(numbers) == bool(verdict.located)


@settings(max_examples=80, deadline=None, database=None)
@given(verdicts, st.integers(8, LINES))
def test_in_less_room_what_is_left_out_is_left_out_whole(verdict, room):
    whole, lines = report(verdict, COMMANDS).split("\n"), report(verdict, COMMANDS, room).split("\n")
    assert len(lines) <= room
    assert lines[-2:] == whole[-2:]
    places = [i for i, text in enumerate(lines) if text.startswith("  [")]
    assert [i + 1 for i in places] == [i for i, text in enumerate(lines) if text.startswith("      got ")]


ELEMENTS = tuple(Located((0, i), f"block {i}", f"{i}.5", f"{i}.25") for i in range(4))


def crowded(notes: int, lines: int, apart: int = 3) -> list[str]:
    """A report with ``lines`` lines of cause, ``notes`` notes and a long ``told apart``."""
    word = "w" * 90
    verdict = Verdict(
        "MISMATCH",
        parse_case("nf4:shape=3x65"),
        "my_kernel.py:dequantize",
        "cpu",
        "kernel is wrong",
        located=ELEMENTS,
        causes=(Cause("a", " ".join([word] * lines), "effect", "fix"), Cause("b", word, "effect", "fix")),
        apart=" ".join([word] * apart),
        reading="half",
        neighbour="a case",
        notes=tuple(f"note {i}" for i in range(notes)),
    )
    return report(verdict, COMMANDS).split("\n")


def test_what_is_left_out_when_there_is_no_room():
    roomy = crowded(notes=0, lines=1, apart=1)
    assert len(roomy) == 22
    assert sum(line.startswith("      got ") for line in roomy) == 4
    noted = crowded(notes=2, lines=1, apart=1)
    assert [line for line in noted if line not in roomy] == ["note       note 0", "note       note 1"]
    assert len(crowded(notes=9, lines=1, apart=1)) == LINES
    # Three lines of told apart, and three of the cause: notes go, then the last elements, in pairs.
    full = crowded(notes=9, lines=3)
    assert not any(line.startswith("note") for line in full)
    assert [line for line in full if line.startswith("      got ")] == [
        "      got 0.5  want 0.25",
        "      got 1.5  want 1.25",
        "      got 2.5  want 2.25",
    ]
    at = next(i for i, line in enumerate(full) if line.startswith("told apart"))
    assert [line.startswith("   ") for line in full[at : at + 4]] == [False, True, True, False]
    assert any(line.startswith("passes") for line in full)
    assert full[-2:] == [f"{label:<10} {command}" for label, command in COMMANDS]


def test_a_fourth_line_of_told_apart_is_cut():
    lines = crowded(notes=0, lines=1, apart=5)
    at = next(i for i, line in enumerate(lines) if line.startswith("told apart"))
    assert lines[at + 2].endswith(" ...")
    assert lines[at + 3].startswith("error")


@settings(max_examples=40, deadline=None, database=None)
@given(verdicts)
def test_json_of_any_verdict(verdict):
    record = json.loads(json.dumps(verdict.to_json()))
    assert record["verdict"] == verdict.kind
    assert len(record["votes"]) == len(verdict.votes)


def test_real_failure():
    verdict = judge(planted.nibbles_swapped, "nf4:shape=5x40", oracles=None).verdict
    text = report(verdict, COMMANDS)
    assert len(text.splitlines()) <= 25
    for part in (
        "MISMATCH  nf4:shape=5x40",
        "nibble-swap",
        "[0, 0]",
        "high nibble",
        "got ",
        "want ",
        "exact:FAIL",
    ):
        assert part in text
    assert max(map(len, text.splitlines())) <= 140
    assert "tensor" not in text


def test_kinds_are_one_list():
    assert len(set(KINDS)) == len(KINDS) == len(PASSING) + len(NEUTRAL) + len(FAILING)
