"""The commands that reproduce a verdict, from the options of the run that gave it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

# Options that are repeated with a value for one format, as FORMAT=..., and for all of them.
BY_FORMAT = ("kernel", "fused")
REPEATED = ("oracle",)
# Options of one value, with the value that need not be said.
SINGLE: dict[str, Any] = {
    "accumulate": "fp32",
    "split_k": 1,
    "terms": "exact",
    "gate": "exact",
    "known_faults": None,
    "model": None,
    "recorded": None,
    "device": "auto",
}


def options_of(option: Any) -> dict[str, Any]:
    """Options of a run that change what is judged, or how, as values that JSON can hold.

    Args:
        option: pytest's ``config.option``.
    """
    found: dict[str, Any] = {name: list(getattr(option, name)) for name in (*BY_FORMAT, *REPEATED)}
    for name in SINGLE:
        value = getattr(option, name)
        found[name] = value if isinstance(value, int | str | None) else str(value)
    return found


def rerun(format_name: str, case: str, options: Mapping[str, Any], *, verdict: str = "") -> str:
    """The command that judges one case again; options that are missing have the default value.

    Args:
        verdict: of the case. One that killed its process is judged in a process of its own.
    """
    words = ["pytest", "conformance", "--case", case]
    for name in BY_FORMAT:
        for given in options.get(name, ()):
            if given.partition("=")[0] == format_name:
                words += [f"--{name}", given]
    for name in REPEATED:
        for given in options.get(name, ()):
            words += [f"--{name}", given]
    for name, default in SINGLE.items():
        if options.get(name, default) != default:
            words += [f"--{name.replace('_', '-')}", str(options[name])]
    if verdict == "CRASH_WORKER":
        words += ["-n", "1"]
    return shlex.join(words)


def replay(bundle: object) -> str:
    """The command that judges a bundle again."""
    return shlex.join(["python", "-m", "conformance", "replay", str(bundle)])
