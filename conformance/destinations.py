"""Where a command writes: looked at before the work, so that nothing is lost when it is done."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from conformance.errors import UsageError


def new_file(option: str, path: Path, *, force: bool = False, inputs: Iterable[Path] = ()) -> None:
    """Look whether ``path`` can be written, and leave it as it is.

    Args:
        option: named in the message.
        force: an existing file may be replaced.
        inputs: files that the command reads, which may not be replaced at all.

    Raises:
        UsageError: an existing file, an input, or no place to write to.
    """
    there = os.path.lexists(path)
    for other in inputs:
        if there and os.path.exists(other) and os.path.exists(path) and os.path.samefile(path, other):
            raise UsageError(f"{option}: expected another file than the input, found {path}")
    if os.path.isfile(path) and not force:
        raise UsageError(f"{option}: expected no file yet, found {path}; --force writes it again")
    try:
        with path.open("ab" if there else "xb"):
            pass
        if not there:
            path.unlink()
    except (OSError, ValueError) as error:
        raise unwritable(option, path, error, "a file that can be written") from error


def folder(option: str, path: Path) -> None:
    """Look whether files can be written into ``path``, which need not be there yet, and leave it so.

    Raises:
        UsageError: it cannot be made, is no folder, or takes no file.
    """
    made: list[Path] = []
    try:
        for part in reversed((path, *path.parents)):
            if not os.path.isdir(part):
                part.mkdir()
                made.append(part)
        with tempfile.TemporaryFile(dir=path):
            pass
    except (OSError, ValueError) as error:
        raise unwritable(option, path, error, "a folder to write to") from error
    finally:
        for part in reversed(made):
            part.rmdir()


def unwritable(option: str, path: Path, error: Exception, wanted: str) -> UsageError:
    """The one sentence for a destination that could not be written."""
    reason = getattr(error, "strerror", None) or error
    return UsageError(f"{option}: expected {wanted}, found {str(path)!r:.120}: {reason}")
