"""What is kept of a run: counts, and for each test whether it failed, and how."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from conformance.verdict import FAILING, NEUTRAL

UNKNOWN = "not recorded"
# Whole records of failing tests are kept for so many tests of a format; of the others a headline.
MOST = 500


@dataclasses.dataclass(frozen=True)
class Environment:
    """Where a run was: what makes two runs comparable.

    Attributes:
        device: GPU by its name, or that it was the interpreter.
        python: without the patch release.
    """

    triton: str
    device: str
    torch: str
    python: str

    @staticmethod
    def of(run: Mapping[str, Any]) -> Environment:
        """From the first line of a run's results."""
        found = run["environment"]
        device = str(found.get("device", UNKNOWN))
        if run.get("interpreter"):
            device = "CPU, Triton's interpreter"
        elif "(" in device:
            device = device.partition("(")[2].rpartition(")")[0]
        python = ".".join(str(found.get("python", UNKNOWN)).split(".")[:2])
        return Environment(
            str(found.get("triton", UNKNOWN)), device, str(found.get("torch", UNKNOWN)), python
        )

    @staticmethod
    def unknown(device: str) -> Environment:
        """Of results without such a line; ``device`` as each record has it."""
        return Environment(UNKNOWN, f"{device} (no more is recorded)", UNKNOWN, UNKNOWN)

    @property
    def order(self) -> tuple[Any, ...]:
        """By version of Triton, the interpreter before GPUs."""
        try:
            version = Version(self.triton)
        except InvalidVersion:
            version = Version("0")
        return (version, self.triton, not self.device.startswith("CPU"), self.device, self.torch, self.python)

    @property
    def pair(self) -> tuple[str, str]:
        """What the columns of the page are about."""
        return (self.triton, self.device)


@dataclasses.dataclass(slots=True)
class Test:
    """One test: its cases by outcome, and the failure that stands for it.

    Attributes:
        failed, judged, neutral: cases; ``judged`` are those that passed.
        record: of the last failure (its smallest) or of the finding, or None if not kept.
        found: ``record`` is a finding: it has been looked into.
    """

    failed: int = 0
    judged: int = 0
    neutral: int = 0
    kind: str = ""
    cause: str = ""
    record: Mapping[str, Any] | None = None
    found: bool = False

    @property
    def headline(self) -> str:
        return f"{self.kind}: {self.cause}" if self.cause else self.kind


@dataclasses.dataclass
class Tally:
    """What one run says of one format."""

    verdicts: Counter[str] = dataclasses.field(default_factory=Counter)
    elements: int = 0
    tests: dict[str, Test] = dataclasses.field(default_factory=dict)
    neutral: Counter[str] = dataclasses.field(default_factory=Counter)
    kept: int = 0

    def add(self, record: Mapping[str, Any], *, found: bool = False) -> None:
        """Count a case, or take in what was found out about a test (``found``)."""
        kind, name = record["verdict"], record.get("test") or f"case {record['case']}"
        test = self.tests.get(name)
        if test is None:
            test = self.tests[name] = Test()
        if not found:
            self.verdicts[kind] += 1
            self.elements += record.get("elements", 0)
            if kind in NEUTRAL:
                test.neutral += 1
                self.neutral[f"{kind}: {record.get('summary', '')}"[:200]] += 1
            elif kind not in FAILING:
                test.judged += 1
            else:
                test.failed += 1
        if kind in FAILING and (found or not test.found):
            self._keep(test, record, found)

    def _keep(self, test: Test, record: Mapping[str, Any], found: bool) -> None:
        causes = [cause for cause in record.get("causes") or () if isinstance(cause, dict)]
        test.kind, test.cause = record["verdict"], str(causes[0].get("name", "")) if causes else ""
        test.found = found
        if test.record is None:
            if self.kept >= MOST:
                return
            self.kept += 1
        test.record = record

    @property
    def failing(self) -> dict[str, Test]:
        """Tests with a failing case, by name."""
        return {name: test for name, test in self.tests.items() if test.kind}


@dataclasses.dataclass
class Run:
    """One run, of all its processes.

    Attributes:
        header: first line of its results, or None for results of before there was one.
        folder: where its files are; bundles are found from there.
        processes: names of those whose results were read, each with its exit code; None: cut off.
        device: as the records have it, where there is no header.
    """

    folder: Path
    header: Mapping[str, Any] | None = None
    processes: dict[str, int | None] = dataclasses.field(default_factory=dict)
    tallies: dict[str, Tally] = dataclasses.field(default_factory=dict)
    device: str = UNKNOWN

    @property
    def environment(self) -> Environment:
        return Environment.unknown(self.device) if self.header is None else Environment.of(self.header)

    @property
    def started(self) -> str:
        """UTC as ISO 8601, or empty, which sorts first."""
        return "" if self.header is None else str(self.header.get("started", ""))

    @property
    def options(self) -> Mapping[str, Any]:
        return {} if self.header is None else self.header.get("options") or {}

    @property
    def state(self) -> str:
        """How it ended, in words."""
        if self.header is None:
            return UNKNOWN
        if any(status is None for status in self.processes.values()):
            return "cut off"
        worst = max((status or 0 for status in self.processes.values()), default=0)
        return {0: "finished", 1: "finished", 5: "finished"}.get(worst, f"stopped (pytest exit code {worst})")

    @property
    def cases(self) -> int:
        return sum(sum(tally.verdicts.values()) for tally in self.tallies.values())
