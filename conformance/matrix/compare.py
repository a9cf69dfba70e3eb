"""Cells of the matrix: the newest run of each format in each environment, against the one before."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from conformance.matrix.runs import Environment, Run, Tally, Test

NEW, STILL, FIXED, GONE, FAILING = "new", "still", "fixed", "not run again", "failing"
# In the order of the page; FAILING is a failure that there is no earlier run to compare with.
CHANGES = (NEW, FAILING, STILL, GONE, FIXED)


@dataclasses.dataclass(frozen=True)
class Change:
    """A test that fails now or failed before.

    Attributes:
        status: one of :data:`CHANGES`; ``not run again``: failed before, and judged nothing now.
        now, then: the test in the newer and the earlier run, where it is in them.
    """

    status: str
    test: str
    now: Test | None
    then: Test | None

    @property
    def shown(self) -> Test:
        """The failure to show: the one of now, if it fails now."""
        chosen = self.now if self.now is not None and self.now.kind else self.then
        assert chosen is not None
        return chosen

    @property
    def differs(self) -> bool:
        """Whether it fails in both, in another way."""
        return (
            self.status == STILL
            and self.now is not None
            and self.then is not None
            and ((self.now.kind, self.now.cause) != (self.then.kind, self.then.cause))
        )


@dataclasses.dataclass(frozen=True)
class Cell:
    """One format in one environment.

    Attributes:
        run, before: the newest run with this format, and what it is compared with.
        changes: in the order of :data:`CHANGES`, then by test.
    """

    format: str
    run: Run
    tally: Tally
    before: Run | None
    changes: tuple[Change, ...]

    @property
    def status(self) -> str:
        """``fail``, ``pass``, or ``neutral`` where no case was judged."""
        if self.tally.failing:
            return "fail"
        return "pass" if any(test.judged for test in self.tally.tests.values()) else "neutral"

    def count(self, status: str) -> int:
        return sum(change.status == status for change in self.changes)


@dataclasses.dataclass(frozen=True)
class Column:
    """One environment: its cells by format, and all of its runs, the oldest first."""

    environment: Environment
    cells: dict[str, Cell]
    runs: tuple[Run, ...]


def columns(runs: Sequence[Run], before: Sequence[Run] | None = None) -> list[Column]:
    """The matrix of ``runs`` (the oldest first).

    Args:
        before: what to compare with; None: each with the run before it in the same environment.
    """
    places: dict[Environment, list[Run]] = {}
    for run in runs:
        places.setdefault(run.environment, []).append(run)
    earlier = None if before is None else _by_environment(before, places)
    found = []
    for environment in sorted(places, key=lambda place: place.order):
        here = places[environment]
        cells = {}
        for name in sorted({name for run in here for name in run.tallies}):
            having = [run for run in here if name in run.tallies]
            if earlier is None:
                then = having[-2] if len(having) > 1 else None
            else:
                matching = [run for run in earlier.get(environment, []) if name in run.tallies]
                then = matching[-1] if matching else None
            cells[name] = _cell(name, having[-1], then)
        found.append(Column(environment, cells, tuple(here)))
    return found


def _by_environment(before: Iterable[Run], places: Iterable[Environment]) -> dict[Environment, list[Run]]:
    """Earlier runs by the environment of now that they stand for: the same one, else the only one with
    the same Triton and device (torch or Python may have moved on)."""
    known = list(places)
    found: dict[Environment, list[Run]] = {}
    for run in before:
        was = run.environment
        alike = [place for place in known if place.pair == was.pair]
        if was in known:
            found.setdefault(was, []).append(run)
        elif len(alike) == 1:
            found.setdefault(alike[0], []).append(run)
    return found


def unmatched(before: Iterable[Run], found: Iterable[Column]) -> list[Run]:
    """Earlier runs that no column is compared with."""
    used = {id(cell.before) for column in found for cell in column.cells.values()}
    return [run for run in before if id(run) not in used]


def _cell(name: str, run: Run, then: Run | None) -> Cell:
    tally = run.tallies[name]
    changes = _changes(tally, None if then is None else then.tallies[name])
    return Cell(name, run, tally, then, tuple(changes))


def _changes(now: Tally, then: Tally | None) -> list[Change]:
    if then is None:
        return [Change(FAILING, name, test, None) for name, test in sorted(now.failing.items())]
    found = []
    for name in sorted(now.failing.keys() | then.failing.keys()):
        test, was = now.tests.get(name), then.tests.get(name)
        if test is not None and test.kind:
            status = STILL if was is not None and was.kind else NEW
        else:
            status = FIXED if test is not None and test.judged else GONE
        found.append(Change(status, name, test, was))
    return sorted(found, key=lambda change: CHANGES.index(change.status))
