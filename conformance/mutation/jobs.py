"""All mutants there are, as jobs."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from conformance.mutation.score import Job
from conformance.mutation.source import modules, modules_of, mutants, users
from conformance.registry import Format


def controls(formats: Mapping[str, Format], kinds: Collection[str]) -> list[Job]:
    """Right kernels: the exact model for the catalogue's kind, the built-in one for the sources'."""
    found = []
    for name in formats:
        if "catalogue" in kinds:
            found.append(Job("control", f"{name}:right", (name,)))
        if "source" in kinds:
            found.append(Job("control", f"{name}:built-in", (name,), builtin=True))
    return found


def catalogue(formats: Mapping[str, Format]) -> list[Job]:
    """Every fault of every format."""
    return [
        Job("catalogue", f"{name}:{fault.name}", (name,), fault=fault.name)
        for name, fmt in formats.items()
        for fault in fmt.faults
    ]


def sources(chosen: Mapping[str, Format], known: Mapping[str, Format]) -> list[Job]:
    """Every mutant of a function that a built-in kernel of ``chosen`` may call. All formats of ``known``
    that may call it too are asked, since a branch may be taken by one of them alone."""
    found = []
    called = modules_of(chosen)
    for module in modules():
        for mutant in mutants(module) if module in called else ():
            formats = users(known, mutant)
            if any(name in chosen for name in formats):
                found.append(Job("source", mutant.name, tuple(formats), mutant=mutant))
    return found
