"""Verdict: what one case said. One JSON form behind terminal, JSON lines, JUnit and bundles."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from conformance.case import Case
from conformance.compare import Comparison

PASSING = ("EXACT", "WITHIN", "KNOWN_FAULT")
NEUTRAL = ("UNSUPPORTED", "UNJUDGED", "NO_ORACLE")
FAILING = (
    "MISMATCH",
    "NONFINITE_CLASS",
    "OOB_WRITE",
    "OOB_READ",
    "INPUT_MUTATED",
    "UNWRITTEN",
    "NONDETERMINISTIC",
    "CRASH_COMPILE",
    "CRASH_LAUNCH",
    "CRASH_WORKER",
    "ORACLE_FAULT",
    "SPLIT",
    "FIXED_FAULT",
    "VACUOUS",
)
KINDS = PASSING + NEUTRAL + FAILING

# Verdicts that values were compared for.
COMPARED = (*PASSING, "MISMATCH", "NONFINITE_CLASS", "OOB_READ", "ORACLE_FAULT", "SPLIT")


@dataclasses.dataclass(frozen=True)
class Located:
    """One wrong element: index, where it sits, and both values as text with their bits."""

    index: tuple[int, ...]
    where: str
    got: str
    want: str


@dataclasses.dataclass(frozen=True)
class Cause:
    """One explanation: a named fault that reproduces the output, or a description of structure."""

    name: str
    text: str
    effect: str = ""
    fix: str = ""
    links: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Outcome of one case.

    Attributes:
        kind: one of :data:`KINDS`.
        summary: one sentence: who is wrong and how.
        votes: comparisons of the kernel with each reference; the last is the spec model.
        oracle_votes: comparisons of each oracle with the spec model.
        notes: oracles that were missing or declined, and why.
        located: first wrong elements.
        causes: explanations, best first. Empty means that the cause is unknown.
        apart: how a second input told several fitting causes apart, or that none could.
        measures: error measures as JSON (see :mod:`conformance.measures`), or None.
        reading: those measures in one sentence.
        neighbour: the nearest case that passes and what differs, or empty.
    """

    kind: str
    case: Case
    kernel: str
    device: str
    summary: str
    votes: tuple[Comparison, ...] = ()
    oracle_votes: tuple[Comparison, ...] = ()
    notes: tuple[str, ...] = ()
    located: tuple[Located, ...] = ()
    causes: tuple[Cause, ...] = ()
    elements: int = 0
    apart: str = ""
    measures: Mapping[str, Any] | None = None
    reading: str = ""
    neighbour: str = ""

    @property
    def failed(self) -> bool:
        return self.kind in FAILING

    @property
    def signs_alone(self) -> bool:
        """Whether the kernel differs from the spec model in the sign of zeros and in nothing else."""
        spec = self.votes[-1] if self.votes else None
        return spec is not None and not spec.agrees and not spec.classes and not spec.max_ulp

    @property
    def label(self) -> str:
        """Kind as printed; WITHIN carries the ULPs it needed, or that it is by a proven bound."""
        if any(vote.bounded for vote in self.votes) and self.kind == "WITHIN":
            return "WITHIN(bound)"
        if self.kind == "WITHIN":
            return f"WITHIN({max(vote.max_ulp for vote in self.votes)} ulp)"
        return self.kind

    def to_json(self) -> dict[str, Any]:
        return {
            "verdict": self.kind,
            "case": self.case.id,
            **self.case.to_json(),
            "kernel": self.kernel,
            "device": self.device,
            "summary": self.summary,
            "elements": self.elements,
            "votes": [_vote_json(vote) for vote in self.votes],
            "oracle_votes": [_vote_json(vote) for vote in self.oracle_votes],
            "notes": list(self.notes),
            "located": [dataclasses.asdict(item) for item in self.located],
            "causes": [dataclasses.asdict(item) for item in self.causes],
            "apart": self.apart,
            "measures": None if self.measures is None else dict(self.measures),
            "reading": self.reading,
            "neighbour": self.neighbour,
        }


def _vote_json(vote: Comparison) -> dict[str, Any]:
    return {
        "reference": vote.reference,
        "compared": vote.n,
        "wrong": vote.n_wrong,
        "classes": vote.classes,
        "max_ulp": vote.max_ulp,
        "max_abs": vote.max_abs,
        "gates": {"coarse": vote.coarse, "element": vote.element, "exact": vote.exact},
    }
