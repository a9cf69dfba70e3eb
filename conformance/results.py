"""Machine-readable results: one JSON line a case, one file a process, and their summary."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from conformance.errors import UsageError
from conformance.run_record import end, is_case, is_finding
from conformance.verdict import COMPARED, FAILING, NEUTRAL


class ResultWriter:
    """Appends JSON lines to ``run_dir/results[-worker].jsonl``; flushed line by line.

    ``run`` is the first line (:func:`conformance.run_record.begin`); with it, closing writes a last one.
    """

    def __init__(self, run_dir: Path, worker: str = "", run: Mapping[str, Any] | None = None) -> None:
        self.run = run
        self.path = run_dir / f"results{'-' + worker if worker else ''}.jsonl"
        try:
            run_dir.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("x", encoding="utf-8")
        except FileExistsError as error:
            raise UsageError(
                f"--results: expected a folder without results of another run, found {error.filename}"
            ) from error
        except OSError as error:
            raise UsageError(
                f"--results: expected a folder to write to, found {run_dir} ({error})"
            ) from error
        if run is not None:
            self.write({**run, "worker": worker})

    def write(self, record: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()

    def close(self, status: int = 0) -> None:
        """``status`` is the exit code of the process that judged."""
        if self.run is not None and not self._file.closed:
            self.write(end(status))
        self._file.close()


def read_results(run_dir: Path) -> Iterator[dict[str, Any]]:
    """The records of all cases of a run, of every process."""
    return filter(is_case, _lines(run_dir))


def read_findings(run_dir: Path) -> Iterator[dict[str, Any]]:
    """What the second look made of the failing tests of a run."""
    return filter(is_finding, _lines(run_dir))


def _lines(run_dir: Path) -> Iterator[dict[str, Any]]:
    """All records. A last line that was cut off, when its process was killed, is left out."""
    for path in sorted(run_dir.glob("results*.jsonl")):
        with path.open(encoding="utf-8") as file:
            for line in file:
                if line.endswith("\n") and line.strip():
                    yield json.loads(line)


class Summary:
    """Counts over a run's records, with the causes of its findings where there are some."""

    def __init__(
        self, records: Iterable[Mapping[str, Any]], findings: Iterable[Mapping[str, Any]] = ()
    ) -> None:
        self.verdicts: dict[str, Counter[str]] = {}
        self.kernels: set[str] = set()
        self.elements = 0
        self.cases = 0
        self.drawn_seconds: list[float] = []
        self.notes: Counter[str] = Counter()
        self.neutral: Counter[str] = Counter()
        self._causes: dict[tuple[str, str], str] = {}
        for record in records:
            self._add(record)
        self._findings = {(record["format"], record["test"]): _named(record) for record in findings}

    def _add(self, record: Mapping[str, Any]) -> None:
        kind = record["verdict"]
        self.kernels.add(record["kernel"])
        self.verdicts.setdefault(record["format"], Counter())[kind] += 1
        self.cases += 1
        if record["fields"].get("route") == "words":
            self.drawn_seconds.append(record.get("seconds", 0.0))
        if kind in COMPARED:
            self.elements += record["elements"]
        if kind in FAILING and record.get("test"):
            # The last failure of a test is its smallest.
            self._causes[record["format"], record["test"]] = _named(record)
        for note in record["notes"]:
            self.notes[note] += 1
        if kind in NEUTRAL:
            self.neutral[f"{record['format']} {kind}: {record['summary']}"] += 1
        elif kind == "KNOWN_FAULT":
            # The last words of each part are the entry's id.
            for part in record["summary"].split("; "):
                self.neutral[f"{record['format']} {kind} {part.rpartition(': ')[2]}"] += 1

    @property
    def failures(self) -> Counter[str]:
        """Failing tests by format, verdict and first cause."""
        return Counter({**self._causes, **self._findings}.values())

    @property
    def rate(self) -> float:
        """Cases a second of one process once warm: of the median case of random words, so that
        first compilations and large real layers do not count. 0 when there were none."""
        median = statistics.median(self.drawn_seconds) if self.drawn_seconds else 0.0
        return 1 / median if median else 0.0


def _named(record: Mapping[str, Any]) -> str:
    name = record["causes"][0]["name"] if record["causes"] else "no cause"
    return f"{record['format']} {record['verdict']}: {name}"
