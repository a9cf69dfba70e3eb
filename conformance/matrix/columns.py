"""Columns and the table of runs: where each was, how it ended, and what it did otherwise."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from conformance.matrix.compare import Column
from conformance.matrix.runs import Run
from conformance.rerun import BY_FORMAT


@dataclasses.dataclass(frozen=True)
class ColumnView:
    """One environment. ``more``: what else it differs in from a column of the same Triton and device."""

    triton: str
    device: str
    more: str
    runs: tuple[Mapping[str, str], ...]


def unlike(name: str, run: Run, before: Run) -> str:
    """What the earlier run did otherwise, as far as it concerns one format; empty if nothing."""
    if run.header is None or before.header is None:
        return ""

    def chosen(one: Run) -> dict[str, str]:
        found = {"profile": str((one.header or {}).get("profile", ""))}
        for option, value in one.options.items():
            if option in BY_FORMAT:
                value = [given.partition("=")[2] for given in value if given.partition("=")[0] == name]
            found[option] = ", ".join(map(str, value)) if isinstance(value, list) else str(value or "")
        return found

    now, then = chosen(run), chosen(before)
    return "; ".join(
        f"{option.replace('_', ' ')} {then.get(option) or 'not given'}"
        for option in now
        if option != "device" and now[option] != then.get(option, "")
    )


def named(run: Run) -> str:
    return run.started or f"a run in {run.folder}"


def column_view(column: Column, every: Sequence[Column]) -> ColumnView:
    place = column.environment
    alike = [other.environment for other in every if other.environment.pair == place.pair]
    more = []
    for label, field in (("torch", "torch"), ("Python", "python")):
        if len({getattr(other, field) for other in alike}) > 1:
            more.append(f"{label} {getattr(place, field)}")
    current = {id(cell.run): cell.run for cell in column.cells.values()}
    runs = tuple(run_row(run, column) for run in column.runs if id(run) in current)
    return ColumnView(place.triton, place.device, ", ".join(more), runs)


def run_row(run: Run, column: Column) -> dict[str, str]:
    """A row of the table of runs."""
    header = run.header or {}
    environment = header.get("environment", {})
    options = run.options
    chosen = [given for name in ("kernel", "fused") for given in options.get(name, ())]
    if options.get("gate", "exact") != "exact":
        chosen.append(f"gate {options['gate']} (looser than exact)")
    return {
        "triton": column.environment.triton,
        "device": str(environment.get("device", run.device)),
        "started": run.started,
        "state": run.state,
        "cases": f"{run.cases:,}",
        "commit": str(header.get("commit") or ""),
        "seed": str(header.get("seed", "")),
        "profile": str(header.get("profile", "")),
        "versions": ", ".join(
            f"{name} {environment[name]}"
            for name in ("torch", "numpy", "hypothesis", "python", "platform")
            if name in environment
        ),
        "chosen": ", ".join(chosen),
        "folder": str(run.folder),
    }


def run_notes(found: Sequence[Column]) -> Iterator[str]:
    for column in found:
        used = {id(run) for cell in column.cells.values() for run in (cell.run, cell.before)}
        old = sum(id(run) not in used for run in column.runs)
        where = f"Triton {column.environment.triton} on {column.environment.device}"
        if old:
            yield f"{where}: {old} older or empty runs are not shown"
        for run in column.runs:
            if id(run) in used and run.state not in ("finished", "not recorded"):
                lost = [name or "main" for name, status in run.processes.items() if status is None]
                detail = f" in its processes {', '.join(lost)}" if lost else ""
                yield f"{where}: the run of {named(run)} was {run.state}{detail}; what it wrote counts"
