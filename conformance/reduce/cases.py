"""Reduce the dimensions of a failing case, one at a time, until none can be made simpler."""

from __future__ import annotations

import dataclasses

from conformance.case import Case
from conformance.dims import Dim
from conformance.neighbours import dims_of
from conformance.reduce.trial import Outcome, Trial

# A size takes one round for each other size that depends on it; a few suffice.
MOST_ROUNDS = 8


@dataclasses.dataclass(frozen=True)
class Step:
    """What became of one dimension: its value at the start and at the end, as text.

    ``refused`` is the simpler value that was tried last (of sizes, the nearest) or first (else), and
    ``why`` it is not the end. Both are empty when nothing simpler is left.
    """

    dimension: str
    start: str
    end: str
    refused: str = ""
    why: str = ""

    def __str__(self) -> str:
        if self.start == self.end:
            return f"{self.end}: needed, {self.refused} {self.why}"
        rest = f"; {self.refused} {self.why}" if self.refused else ""
        return f"{self.start} -> {self.end} fails alike{rest}"

    @property
    def says_something(self) -> bool:
        return self.start != self.end or bool(self.refused)


def reduce_case(trial: Trial, case: Case) -> tuple[Case, tuple[Step, ...]]:
    """The simplest case found that fails alike, and what became of each dimension.

    Choices and patterns come first, in the format's order, then sizes; rounds are repeated until one
    changes nothing. The result cannot be made simpler in any one dimension, unless time ran out.
    """
    start = case
    refused: dict[str, tuple[str, str]] = {}
    fmt = trial.harness.formats[case.format]
    for _ in range(MOST_ROUNDS):
        before = case
        dims = sorted(dims_of(fmt, case), key=lambda dim: dim.is_size)
        for dim in dims:
            case, refused[dim.name] = _simplify(trial, case, dim)
        if case == before or trial.ended:
            break
    steps = tuple(
        Step(dim.name, dim.format(start[dim.name]), dim.format(case[dim.name]), *refused[dim.name])
        for dim in fmt.all_dims
    )
    return case, tuple(step for step in steps if step.says_something)


def _simplify(trial: Trial, case: Case, dim: Dim) -> tuple[Case, tuple[str, str]]:
    """The case with one dimension as simple as it gets, and the value that was refused and why."""
    while True:
        tried: list[tuple[str, Outcome]] = []
        for value in dim.simpler(case[dim.name], case.as_mapping()):
            simpler = case.replace(**{dim.name: value})
            outcome = trial.case(simpler)
            if outcome.same:
                case = simpler
                break
            tried.append((dim.format(value), outcome))
        else:
            if not tried:
                return case, ("", "")
            text, outcome = tried[-1 if dim.is_size else 0]
            return case, (text, outcome.words)
