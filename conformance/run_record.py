"""What a run's results hold besides cases: where they are from, what was found, and that the run ended.

A line that is no case says so under ``record``: ``run`` (the first), ``finding`` or ``end`` (the last).
"""

from __future__ import annotations

import datetime
import subprocess
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from conformance.runtime import Runtime, environment
from conformance.verdict import Verdict

SCHEMA = 1
KIND = "record"
ROOT = Path(__file__).resolve().parents[1]


def is_case(record: Mapping[str, Any]) -> bool:
    """Whether a line is the record of a case, and not of the run."""
    return KIND not in record


def is_finding(record: Mapping[str, Any]) -> bool:
    """Whether a line is what the second look found out of a failing test."""
    return record.get(KIND) == "finding"


def now() -> str:
    """UTC to the second, as ISO 8601."""
    stamp = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    return stamp.replace("+00:00", "Z")


def commit(root: Path = ROOT) -> str | None:
    """Commit of a checkout, with ``-dirty`` where tracked files were changed; None where it is unknown."""
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 and done.stdout.strip() else None


def begin(
    runtime: Runtime, *, seed: int, given: bool, profile: str, options: Mapping[str, Any]
) -> dict[str, Any]:
    """The first line of a run's results, but for the process that writes it (``worker``).

    Args:
        given: whether the seed was given, so that no remembered failure is replayed.
        options: as of :func:`conformance.rerun.options_of`.
    """
    return {
        KIND: "run",
        "schema": SCHEMA,
        "run": uuid.uuid4().hex,
        "started": now(),
        "environment": environment(runtime),
        "interpreter": runtime.interpreter,
        "seed": seed,
        "seed_given": given,
        "profile": profile,
        "options": dict(options),  # of conformance.rerun
        "commit": commit(),
    }


def finding(verdict: Verdict, test: str, bundle: str | None, flaky: bool) -> dict[str, Any]:
    """A failing test with all that the second look found out, which the records of its cases lack.

    Args:
        bundle: its folder, relative to the run's, or None.
        flaky: failed once and passed when it was run again.
    """
    return {KIND: "finding", **verdict.to_json(), "test": test, "bundle": bundle, "flaky": flaky}


def end(status: int) -> dict[str, Any]:
    """The last line of a run that was not cut off; ``status`` is pytest's exit code."""
    return {KIND: "end", "finished": now(), "status": status}
