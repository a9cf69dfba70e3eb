"""Outcomes of earlier runs, so that a run of hours may be stopped, or shared by several machines."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path

from conformance.errors import UsageError
from conformance.mutation.score import Outcome

_FIELDS = {field.name for field in dataclasses.fields(Outcome)}


def read(paths: Iterable[Path]) -> dict[str, Outcome]:
    """Outcomes by the mutant's name, out of files that ``--json`` wrote; of two of one name the later.

    A last line that is cut off, of a run that was killed, is no outcome. Neither is an exception of the
    harness: that mutant is to be run again.

    Raises:
        UsageError: a file that cannot be read, or another line that is no outcome.
    """
    found: dict[str, Outcome] = {}
    for path in paths:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--resume: expected a file that --json wrote, found {error}") from error
        lines = text.split("\n")
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                outcome = _outcome(line)
            except (ValueError, TypeError, KeyError) as error:
                if number == len(lines):  # no newline behind it
                    continue
                raise UsageError(
                    f"--resume: expected an outcome of a mutant in {path} line {number}, found {error}"
                ) from error
            if not outcome.error:
                found[outcome.name] = outcome
    return found


def _outcome(line: str) -> Outcome:
    fields = json.loads(line)
    if not isinstance(fields, dict):
        raise TypeError(f"a {type(fields).__name__}")
    known = {name: fields[name] for name in _FIELDS}
    return Outcome(**{**known, "causes": tuple(known["causes"])})
