"""Tables for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from benchmarks.results import OURS, Measurement, Results


def _of_copy(entry: Measurement) -> str:
    fraction = entry.fraction
    return "" if fraction is None else f"{fraction:.3f}"


def measurements_table(entries: Sequence[Measurement]) -> Table:
    """One row a measurement: fraction of the copy, rate, time and spread, or why there is none."""
    table = Table(title="dequantize against a device copy of the same bytes", title_justify="left")
    for column in ("case", "by", "of copy", "GB/s", "us", "10-90 %", "note"):
        right = column in ("of copy", "GB/s", "us", "10-90 %")
        table.add_column(column, justify="right" if right else "left", overflow="fold")
    for entry in entries:
        rate = entry.gb_per_s
        if entry.seconds is None or entry.low is None or entry.high is None:
            row = ("", "", "", "", f"{entry.status}: {entry.reason}")
        else:
            spread = f"{entry.low * 1e6:.1f}-{entry.high * 1e6:.1f}"
            row = (_of_copy(entry), f"{rate:.0f}", f"{entry.seconds * 1e6:.1f}", spread, entry.reason)
        style = "red" if entry.status in ("wrong", "failed") and entry.by == OURS else None
        table.add_row(entry.case.id, entry.by, *row, style=style)
    return table


def _time(seconds: float | None, unit: float, digits: int) -> str:
    return "" if seconds is None else f"{seconds * unit:.{digits}f}"


def show(results: Results, console: Console) -> None:
    """Print everything of a run, the machine first."""
    about = ", ".join(f"{key} {value}" for key, value in results.machine.items())
    console.print(about, highlight=False, markup=False)
    if results.measurements:
        console.print(measurements_table(results.measurements))
    if results.overheads:
        table = Table(title="one launch of 64 x 64, fp16", title_justify="left")
        for column in ("kernel", "called, us", "in a graph, us", "note"):
            table.add_column(column, justify="left" if column in ("kernel", "note") else "right")
        for entry in results.overheads:
            times = (_time(entry.host_seconds, 1e6, 1), _time(entry.graph_seconds, 1e6, 2))
            table.add_row(f"{entry.format}/{entry.variant}", *times, entry.reason)
        console.print(table)
    if results.compile_times:
        table = Table(title="first launch with an empty cache", title_justify="left")
        for column in ("kernel", "first, s", "next, us", "note"):
            table.add_column(column, justify="left" if column in ("kernel", "note") else "right")
        for compiled in results.compile_times:
            name = f"{compiled.format}/{compiled.variant}/{compiled.dtype}"
            times = (_time(compiled.first_seconds, 1, 2), _time(compiled.next_seconds, 1e6, 0))
            table.add_row(name, *times, compiled.reason)
        console.print(table)
    ours = [entry for entry in results.measurements if entry.by == OURS]
    counts = {
        status: sum(entry.status == status for entry in ours)
        for status in ("ok", "wrong", "failed", "skipped")
    }
    console.print(", ".join(f"{count} {status}" for status, count in counts.items()), highlight=False)


def passed(results: Results) -> bool:
    """Whether every kernel that was run was right and something was measured."""
    ours = [entry for entry in results.measurements if entry.by == OURS]
    return any(entry.status == "ok" for entry in ours) and not any(
        entry.status in ("wrong", "failed") for entry in ours
    )
