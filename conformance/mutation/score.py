"""One mutant against the suite: a job, and its outcome."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

from conformance.harness import Checked, Harness
from conformance.investigate import investigate
from conformance.mutation.faulty import faulty_kernel
from conformance.mutation.source import Mutant, plant
from conformance.mutation.suite import Item, suite
from conformance.registry import builtin_kernel
from conformance.runtime import choose
from conformance.setup import build
from conformance.zero_size import Empty

KINDS = ("control", "catalogue", "source")


@dataclasses.dataclass(frozen=True)
class Job:
    """What to plant, and the formats whose suites are asked about it.

    A control has neither fault nor mutant: the built-in kernel if ``builtin``, else one that computes the
    exact model.
    """

    kind: str
    name: str
    formats: tuple[str, ...]
    fault: str = ""
    mutant: Mutant | None = None
    builtin: bool = False


@dataclasses.dataclass(frozen=True)
class Plan:
    """What holds for all jobs: device option, seed of the draws, drawn cases a test."""

    device: str
    seed: int
    examples: int


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What the suite said.

    Attributes:
        kind, name: those of the job.
        format: whose suite caught it; all that were asked, joined, when none did.
        verdict: kind of the first failing verdict, ``CRASH (signal 11)``, ``TIMEOUT``; empty: survived.
        test, case: where that was.
        examples: cases of that format judged until then, the failing one included.
        causes: causes that the report names on the first failing case, best first; the case is as it was
            drawn, not shrunk.
        fault: the planted fault of the catalogue, or empty.
        change: of a source mutant, what was changed.
        seconds: of the whole job.
        error: traceback of the harness itself when it raised; then nothing was caught.
    """

    kind: str
    name: str
    format: str
    verdict: str = ""
    test: str = ""
    case: str = ""
    examples: int = 0
    causes: tuple[str, ...] = ()
    fault: str = ""
    change: str = ""
    seconds: float = 0.0
    error: str = ""

    @property
    def caught(self) -> bool:
        return bool(self.verdict)

    @property
    def named(self) -> str:
        """``alone``, ``first`` or ``among`` the causes, or empty."""
        if not self.fault or self.fault not in self.causes:
            return ""
        if len(self.causes) == 1:
            return "alone"
        return "first" if self.causes[0] == self.fault else "among"

    def to_json(self) -> str:
        return json.dumps({**dataclasses.asdict(self), "caught": self.caught, "named": self.named})


@functools.cache
def base_harness(device: str) -> Harness:
    """Harness without oracles: the exact model judges. The suite itself holds the oracles to it."""
    return dataclasses.replace(build(choose(device)), oracles=frozenset())


def items(formats: tuple[str, ...], plan: Plan) -> Iterator[tuple[str, int, Item]]:
    """``(format, number, item)``: the suites of all formats, one item of each in turn, so that what only
    one of them can see is found soon."""
    suites = [
        [(name, i, item) for i, item in enumerate(suite(name, plan.seed, plan.examples), 1)]
        for name in formats
    ]
    for row in zip_longest(*suites):
        yield from (entry for entry in row if entry is not None)


def _judge(harness: Harness, item: Item) -> Checked:
    name, _, fields = item.case.partition(":")
    case = harness.formats[name].parse(fields)
    if item.test.startswith("test_zero_size"):
        return Empty(harness).judge(case)
    return harness.judge(case)


def _prepared(job: Job, device: str, folder: Path) -> Harness:
    harness = base_harness(device)
    kernels = {name: builtin_kernel(harness.formats[name]) for name in job.formats}
    if job.mutant is not None:
        plant(job.mutant, folder)
    elif not job.builtin:
        for name in job.formats:
            fmt = harness.formats[name]
            fault = next((fault for fault in fmt.faults if fault.name == job.fault), None)
            kernels[name] = faulty_kernel(fmt, fault)
    return dataclasses.replace(harness, kernels={**harness.kernels, **kernels})


def run_job(job: Job, plan: Plan, begun: Callable[[str, int, Item], Any]) -> Outcome:
    """Judge the job's kernel case by case until one fails. ``begun`` is told of each case before.

    Changes this process for good when the job has a source mutant.
    """
    started = time.perf_counter()
    blank = Outcome(
        job.kind,
        job.name,
        " ".join(job.formats),
        fault=job.fault,
        change=job.mutant.change if job.mutant else "",
    )
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRITON_CACHE_DIR"] = folder  # compiled code of no other mutant
        harness = _prepared(job, plan.device, Path(folder))
        for name, number, item in items(job.formats, plan):
            begun(name, number, item)
            checked = _judge(harness, item)
            if checked.verdict.failed:
                if job.fault:
                    # As the report does before it names causes.
                    checked = investigate(harness, checked, harness.kernels[name])
                verdict = checked.verdict
                return dataclasses.replace(
                    blank,
                    format=name,
                    verdict=verdict.kind,
                    test=item.test,
                    case=item.case,
                    examples=number,
                    causes=tuple(cause.name for cause in verdict.causes),
                    seconds=time.perf_counter() - started,
                )
    return dataclasses.replace(blank, seconds=time.perf_counter() - started)
