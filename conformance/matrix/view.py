"""The page's data: everything that the template shows, as text and numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from conformance.matrix.bundles import Bundles, verdict_of
from conformance.matrix.columns import ColumnView, column_view, named, run_notes, unlike
from conformance.matrix.compare import CHANGES, FAILING, FIXED, GONE, NEW, STILL, Cell, Change, Column
from conformance.matrix.shown import measure_rows, slug, whole_record
from conformance.rerun import replay, rerun
from conformance.verdict import KINDS

# Lines of reasons why cases were not judged.
REASONS = 5


@dataclasses.dataclass(frozen=True)
class Finding:
    """One failing test as shown. ``record`` is as :func:`conformance.matrix.shown.whole_record`
    gives it."""

    id: str
    status: str
    test: str
    was: str
    record: Mapping[str, Any]
    measures: tuple[tuple[str, str], ...]
    commands: tuple[tuple[str, str], ...]
    picture: str
    no_picture: str


@dataclasses.dataclass(frozen=True)
class CellView:
    """One cell, with its part of the page if it has any findings."""

    id: str
    format: str
    column: int
    status: str
    cases: int
    elements: int
    counts: tuple[tuple[str, int], ...]
    changes: tuple[tuple[str, int], ...]
    failing: int
    date: str
    before: str
    before_dated: bool
    unlike: str
    neutral: tuple[tuple[str, int], ...]
    findings: tuple[Finding, ...]
    left_out: int
    past: tuple[tuple[str, str, str], ...]

    @property
    def changed(self) -> bool:
        """Whether anything is not as it was in the run before."""
        return any(status in (NEW, FIXED, GONE) for status, _ in self.changes)


@dataclasses.dataclass(frozen=True)
class Page:
    """All of it. ``cells`` has a row for each format, with None where it did not run."""

    columns: tuple[ColumnView, ...]
    formats: tuple[str, ...]
    cells: Mapping[str, tuple[CellView | None, ...]]
    totals: Mapping[str, int]
    compared: bool
    notes: tuple[str, ...]

    @property
    def failing(self) -> tuple[CellView, ...]:
        """Cells with something to read, in the order of the table."""
        every = (cell for name in self.formats for cell in self.cells[name])
        return tuple(cell for cell in every if cell is not None and (cell.findings or cell.past))

    @property
    def unjudged(self) -> tuple[tuple[int, str, str], ...]:
        """Counts of cases that were not judged, with place and reason."""
        every = (cell for name in self.formats for cell in self.cells[name])
        return tuple(
            (count, f"{cell.format}, Triton {place.triton}, {place.device}", reason)
            for cell in every
            if cell is not None
            for place in (self.columns[cell.column],)
            for reason, count in cell.neutral
        )

    @property
    def line(self) -> str:
        """The page in one line."""
        total = self.totals
        text = f"{len(self.formats)} formats, {len(self.columns)} environments, {total['cases']:,} cases; "
        text += f"{total['tests']} failing tests"
        if self.compared:
            text += f" ({', '.join(f'{total[status]} {status}' for status in (NEW, STILL))})"
            text += f", {', '.join(f'{total[status]} {status}' for status in (FIXED, GONE))}"
        return text

    def cell_of(self, name: str) -> Iterator[tuple[ColumnView, CellView | None]]:
        """A row of the table."""
        return zip(self.columns, self.cells[name], strict=True)


Draw = Callable[[Path, str], str | None]


def page(
    found: Sequence[Column],
    notes: Sequence[str],
    *,
    most: int,
    draw: Draw | None = None,
    pictures: int = 0,
) -> Page:
    """The page of a matrix.

    Args:
        most: findings shown of a cell.
        draw: draws a bundle's picture under a name, and says why not if it cannot.
        pictures: how many are drawn at most.
    """
    builder = _Builder(most, draw, pictures)
    formats = tuple(sorted({name for column in found for name in column.cells}))
    cells = {
        name: tuple(
            builder.cell(column.cells[name], number, row) if name in column.cells else None
            for number, column in enumerate(found)
        )
        for row, name in enumerate(formats)
    }
    every = [cell for column in found for cell in column.cells.values()]
    totals = {status: sum(cell.count(status) for cell in every) for status in CHANGES}
    totals["tests"] = sum(len(cell.tally.failing) for cell in every)
    totals["cases"] = sum(sum(cell.tally.verdicts.values()) for cell in every)
    totals["elements"] = sum(cell.tally.elements for cell in every)
    more = [*notes, *builder.bundles.notes, *run_notes(found)]
    if builder.undrawn:
        more.append(
            f"{builder.undrawn} more findings have a bundle, but no picture: --pictures is {pictures}"
        )
    return Page(
        tuple(column_view(column, found) for column in found),
        formats,
        cells,
        totals,
        any(cell.before is not None for cell in every),
        tuple(more),
    )


class _Builder:
    def __init__(self, most: int, draw: Draw | None, pictures: int) -> None:
        self.most, self.draw, self.room = most, draw, pictures
        self.undrawn = 0
        self.bundles = Bundles()

    def cell(self, cell: Cell, column: int, row: int) -> CellView:
        # With its place: two names may have the same slug.
        name = f"cell-{column}-{row}-{slug(cell.format)}"
        failing = [change for change in cell.changes if change.status in (NEW, STILL, FAILING)]
        shown = failing[: self.most]
        findings = tuple(
            self.finding(f"{name}-{number}", cell, change) for number, change in enumerate(shown, 1)
        )
        past = [change for change in cell.changes if change.status in (FIXED, GONE)]
        counts = cell.tally.verdicts
        return CellView(
            name,
            cell.format,
            column,
            cell.status,
            sum(counts.values()),
            cell.tally.elements,
            tuple((kind, counts[kind]) for kind in KINDS if counts[kind]),
            tuple((status, cell.count(status)) for status in CHANGES if cell.count(status)),
            len(cell.tally.failing),
            cell.run.started,
            "" if cell.before is None else named(cell.before),
            cell.before is not None and bool(cell.before.started),
            "" if cell.before is None else unlike(cell.format, cell.run, cell.before),
            tuple(cell.tally.neutral.most_common(REASONS)),
            findings,
            len(failing) - len(shown),
            tuple((change.status, change.test, change.shown.headline) for change in past),
        )

    def finding(self, name: str, cell: Cell, change: Change) -> Finding:
        test, run = change.shown, cell.run
        record = test.record
        bundle = None if record is None else self.bundles.find(run, record)
        if bundle is not None and not test.found:
            record = verdict_of(bundle) or record
        whole = whole_record(record or {"verdict": test.kind, "causes": [{"name": test.cause}]})
        commands: tuple[tuple[str, str], ...] = ()
        if whole["case"]:
            commands = (("Judge the case again", _rerun(cell, whole)),)
        if bundle is not None:
            commands += (("Replay its tensors, without Hypothesis and oracles", replay(bundle)),)
        picture, why = self.picture(name, bundle, whole)
        was = change.then.headline if change.differs and change.then is not None else ""
        measures = measure_rows(whole["measures"])
        return Finding(name, change.status, change.test, was, whole, measures, commands, picture, why)

    def picture(self, name: str, bundle: Path | None, record: Mapping[str, Any]) -> tuple[str, str]:
        """Name of the picture, or why there is none."""
        if bundle is None or self.draw is None or not record["measures"]:
            return "", ""
        if self.room < 1:
            self.undrawn += 1
            return "", ""
        self.room -= 1
        why = self.draw(bundle, f"{name}.svg")
        return ("", why) if why else (f"{name}.svg", "")


def _rerun(cell: Cell, record: Mapping[str, Any]) -> str:
    options = cell.run.options
    if cell.run.header is None and not str(record["kernel"]).startswith("kernels."):
        options = {"kernel": [f"{cell.format}={record['kernel']}"]}
    return rerun(cell.format, record["case"], options, verdict=record["verdict"])
