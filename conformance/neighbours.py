"""The nearest case that passes beside a failing one: K = 64 passes, K = 65 fails."""

from __future__ import annotations

import dataclasses
import math
import time
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from conformance.bits import DTYPES, to_float
from conformance.bundle import weight_digest
from conformance.case import Case
from conformance.deadline import time_limit
from conformance.dims import Dim
from conformance.harness import Checked, Harness
from conformance.registry import Format, Kernel
from conformance.verdict import FAILING
from oracles.spec.rounding import round_to

PASSES = ("EXACT", "WITHIN")
# Another input cannot say more of these: the kernel is right, or there was nothing to compare.
SENSELESS = ("ORACLE_FAULT", "FIXED_FAULT", "VACUOUS")
VALUES = ("MISMATCH", "NONFINITE_CLASS", "SPLIT")
# A kernel that differs from run to run passes now and then: it must pass this often.
REPEATS = 4
# In the interpreter: a neighbour that takes longer, and ten times as long as the failing case, is left.
MOST_SECONDS = 0.5


@dataclasses.dataclass(frozen=True)
class Budget:
    """How many neighbours are judged at most, and for how long."""

    cases: int = 80
    seconds: float = 2.0


@dataclasses.dataclass(frozen=True)
class Tried:
    """A neighbour that was judged, with the dimension that it differs in and the verdict's kind.

    ``counts``: whether it says something: it failed, or passed on an input that could have shown
    the fault.
    """

    case: Case
    dimension: str
    verdict: str
    counts: bool


@dataclasses.dataclass(frozen=True)
class Neighbour:
    """What the search found.

    Attributes:
        failing: the case that was started from.
        case: the nearest case that passes, or None.
        dimension: in which it differs.
        passes, fails: that dimension's value in ``case`` and in ``failing``, as text.
        tried: neighbours that were judged, in order; the last one passed if ``case`` is there.
        left: how many were not judged because the budget was spent.
        note: why nothing was tried, or empty.
    """

    failing: Case
    case: Case | None = None
    dimension: str = ""
    passes: str = ""
    fails: str = ""
    tried: tuple[Tried, ...] = ()
    left: int = 0
    note: str = ""

    def __str__(self) -> str:
        if self.note:
            return self.note
        if self.case is not None:
            return f"{self.case.id} ({self.dimension}: {self.passes} passes, {self.fails} fails)"
        failed = sum(tried.counts for tried in self.tried)
        if self.left:
            return f"none of the {failed} neighbours that were tried; {self.left} more were not"
        if not failed:
            return ""
        silent = len(self.tried) - failed
        more = f" ({silent} more say nothing)" if silent else ""
        return f"none: all {failed} neighbours fail too{more}: not a matter of one dimension"

    def to_json(self) -> dict[str, Any]:
        return {
            "case": None if self.case is None else self.case.id,
            "dimension": self.dimension,
            "passes": self.passes,
            "fails": self.fails,
            "tried": [{"case": t.case.id, "verdict": t.verdict, "counts": t.counts} for t in self.tried],
            "left": self.left,
            "text": str(self),
        }


def against_spec(harness: Harness, *, faults: bool = False) -> Harness:
    """The run's harness, but it asks no oracle, records nothing and, without ``faults``, names no cause."""
    formats: Mapping[str, Format] = harness.formats
    if not faults:
        formats = {name: dataclasses.replace(fmt, faults=()) for name, fmt in formats.items()}
    return dataclasses.replace(
        harness, formats=formats, oracles=frozenset(), writer=None, last_failure=None, _missing={}
    )


def dims_of(fmt: Format, case: Case) -> Iterator[Dim]:
    """Dimensions of a case as they are drawn on its route."""
    narrowed = {dim.name: dim for dim in fmt.pack_dims} if case["route"] == "pack" else {}
    return (narrowed.get(dim.name, dim) for dim in fmt.all_dims)


def neighbours(fmt: Format, case: Case) -> tuple[tuple[str, Case], ...]:
    """Cases that differ in one dimension, with its name, nearest first.

    Sizes by one; then everything back to its default; other choices, and sizes up to 8 away; other
    patterns, and sizes up to 64 away; further sizes. Among those that are as near, dimensions in
    the format's order, and smaller sizes first. Some may be no valid cases.
    """
    values = case.as_mapping()
    found: list[tuple[int, str, Case]] = []
    for dim in dims_of(fmt, case):
        for far, value in dim.neighbours(case[dim.name], values):
            found.append((far, dim.name, case.replace(**{dim.name: value})))
    found.sort(key=lambda item: item[0])
    return tuple(dict.fromkeys((name, other) for _, name, other in found))


def device_works(device: torch.device) -> bool:
    """Whether a device still answers: a crash may leave a GPU unusable for the rest of the process."""
    try:
        return bool(torch.zeros(1, device=device).eq(0).all().item())
    except RuntimeError:
        return False


def nearest_passing(
    harness: Harness, case: Case, kernel: Kernel | None = None, budget: Budget | None = None
) -> Neighbour | None:
    """The nearest neighbour of a failing case that passes, judged against spec alone.

    Only EXACT and WITHIN pass. A neighbour whose input is the same, that is no valid case or cannot
    be judged says nothing; nor, for a failure of values, does one that passes with nothing but zeros,
    infinities and NaN in the output. Raises nothing that a kernel raises, and ends a kernel that
    hangs in Python.

    Returns:
        None when nothing can be said: the case itself cannot be judged here.
    """
    budget = budget or Budget()
    kernel = kernel or harness.kernels[case.format]
    search = _Search(against_spec(harness), case, kernel, time.monotonic() + budget.seconds)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        search.run(budget)
    return search.result()


