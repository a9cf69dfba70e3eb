"""Machine-readable results: one JSON line a case, one file a process, and their summary."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from conformance.errors import UsageError
from conformance.verdict import COMPARED, FAILING, NEUTRAL


class ResultWriter:
    """Appends JSON lines to ``run_dir/results[-worker].jsonl``; flushed line by line."""

    def __init__(self, run_dir: Path, worker: str = "") -> None:
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

    def write(self, record: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def read_results(run_dir: Path) -> Iterator[dict[str, Any]]:
    """All records of a run, of every process."""
    for path in sorted(run_dir.glob("results*.jsonl")):
        with path.open(encoding="utf-8") as file:
            for line in file:
                if line.strip():
                    yield json.loads(line)


class Summary:
    """Counts over a run's records."""

    def __init__(self, records: Iterable[Mapping[str, Any]]) -> None:
        self.verdicts: dict[str, Counter[str]] = {}
        self.elements = 0
        self.cases = 0
        self.drawn_seconds: list[float] = []
        self.notes: Counter[str] = Counter()
        self.neutral: Counter[str] = Counter()
        self._causes: dict[tuple[str, str], str] = {}
        for record in records:
            self._add(record)

    def _add(self, record: Mapping[str, Any]) -> None:
        kind = record["verdict"]
        self.verdicts.setdefault(record["format"], Counter())[kind] += 1
        self.cases += 1
        if record["fields"].get("route") == "words":
            self.drawn_seconds.append(record.get("seconds", 0.0))
        if kind in COMPARED:
            self.elements += record["elements"]
        if kind in FAILING and record.get("test"):
            # The last failure of a test is its smallest.
            name = record["causes"][0]["name"] if record["causes"] else "no cause"
            self._causes[record["format"], record["test"]] = f"{record['format']} {kind}: {name}"
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
        return Counter(self._causes.values())

    @property
    def rate(self) -> float:
        """Cases a second of one process once warm: of the median case of random words, so that
        first compilations and large real layers do not count. 0 when there were none."""
        median = statistics.median(self.drawn_seconds) if self.drawn_seconds else 0.0
        return 1 / median if median else 0.0
