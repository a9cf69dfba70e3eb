"""Mutants that need not be caught, each with its reason (``equivalent.toml``).

An entry is found by content and not by line: it goes stale, which is an error of the runs that it is about,
when the source changes.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from conformance.errors import UsageError
from conformance.mutation.score import Job
from conformance.mutation.source import Mutant, modules, modules_of, mutants
from conformance.registry import Format

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILE = Path(__file__).with_name("equivalent.toml")
# equivalent: no input tells it from the original. beyond: inputs do, but none that a test can hold
# or afford. chance: whether it shows depends on the version of Triton or on what lies in memory.
CHANCE = "chance"
WHY = ("equivalent", "beyond", CHANCE)
SOURCE = {"module", "function", "why", "changes", "reason"}
CATALOGUE = {"formats", "faults", "reason"}


@dataclasses.dataclass(frozen=True)
class Listed:
    """Reasons by mutant.

    Attributes:
        source: of ``(module, function, change)``: ``(why, reason)``.
        catalogue: of ``(format, fault)``: the reason why the fault is none of this format.
    """

    source: Mapping[tuple[str, str, str], tuple[str, str]]
    catalogue: Mapping[tuple[str, str], str]

    def reason(self, job: Job) -> tuple[str, str] | None:
        """``(why, reason)`` of a job that need not be caught, or None."""
        if job.mutant is not None:
            return self.source.get(_key(job.mutant))
        text = self.catalogue.get((job.formats[0], job.fault))
        return None if text is None else ("equivalent", text)


def _key(mutant: Mutant) -> tuple[str, str, str]:
    return (mutant.module, mutant.function, f"{mutant.operator}: {mutant.change}")


def _fields(where: str, entry: Mapping[str, Any], names: set[str]) -> None:
    if set(entry) != names:
        raise UsageError(f"{where}: expected {', '.join(sorted(names))}, found {', '.join(sorted(entry))}")
    if not str(entry["reason"]).strip():
        raise UsageError(f"{where}: expected a reason, found none")


def load(
    formats: Mapping[str, Format],
    path: Path | None = None,
    *,
    chosen: Collection[str] | None = None,
    kinds: Collection[str] = ("catalogue", "source"),
) -> Listed:
    """Entries of ``path`` (None: :data:`FILE`), those that a run is about held against the mutants and
    faults there are.

    Args:
        formats: all there are.
        path: the file.
        chosen: names of the formats that are run; None for all of them. Only then is an entry about a
            module that no format uses looked at, and found to be stale.
        kinds: kinds of mutants that are run.

    Raises:
        UsageError: not readable, an entry without a reason, of another form, given twice, or stale.
    """
    path = path or FILE
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{path.name}: expected a TOML file, found {error}") from error
    used: Collection[str] | None = () if "source" not in kinds else None
    if used is None and chosen is not None:
        used = modules_of({name: formats[name] for name in chosen})
    run = () if "catalogue" not in kinds else formats if chosen is None else chosen
    return Listed(
        _sources(path.name, content.get("source", []), used),
        _catalogue(path.name, content.get("catalogue", []), formats, run),
    )


def _sources(
    name: str, entries: Iterable[Mapping[str, Any]], used: Collection[str] | None
) -> dict[tuple[str, str, str], tuple[str, str]]:
    """Entries about modules that are not ``used`` (None: all are) are not held against the mutants."""
    known = {
        _key(mutant) for module in modules() if used is None or module in used for mutant in mutants(module)
    }
    found: dict[tuple[str, str, str], tuple[str, str]] = {}
    for number, entry in enumerate(entries, 1):
        where = f"{name}: source entry {number}"
        _fields(where, entry, SOURCE)
        if entry["why"] not in WHY:
            raise UsageError(f"{where}: expected why to be {' or '.join(WHY)}, found {entry['why']!r}")
        for change in entry["changes"]:
            key = (entry["module"], entry["function"], change)
            if key not in known and (used is None or key[0] in used):
                raise UsageError(
                    f"{where}: expected a mutant of {key[0]}.{key[1]}, found none (stale?): {change}"
                )
            if key in found:
                raise UsageError(f"{where}: expected each change once, found again: {change}")
            found[key] = (entry["why"], entry["reason"])
    return found


def _catalogue(
    name: str, entries: Iterable[Mapping[str, Any]], formats: Mapping[str, Format], run: Collection[str]
) -> dict[tuple[str, str], str]:
    """Entries about formats that are not ``run`` are not held against the faults."""
    found: dict[tuple[str, str], str] = {}
    for number, entry in enumerate(entries, 1):
        where = f"{name}: catalogue entry {number}"
        _fields(where, entry, CATALOGUE)
        for format_name in entry["formats"]:
            if format_name not in formats:
                if len(run) < len(formats):
                    continue
                raise UsageError(f"{where}: expected a format, found {format_name!r} (stale?)")
            names = {fault.name for fault in formats[format_name].faults}
            for fault in entry["faults"]:
                if fault not in names and format_name in run:
                    raise UsageError(f"{where}: expected a fault of {format_name}, found {fault!r} (stale?)")
                found[format_name, fault] = entry["reason"]
    return found
