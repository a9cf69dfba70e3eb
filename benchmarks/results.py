"""What a run writes: one JSON file, complete after every case, so that a killed run keeps its figures."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
from pathlib import Path
from typing import Any, Literal

from benchmarks.cases import BenchCase
from conformance.destinations import folder, new_file
from conformance.errors import UsageError

SCHEMA = 1
OURS = "this repository"
LIMIT = "loads and stores alone"

Status = Literal["ok", "wrong", "failed", "skipped"]


@dataclasses.dataclass(frozen=True)
class Measurement:
    """One function on one case.

    Attributes:
        case: what was asked for.
        by: ``this repository``, or the peer's name.
        status: ``ok``; ``wrong``: the bits differ, and there is no figure; ``failed``: it raised;
            ``skipped``: it was not run.
        reason: why there is no figure; of a peer with figures, how its bits differ.
        n_bytes: bytes that must move.
        seconds, low, high: median of a launch, 10th and 90th percentile.
        copy_seconds: of a device copy of as many bytes, in the same run.
        copies: sets of tensors that the passes went over.
        launch: launch parameters, where not the defaults.
    """

    case: BenchCase
    by: str
    status: Status
    reason: str = ""
    n_bytes: int = 0
    seconds: float | None = None
    low: float | None = None
    high: float | None = None
    copy_seconds: float | None = None
    copies: int = 0
    launch: dict[str, int] = dataclasses.field(default_factory=dict)

    @property
    def fraction(self) -> float | None:
        """Of the speed of the copy."""
        if self.seconds is None or self.copy_seconds is None:
            return None
        return self.copy_seconds / self.seconds

    @property
    def gb_per_s(self) -> float | None:
        return None if self.seconds is None else self.n_bytes / self.seconds / 1e9

    def to_dict(self) -> dict[str, Any]:
        fields = dataclasses.asdict(self)
        case = fields.pop("case")
        return {**case, **fields, "fraction": self.fraction, "gb_per_s": self.gb_per_s}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Measurement:
        names = {field.name for field in dataclasses.fields(cls)} - {"case"}
        return cls(BenchCase.from_dict(fields), **{name: fields[name] for name in names})


@dataclasses.dataclass(frozen=True)
class Overhead:
    """Seconds of one call at a size where launching is all there is: called from Python, and in a
    CUDA graph; ``reason`` where there is no figure."""

    format: str
    variant: str
    rows: int
    cols: int
    host_seconds: float | None
    graph_seconds: float | None
    reason: str = ""


@dataclasses.dataclass(frozen=True)
class CompileTime:
    """Seconds until a variant's first launch with an empty cache, and of the next one."""

    format: str
    variant: str
    dtype: str
    first_seconds: float | None
    next_seconds: float | None
    reason: str = ""


@dataclasses.dataclass
class Results:
    """Everything of one run."""

    machine: dict[str, Any]
    measurements: list[Measurement] = dataclasses.field(default_factory=list)
    overheads: list[Overhead] = dataclasses.field(default_factory=list)
    compile_times: list[CompileTime] = dataclasses.field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "machine": self.machine,
            "measurements": [entry.to_dict() for entry in self.measurements],
            "overheads": [dataclasses.asdict(entry) for entry in self.overheads],
            "compile_times": [dataclasses.asdict(entry) for entry in self.compile_times],
        }

    def write(self, path: Path) -> None:
        write_json(path, self.to_dict())


def add_json(group: argparse._ActionsContainer, text: str) -> None:
    """The options of a command that measures and keeps what it found."""
    group.add_argument("--json", type=Path, metavar="FILE", help=text)
    group.add_argument("--force", action="store_true", help="write the file of --json though it is there")


def look_at_json(options: argparse.Namespace) -> None:
    """Look, before anything is measured, whether the file of ``--json`` can be written.

    Raises:
        UsageError: it is there and ``--force`` is not given, or there is no place to write to.
    """
    if options.json is None:
        return
    if options.json.parent.exists():
        new_file("--json", options.json, force=options.force)
    else:
        folder("--json", options.json.parent)  # which write_json makes


def write_json(path: Path, content: Any) -> None:
    """Write, and only then take the place of an older file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    os.replace(part, path)


def read_json(path: Path) -> dict[str, Any]:
    """What :func:`write_json` wrote, of this schema.

    Raises:
        UsageError: no such file, no JSON, or another schema.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"results: expected a JSON file, found {type(error).__name__}: {error}") from error
    schema = content.get("schema") if isinstance(content, dict) else None
    if not isinstance(content, dict) or schema != SCHEMA:
        raise UsageError(f"results: expected schema {SCHEMA}, found {schema!r} in {str(path)!r}")
    return content


def read(path: Path) -> Results:
    """Results of a file that :meth:`Results.write` wrote.

    Raises:
        UsageError: no such file, or not of this form.
    """
    content = read_json(path)
    if "swept" in content:
        raise UsageError(
            f"results: expected those of python -m benchmarks, found a sweep in {str(path)!r}: "
            f"python -m benchmarks.sweep --show prints it"
        )
    try:
        return Results(
            content["machine"],
            [Measurement.from_dict(entry) for entry in content["measurements"]],
            [Overhead(**entry) for entry in content["overheads"]],
            [CompileTime(**entry) for entry in content["compile_times"]],
        )
    except (KeyError, TypeError) as error:
        raise UsageError(
            f"results: expected the fields of schema {SCHEMA}, found {type(error).__name__}: {error}"
        ) from error