@dataclasses.dataclass
class _Search:
    """State of one search. ``until`` is when it ends, ``patience`` the seconds of one case."""

    harness: Harness
    failing: Case
    kernel: Kernel
    until: float
    patience: float = math.inf
    tried: list[Tried] = dataclasses.field(default_factory=list)
    note: str | None = None
    total: int = 0
    looked_at: int = 0
    started: bool = False
    found: Tried | None = None
    hung: bool = False

    def run(self, budget: Budget) -> None:
        began = time.monotonic()
        base = self._judge(self.failing)
        if base is None or base.weight is None:
            return
        if not base.verdict.failed:
            self.note = "this case itself, when it is judged again: the result depends on earlier calls"
            return
        if not self._usable(base):
            self.note = "none was tried: the crash left the GPU unusable in this process"
            return
        if self.harness.runtime.interpreter:  # elsewhere a neighbour may have to be compiled
            self.patience = max(MOST_SECONDS, 10 * (time.monotonic() - began))
        self.started = True
        same = self._input(base)
        shows_values = self._tells(base)
        candidates = neighbours(self.harness.formats[self.failing.format], self.failing)
        self.total = len(candidates)
        for name, case in candidates:
            if len(self.tried) >= budget.cases or time.monotonic() >= self.until:
                return
            checked = self._judge(case)
            self.looked_at += 1
            if self.hung:
                self.tried.append(Tried(case, name, "HANG", False))
                continue
            if checked is None or checked.weight is None or checked.verdict.kind in SENSELESS:
                continue
            if self._input(checked) == same:
                continue
            kind = checked.verdict.kind
            passed = kind in PASSES
            if passed and base.verdict.kind == "NONDETERMINISTIC":
                passed = all(self._passes(case) for _ in range(REPEATS - 1))
                kind = kind if passed else base.verdict.kind
            blank = shows_values and base.verdict.kind in VALUES and not self._tells(checked)
            counts = not blank if passed else kind in FAILING
            self.tried.append(Tried(case, name, kind, counts))
            if passed and counts:
                self.found = self.tried[-1]
                return
            if not self._usable(checked):
                return

    def result(self) -> Neighbour | None:
        if self.note is not None:
            return Neighbour(self.failing, note=self.note)
        if not self.started:
            return None
        left = self.total - self.looked_at
        if self.found is None:
            return Neighbour(self.failing, tried=tuple(self.tried), left=left)
        case, name = self.found.case, self.found.dimension
        dim = next(dim for dim in case.dims if dim.name == name)
        return Neighbour(
            self.failing,
            case,
            name,
            dim.format(case[name]),
            dim.format(self.failing[name]),
            tuple(self.tried),
            left,
        )

    def _judge(self, case: Case) -> Checked | None:
        """None for what is no case, what upstream's packer breaks on, and what ran out of time."""
        with time_limit(max(0.01, min(self.patience, self.until - time.monotonic()))) as limit:
            try:
                checked = self.harness.judge(case, self.kernel)
            except Exception:
                checked = None
        self.hung = limit.reached
        return None if limit.reached else checked

    def _passes(self, case: Case) -> bool:
        checked = self._judge(case)
        return checked is not None and checked.verdict.kind in PASSES

    def _usable(self, checked: Checked) -> bool:
        device = self.harness.runtime.device
        return device.type == "cpu" or checked.verdict.kind != "CRASH_LAUNCH" or device_works(device)

    def _input(self, checked: Checked) -> tuple[Any, ...]:
        """What the kernel was given: equal for cases that differ in a name only."""
        case = checked.verdict.case
        launch = self.harness.launch(self.harness.formats[case.format], self.kernel, case["tile"]) or {}
        assert checked.weight is not None
        fixed = (case["out"], case["layout"], case["dest"])
        return (weight_digest(checked.weight), *fixed, *sorted(launch.items()))

    def _tells(self, checked: Checked) -> bool:
        """Whether the right output holds anything but zeros, infinities and NaN, which hide wrong scales."""
        case = checked.verdict.case
        dtype = DTYPES[case["out"]]
        values = self.harness.formats[case.format].unpack(checked.weight).values()
        right = to_float(round_to(values, dtype), dtype)
        return bool((np.isfinite(right) & (right != 0)).any())


def with_neighbour(harness: Harness, checked: Checked) -> Checked:
    """A failing verdict with its nearest passing neighbour, for a report; the same one where a
    neighbour makes no sense or nothing is found out. Never raises what a kernel raises."""
    verdict = checked.verdict
    kernel = harness.kernels.get(verdict.case.format)
    if checked.weight is None or verdict.kind in SENSELESS or not verdict.failed:
        return checked
    if kernel is None or kernel.name != verdict.kernel:
        return checked
    try:
        found = nearest_passing(harness, verdict.case, kernel)
    except Exception:  # the failure itself must be reported whatever happens here
        return checked
    text = "" if found is None else str(found)
    return dataclasses.replace(checked, verdict=dataclasses.replace(verdict, neighbour=text))
