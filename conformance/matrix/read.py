"""Read the JSON lines of runs, line by line: what is kept grows with the tests, not with the cases."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from conformance.errors import UsageError
from conformance.matrix.runs import Environment, Run, Tally
from conformance.rerun import BY_FORMAT, REPEATED
from conformance.run_record import KIND, SCHEMA, is_case
from conformance.verdict import KINDS

# What the reader relies on; everything else in a record may be missing.
_CASE: dict[str, type] = {"verdict": str, "case": str, "format": str}
_RUN: dict[str, type] = {"run": str, "environment": dict}
_RUN_OPTIONAL: dict[str, type] = {"started": str, "options": dict}
_OPTIONAL: dict[str, type] = {
    "elements": int,
    "test": str,
    "summary": str,
    "causes": list,
    "located": list,
    "votes": list,
    "notes": list,
}


def files(paths: Iterable[Path], what: str) -> list[Path]:
    """The files of results among ``paths``: files as they are, folders with all that is under them.

    Raises:
        UsageError: nothing there, or a folder without ``*.jsonl``; ``what`` names the argument.
    """
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(path.rglob("*.jsonl"))
            if not inside:
                raise UsageError(f"{what}: expected results (*.jsonl) in the folder {path}, found none")
            found += inside
        elif path.is_file():
            found.append(path)
        else:
            raise UsageError(f"{what}: expected a file or folder of results, found nothing at {path}")
    return found


class Reader:
    """Collects runs; ``notes`` says what was left out, or taken as it is."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self._runs: dict[tuple[object, ...], Run] = {}
        self._seen: dict[Path, Path] = {}
        self._processes: dict[tuple[str, str], Path] = {}

    @property
    def runs(self) -> list[Run]:
        """Runs with cases or a header, the oldest first; those without a date before all others."""
        return sorted(self._runs.values(), key=lambda run: run.started)

    def read(self, path: Path) -> None:
        """Take in a file of results.

        Raises:
            UsageError: it cannot be read, a line is no JSON (a last one that was cut off is noted), or
                no record of this schema.
        """
        real = path.resolve()
        if real in self._seen:
            self.notes.append(f"{path} was given twice; it is counted once")
            return
        self._seen[real] = path
        run: Run | None = None
        process = ""
        skip = False
        number = 0
        for number, record in self._lines(path):
            if record.get(KIND) == "run":
                run, process, skip = self._begin(path, number, record)
            elif skip:
                continue
            elif record.get(KIND) == "end":
                if run is not None:
                    run.processes[process] = _status(record)
            else:
                run = run or self._unnamed(path)
                self._case(run, record, f"{path} line {number}")
        if number == 0:
            self.notes.append(f"{path} is empty: a run that was cut off before its first case, or no results")

    def _lines(self, path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
        """Numbered objects of a file."""
        try:
            with path.open("rb") as file:
                for number, line in enumerate(file, 1):
                    if not line.strip():
                        continue
                    try:
                        record = json.loads(line)
                    except (ValueError, RecursionError) as error:
                        if not line.endswith(b"\n"):
                            self.notes.append(
                                f"{path} line {number} was cut off: the run ended while it wrote; "
                                "the lines before it count"
                            )
                            return
                        raise UsageError(
                            f"results: expected JSON in {path} line {number}, found: {error}"
                        ) from error
                    if not isinstance(record, dict):
                        found = type(record).__name__
                        raise UsageError(
                            f"results: expected an object in {path} line {number}, found {found}"
                        )
                    yield number, record
        except OSError as error:
            raise UsageError(
                f"results: expected a file that can be read, found {path}: {error.strerror}"
            ) from error

    def _begin(self, path: Path, number: int, record: Mapping[str, Any]) -> tuple[Run, str, bool]:
        """The run that a first line belongs to, the process, and whether its lines were read already."""
        where = f"{path} line {number}"
        if record.get("schema") != SCHEMA:
            raise UsageError(
                f"results: expected schema {SCHEMA} in {where}, found {record.get('schema')!r}; "
                "was it written by another version?"
            )
        _check(record, _RUN, where)
        _check_given(record, _RUN_OPTIONAL, where)
        for name in (*BY_FORMAT, *REPEATED):
            given = record.get("options", {}).get(name, [])
            if not isinstance(given, list) or not all(isinstance(text, str) for text in given):
                raise UsageError(
                    f"results: expected {name} to be a list of texts in {where}, found {given!r}"
                )
        # A run on several kinds of GPU is one of each.
        key = ("run", record["run"], Environment.of(record))
        process = str(record.get("worker", ""))
        run = self._runs.setdefault(key, Run(path.parent, record))
        before = self._processes.get((record["run"], process))
        if before is not None:
            self.notes.append(f"{where} is the same run as {before}, given twice; it is counted once")
            return run, process, True
        self._processes[record["run"], process] = path
        run.processes[process] = None
        return run, process, False

    def _unnamed(self, path: Path) -> Run:
        """The run of a file without a first line of its own: one a folder for names as a run gives them."""
        named = path.name.startswith("results")
        key = ("folder", str(path.parent.resolve())) if named else ("file", str(path.resolve()))
        if key not in self._runs:
            self.notes.append(
                f"{path} does not say which environment it is from: it was written before runs recorded "
                "that, or its first line is missing"
            )
            self._runs[key] = Run(path.parent)
        return self._runs[key]

    def _case(self, run: Run, record: Mapping[str, Any], where: str) -> None:
        if not is_case(record) and record[KIND] != "finding":
            raise UsageError(
                f"results: expected a record of a run, finding or end in {where}, found {record[KIND]!r}"
            )
        _check(record, _CASE, where)
        if record["verdict"] not in KINDS:
            raise UsageError(
                f"results: expected a verdict that this version has in {where}, found {record['verdict']!r}"
            )
        _check_given(record, _OPTIONAL, where)
        run.device = str(record.get("device", run.device))
        tally = run.tallies.get(record["format"])
        if tally is None:
            tally = run.tallies[record["format"]] = Tally()
        tally.add(record, found=not is_case(record))


def read(paths: Iterable[Path], what: str) -> tuple[list[Run], list[str]]:
    """Runs of the files and folders ``paths``, and what there is to say about the files.

    Raises:
        UsageError: as of :func:`files` and :meth:`Reader.read`, or no case in any of them.
    """
    reader = Reader()
    found = files(paths, what)
    for path in found:
        reader.read(path)
    if not any(run.cases for run in reader.runs):
        raise UsageError(f"{what}: expected at least one case, found none in {len(found)} files")
    return reader.runs, reader.notes


def _status(record: Mapping[str, Any]) -> int:
    status = record.get("status")
    return status if isinstance(status, int) else 3


def _check(record: Mapping[str, Any], fields: Mapping[str, type], where: str) -> None:
    for field, kind in fields.items():
        if field not in record:
            raise UsageError(f"results: expected a field {field!r} in {where}, found none")
        if not isinstance(record[field], kind):
            _wrong(record, field, kind, where)


def _check_given(record: Mapping[str, Any], fields: Mapping[str, type], where: str) -> None:
    """As :func:`_check`, of the fields that are there."""
    _check(record, {field: kind for field, kind in fields.items() if field in record}, where)


def _wrong(record: Mapping[str, Any], field: str, kind: type, where: str) -> None:
    found = type(record[field]).__name__
    raise UsageError(f"results: expected {field} to be a {kind.__name__} in {where}, found {found}")
