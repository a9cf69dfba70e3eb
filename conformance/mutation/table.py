"""A run as tables for a terminal and as Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence

from rich.table import Table

from conformance.mutation.score import Outcome
from conformance.mutation.summary import Summary

Row = tuple[str, ...]
CATALOGUE = ("format", "fault", "caught", "verdict", "named", "examples", "first failing case")
SOURCE = ("function", "operator", "planted", "caught", "verdicts", "examples (median)")
FORMATS = ("format", "faults", "caught", "named", "first", "alone", "examples (median)", "examples (most)")


def catalogue_rows(outcomes: Iterable[Outcome]) -> Iterator[Row]:
    """One row a fault."""
    for o in outcomes:
        if o.kind == "catalogue":
            yield (
                o.format,
                o.fault,
                "yes" if o.caught else "NO",
                o.verdict,
                o.named or ("" if not o.caught else "NO"),
                str(o.examples) if o.caught else "",
                o.case,
            )


def format_rows(outcomes: Iterable[Outcome]) -> Iterator[Row]:
    """One row a format: the faults of the catalogue, counted."""
    groups: dict[str, list[Outcome]] = {}
    for o in outcomes:
        if o.kind == "catalogue":
            groups.setdefault(o.format, []).append(o)
    for name, group in groups.items():
        caught = [o for o in group if o.caught]
        named = [o.named for o in caught]
        yield (
            name,
            str(len(group)),
            str(len(caught)),
            str(sum(bool(how) for how in named)),
            str(sum(how in ("first", "alone") for how in named)),
            str(named.count("alone")),
            _median(caught),
            str(max((o.examples for o in caught), default="")),
        )


def source_rows(outcomes: Iterable[Outcome]) -> Iterator[Row]:
    """One row a function and operator."""
    groups: dict[tuple[str, str], list[Outcome]] = {}
    for o in outcomes:
        if o.kind == "source":
            function, operator, _ = o.name.split(":")
            groups.setdefault((function, operator), []).append(o)
    for (function, operator), group in groups.items():
        caught = [o for o in group if o.caught]
        kinds: dict[str, int] = {}
        for o in caught:
            kinds[o.verdict] = kinds.get(o.verdict, 0) + 1
        verdicts = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items(), key=lambda k: -k[1]))
        yield (function, operator, str(len(group)), str(len(caught)), verdicts, _median(caught))


def _median(caught: Sequence[Outcome]) -> str:
    return f"{statistics.median(o.examples for o in caught):g}" if caught else ""


def tables(summary: Summary) -> Iterator[Table]:
    """Tables for a terminal; those without rows are left out."""
    for title, columns, rows in (
        ("faults of the catalogue", CATALOGUE, catalogue_rows(summary.outcomes)),
        ("by format", FORMATS, format_rows(summary.outcomes)),
        ("mutants of the Triton sources", SOURCE, source_rows(summary.outcomes)),
    ):
        table = Table(title=title, title_justify="left")
        for column in columns:
            table.add_column(column, overflow="fold")
        for row in rows:
            table.add_row(*row)
        if table.row_count:
            yield table


def _markdown_table(columns: Row, rows: Iterable[Row]) -> Iterator[str]:
    lines = [list(row) for row in rows]
    if not lines:
        return
    yield "| " + " | ".join(columns) + " |"
    yield "|" + "---|" * len(columns)
    for line in lines:
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |"
    yield ""


def markdown(summary: Summary) -> str:
    """The numbers, the tables by format and by function, and every excused mutant with its reason."""
    parts = ["```", *summary.lines(), "```", ""]
    parts += _markdown_table(FORMATS, format_rows(summary.outcomes))
    parts += _markdown_table(SOURCE, source_rows(summary.outcomes))
    excused = [
        (name, f"`{change}`" if change else "", why, reason) for name, change, why, reason in summary.excused
    ]
    parts += _markdown_table(("listed mutant", "change", "why", "reason"), excused)
    return "\n".join(parts).rstrip() + "\n"
