"""The tables of ``docs/performance.md``, out of a run's JSON file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.cases import DTYPES
from benchmarks.results import LIMIT, OURS, Measurement, Results
from conformance.errors import UsageError

BEGIN = "<!-- measured: written by python -m benchmarks --docs -->"
END = "<!-- end of measured -->"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows)]


def _cell(entry: Measurement | None) -> str:
    if entry is None:
        return ""
    return entry.status if entry.fraction is None else f"{entry.fraction:.2f}"


def _sizes(entries: Sequence[Measurement]) -> list[tuple[int, int]]:
    return list(dict.fromkeys((entry.case.rows, entry.case.cols) for entry in entries))


def _name(entry: Measurement) -> str:
    return f"{entry.case.format}, {entry.case.variant}"


def _group(group: int) -> str:
    return {0: "", -1: "one"}.get(group, str(group))


def _usual(entries: Sequence[Measurement]) -> list[Measurement]:
    """Of each kind, those of the group size that was measured first."""
    first: dict[tuple[str, str], int] = {}
    return [
        entry
        for entry in entries
        if first.setdefault((entry.case.format, entry.case.variant), entry.case.group) == entry.case.group
    ]


def _by_size(ours: Sequence[Measurement], dtype: str) -> list[str]:
    usual = [entry for entry in _usual(ours) if entry.case.dtype == dtype]
    sizes = _sizes(usual)
    rows: dict[str, dict[tuple[int, int], Measurement]] = {}
    for entry in usual:
        rows.setdefault(_name(entry), {})[entry.case.rows, entry.case.cols] = entry
    head = ("format", *(f"{rows}x{cols}" for rows, cols in sizes))
    return _table(head, ((name, *(_cell(found.get(size)) for size in sizes)) for name, found in rows.items()))


def _by_group(ours: Sequence[Measurement]) -> list[str]:
    # All at the size and dtype that come first.
    first = ours[0].case
    same = [
        entry
        for entry in ours
        if (entry.case.rows, entry.case.cols, entry.case.dtype) == (first.rows, first.cols, first.dtype)
    ]
    rows: dict[str, list[Measurement]] = {}
    for entry in same:
        rows.setdefault(_name(entry), []).append(entry)
    several = {name: found for name, found in rows.items() if len(found) > 1}
    if not several:
        return []
    title = f"### Group sizes, {first.dtype}, {first.rows}x{first.cols}"
    body = (
        (name, ", ".join(f"{_group(entry.case.group)}: {_cell(entry)}" for entry in found))
        for name, found in several.items()
    )
    return [title, "", *_table(("format", "group or block size: fraction of copy"), body), ""]


def _against_peers(results: Results, ours: Sequence[Measurement]) -> list[str]:
    peers = [
        entry
        for entry in results.measurements
        if entry.by not in (OURS, LIMIT) and entry.fraction is not None
    ]
    if not peers:
        return []
    own = {entry.case: entry for entry in ours}
    body = []
    for entry in peers:
        mine = own.get(entry.case)
        faster = ""
        if mine is not None and mine.seconds and entry.seconds:
            faster = f"{entry.seconds / mine.seconds:.2f}"
        bits = "same" if not entry.reason else entry.reason.partition(",")[0]
        size = f"{entry.case.rows}x{entry.case.cols}"
        row = (_name(entry), entry.case.dtype, size, entry.by, _cell(entry), _cell(mine), faster, bits)
        body.append(row)
    head = ("format", "output", "size", "by", "of copy", "this repository", "times faster", "bits")
    note = "Times faster is a ratio of seconds; each fraction is of a copy measured beside it."
    return ["### Others", "", note, "", *_table(head, body), ""]


def _against_limits(results: Results, ours: Sequence[Measurement]) -> list[str]:
    """Of the speed of a kernel that only loads and stores: by dtype, format and size."""
    own = {entry.case: entry for entry in ours}
    limits = [entry for entry in results.measurements if entry.by == LIMIT and entry.fraction is not None]
    lines = []
    for dtype in DTYPES:
        same = [entry for entry in limits if entry.case.dtype == dtype]
        sizes = _sizes(same)
        rows: dict[str, dict[tuple[int, int], str]] = {}
        for entry in same:
            mine = own.get(entry.case)
            cell = f"{entry.fraction:.2f}"
            if mine is not None and mine.seconds and entry.seconds:
                cell += f" ({entry.seconds / mine.seconds:.2f})"
            rows.setdefault(_name(entry), {})[entry.case.rows, entry.case.cols] = cell
        if rows:
            head = ("format", *(f"{size[0]}x{size[1]}" for size in sizes))
            body = ((name, *(found.get(size, "") for size in sizes)) for name, found in rows.items())
            lines += [f"### Loads and stores alone, fraction of copy, {dtype}", ""]
            note = "In brackets this repository's speed as a share of it, a ratio of seconds."
            lines += [note, "", *_table(head, body), ""]
    return lines


def _launches(results: Results) -> list[str]:
    body = []
    compiled = {
        (entry.format, entry.variant): entry for entry in results.compile_times if entry.dtype == "fp16"
    }
    for entry in results.overheads:
        if entry.host_seconds is None:
            continue
        graph = "" if entry.graph_seconds is None else f"{entry.graph_seconds * 1e6:.1f}"
        row = [f"{entry.format}, {entry.variant}", f"{entry.host_seconds * 1e6:.0f}", graph]
        if compiled:
            first = compiled.get((entry.format, entry.variant))
            row.append("" if first is None or first.first_seconds is None else f"{first.first_seconds:.1f}")
        body.append(row)
    if not body:
        return []
    head = ["format", "called from Python, us", "in a CUDA graph, us"]
    head += ["first call, empty cache, s"] if compiled else []
    return ["### Launches, 64x64, fp16", "", *_table(head, body), ""]


def markdown(results: Results) -> str:
    """Everything between the markers.

    Raises:
        UsageError: a run without a figure.
    """
    ours = [entry for entry in results.measurements if entry.by == OURS]
    if not any(entry.fraction is not None for entry in ours):
        raise UsageError("results: expected at least one figure of this repository, found none")
    copies = [
        entry.n_bytes / entry.copy_seconds / 1e9 for entry in ours if entry.copy_seconds and entry.n_bytes
    ]
    about = results.machine
    lines = [
        f"{about.get('device', 'unknown device')}, torch {about.get('torch')}, Triton {about.get('triton')}, "
        f"{about.get('date')}. The fastest copy moved {max(copies):.0f} GB/s.",
        "",
    ]
    for dtype in DTYPES:
        table = _by_size(ours, dtype)
        if len(table) > 2:
            lines += [f"### Fraction of copy, {dtype}", "", *table, ""]
    lines += _by_group(ours) + _against_peers(results, ours)
    lines += _against_limits(results, ours) + _launches(results)
    return "\n".join(lines).rstrip() + "\n"


def write(results: Results, page: Path) -> None:
    """Replace what is between the markers of ``page``.

    Raises:
        UsageError: no such file, or no markers in it.
    """
    try:
        text = page.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise UsageError(
            f"output: expected a page with the markers {BEGIN} and {END}, found no file {str(page)!r}"
        ) from error
    except OSError as error:
        raise UsageError(
            f"output: expected a page to write into, found {type(error).__name__}: {error}"
        ) from error
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise UsageError(
            f"output: expected the markers {BEGIN} and {END}, found no such place in {str(page)!r}"
        )
    page.write_text(f"{before}{BEGIN}\n\n{markdown(results)}\n{END}{after}", encoding="utf-8")
