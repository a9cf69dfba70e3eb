"""The commands that reproduce a verdict, from the options of the run that gave it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

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


def checkout() -> str:
    """Where this project is, for commands that are given in another directory; empty in its own."""
    return "" if Path.cwd() == ROOT else str(ROOT)


def rerun(
    format_name: str, case: str, options: Mapping[str, Any], *, verdict: str = "", root: str = ""
) -> str:
    """The command that judges one case again; options that are missing have the default value.

    Args:
        verdict: of the case. One that killed its process is judged in a process of its own.
        root: as :func:`checkout` says, for a command to be given here.
    """
    words = ["pytest", str(Path(root, "conformance")), "--case", case]
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


def replay(bundle: object, *, root: str = "") -> str:
    """The command that judges a bundle again; ``root`` as of :func:`rerun`."""
    command = shlex.join(["python", "-m", "conformance", "replay", str(bundle)])
    # Not from there: the bundle and its kernel may be named by relative paths.
    return f"PYTHONPATH={shlex.quote(root)} {command}" if root else command
