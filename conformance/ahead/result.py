"""What the compiler made of one launch, as a value and as a JSON line."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from conformance.errors import UsageError
from conformance.run_record import KIND, commit, now

SCHEMA = 1
Widths = Mapping[str, Mapping[int, int]]


@dataclasses.dataclass(frozen=True)
class Compiled:
    """One launch, compiled for one target; or why the compiler refused (``error``).

    Attributes:
        sizes: ``ordinary``, ``odd`` (:mod:`conformance.ahead.cases`) or ``large``.
        variant: types, constexprs and options, as :attr:`conformance.ahead.launches.Launch.variant`.
        registers: of a thread.
        spills: instructions on local memory (AMD: vector registers spilled).
        shared: bytes of shared memory.
        fused: multiply-adds that round once.
        loads, stores: argument to {bytes a lane moves in one instruction: instructions}. AMD: all
            stores under ``*``, no loads.
        narrow: operations in too few bits that an address comes from; of ``large`` launches alone.
    """

    triton: str
    target: str
    format: str
    case: str
    sizes: str
    kernel: str
    variant: str = ""
    registers: int = 0
    spills: int = 0
    shared: int = 0
    fused: int = 0
    loads: Widths = dataclasses.field(default_factory=dict)
    stores: Widths = dataclasses.field(default_factory=dict)
    narrow: tuple[str, ...] = ()
    error: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """What is compared between files: target, case and kernel."""
        return (self.target, self.case, self.kernel)

    @property
    def out(self) -> str:
        """Output dtype of the case."""
        return next((dtype for dtype in ("bf16", "fp32") if f"out={dtype}" in self.case), "fp16")


def least(widths: Widths, argument: str) -> int | None:
    """The narrowest access to an argument, in bytes a lane; None if there is none."""
    found = widths.get(argument)
    return min(found) if found else None


def _widths(value: Any) -> dict[str, dict[int, int]]:
    return {name: {int(width): int(n) for width, n in counts.items()} for name, counts in value.items()}


def write(path: Path, results: Iterable[Compiled], triton: str) -> None:
    """Write JSON lines: a first one about the run, then one a result.

    Raises:
        UsageError: the file cannot be written.
    """
    first = {KIND: "compile", "schema": SCHEMA, "triton": triton, "started": now(), "commit": commit()}
    lines = [first, *({KIND: "compiled", **dataclasses.asdict(one)} for one in results)]
    try:
        path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"--json: expected a file that can be written, found {path}: {error.strerror}"
        ) from error


def read(path: Path, what: str = "--before") -> tuple[list[Compiled], str]:
    """Results of a file that :func:`write` made, and what made them: Triton's version and the commit.

    Args:
        what: names the file in errors.

    Raises:
        UsageError: it cannot be read or holds something else.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{what}: expected a file that can be read, found {path}: {error}") from error
    found: list[Compiled] = []
    source = ""
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
            kind = record.pop(KIND)
            if kind == "compile":
                if record["schema"] != SCHEMA:
                    raise ValueError(f"schema {record['schema']}, this is {SCHEMA}")
                source = f"Triton {record['triton']}"
                if record["commit"]:
                    source += f" at {record['commit'][:10]}{'-dirty' * record['commit'].endswith('-dirty')}"
                continue
            for name in ("loads", "stores"):
                record[name] = _widths(record[name])
            record["narrow"] = tuple(record["narrow"])
            found.append(Compiled(**record))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise UsageError(
                f"{what}: expected results of compile in {path} line {number}, found: {error}"
            ) from error
    if not source:
        raise UsageError(f"{what}: expected results of compile in {path}, found no first line of them")
    return found, source
