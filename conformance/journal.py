"""What a process is doing, in a file that outlives it: read when a kernel took the process with it."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from conformance.errors import UsageError


class Journal:
    """One JSON line in ``run_dir/journal[-worker].json``, overwritten at each step.

    Written without a buffer, so it holds when the process ends in the next instruction. Removed by
    :meth:`close`: a journal that is left over is that of a process that died, or still runs.
    """

    def __init__(self, run_dir: Path, worker: str = "", **about: Any) -> None:
        self.path = path_of(run_dir, worker)
        fixed = {**about, "worker": worker, "pid": os.getpid(), "host": platform.node()}
        # What stays the same is most of the line, which is written several times a case.
        self._head = json.dumps(fixed).removesuffix("}")
        self._noted: dict[str, Any] = {}
        self._length = 0
        self._file = self.path.open("wb", buffering=0)
        self._write()

    def note(self, **fields: Any) -> None:
        """Add to the line, or change it."""
        self._noted.update(fields)
        self._write()

    def begin(self, test: str) -> None:
        """Start the line of a test; what was noted of the one before is dropped."""
        self._noted = {"test": test}
        self._write()

    def close(self) -> None:
        self._file.close()
        self.path.unlink(missing_ok=True)

    def _write(self) -> None:
        # Of a field that is there twice, a reader takes the second.
        noted = ", " + json.dumps(self._noted).removeprefix("{") if self._noted else "}"
        text = f"{self._head}{noted}\n".encode()
        self._file.seek(0)
        self._file.write(text)
        if len(text) < self._length:
            self._file.truncate()
        self._length = len(text)


def path_of(run_dir: Path, worker: str = "") -> Path:
    return run_dir / f"journal{'-' + worker if worker else ''}.json"


def read(path: Path) -> dict[str, Any] | None:
    """The line of a journal; None where there is no whole one.

    Raises:
        UsageError: the file holds something else.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    # What follows the first line is the end of a longer one that was there before.
    first, end, _ = text.partition("\n")
    if not end:
        return None
    try:
        line = json.loads(first)
    except ValueError as error:
        raise UsageError(f"journal: expected a line of JSON in {path}, found {error}") from error
    if not isinstance(line, dict) or "pid" not in line:
        raise UsageError(f"journal: expected a line that a run wrote in {path}, found another")
    return line


def left_over(run_dir: Path) -> list[Path]:
    """Journals in a run's folder of processes that are gone."""
    paths = sorted(run_dir.glob("journal*.json"))
    return [path for path in paths if (line := read(path)) is not None and not _runs(line)]


def _runs(line: Mapping[str, Any]) -> bool:
    """Whether the process of a journal may still run; one of another machine may."""
    if line.get("host") != platform.node():
        return True
    try:
        os.kill(int(line["pid"]), 0)
    except ProcessLookupError:
        return False
    except (OSError, ValueError):
        return True
    return True
