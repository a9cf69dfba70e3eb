"""What a sweep found: its records, their file and their table."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.cases import BenchCase
from benchmarks.results import read_json
from conformance.errors import UsageError


@dataclasses.dataclass(frozen=True)
class Trial:
    """One configuration: its launch parameters, and the fraction of the copy or why there is none."""

    launch: dict[str, int]
    status: str
    seconds: float | None = None
    fraction: float | None = None
    again: bool = False  # timed in the final rounds too
    reason: str = ""


@dataclasses.dataclass(frozen=True)
class Swept:
    """A case and its trials; the first is the defaults.

    Attributes:
        best: the fastest that is right, or None.
        complete: whether every configuration was tried.
    """

    case: BenchCase
    n_bytes: int
    copy_seconds: float | None
    trials: tuple[Trial, ...]
    complete: bool
    reason: str = ""

    @property
    def best(self) -> Trial | None:
        right = [trial for trial in self.trials if trial.seconds is not None]
        final = [trial for trial in right if trial.again] or right
        return min(final, key=lambda trial: trial.seconds or 0, default=None)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Swept:
        names = {field.name for field in dataclasses.fields(cls)} - {"case", "trials"}
        trials = tuple(Trial(**trial) for trial in fields["trials"])
        return cls(
            BenchCase.from_dict(fields["case"]), trials=trials, **{name: fields[name] for name in names}
        )

    def to_dict(self) -> dict[str, Any]:
        best = self.best
        return {
            "case": dataclasses.asdict(self.case),
            "n_bytes": self.n_bytes,
            "copy_seconds": self.copy_seconds,
            "complete": self.complete,
            "reason": self.reason,
            "best": None if best is None else dataclasses.asdict(best),
            "trials": [dataclasses.asdict(trial) for trial in self.trials],
        }


def read(path: Path) -> tuple[dict[str, Any], list[Swept]]:
    """The machine and the cases of a file that ``--json`` wrote.

    Raises:
        UsageError: no such file, or not of this form.
    """
    content = read_json(path)
    if "swept" not in content:
        raise UsageError(f"sweep: expected a sweep's file, found none of its fields in {str(path)!r}")
    try:
        return dict(content["machine"]), [Swept.from_dict(fields) for fields in content["swept"]]
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise UsageError(
            f"sweep: expected the fields of one in {str(path)!r}, found {type(error).__name__}: {error}"
        ) from error


def show(machine: Mapping[str, Any], found: Sequence[Swept], console: Console) -> None:
    """Print everything of a sweep, the machine first."""
    about = ", ".join(f"{key} {value}" for key, value in machine.items())
    console.print(about, highlight=False, markup=False)
    console.print(table(found))


def _written(launch: Mapping[str, int]) -> str:
    return " ".join(f"{key}={value}" for key, value in launch.items())


def table(found: Sequence[Swept]) -> Table:
    """A row a case: what the defaults give, and what the best give."""
    shown = Table(title="launch parameters", title_justify="left")
    for column in ("case", "defaults", "best", "best parameters", "tried", "wrong", "note"):
        shown.add_column(
            column, justify="right" if column in ("defaults", "best", "tried") else "left", overflow="fold"
        )
    for entry in found:
        best = entry.best
        wrong = [trial for trial in entry.trials if trial.status == "wrong"]
        failed = [trial for trial in entry.trials if trial.status == "failed"]
        first = entry.trials[0].fraction if entry.trials else None
        note = entry.reason or next((trial.reason for trial in (*wrong, *failed)), "")
        shown.add_row(
            entry.case.id,
            "" if first is None else f"{first:.3f}",
            "" if best is None or best.fraction is None else f"{best.fraction:.3f}",
            "" if best is None else _written(best.launch),
            f"{len(entry.trials)}{'' if entry.complete else ' (cut)'}",
            f"{len(wrong)} wrong, {len(failed)} failed" if wrong or failed else "",
            note,
        )
    return shown
