"""A reader of the standard output that goes away, as ``| head`` does, ends a command without a traceback."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

# What a shell says of a process that SIGPIPE ended: 128 and the signal's number.
CLOSED = 141


def quietly(run: Callable[[], int]) -> int:
    """The exit code of ``run``, or :data:`CLOSED` when nobody reads its output any more.

    The signal itself is left ignored: a worker or a database whose pipe closes is an error to be told.
    """
    try:
        code = run()
        sys.stdout.flush()
    except BrokenPipeError:
        return _leave()
    except SystemExit as end:
        # rich ends the process for it, with a code that says a verdict is a failing one.
        if isinstance(end.__context__, BrokenPipeError):
            return _leave()
        raise
    return code


def _leave() -> int:
    # The interpreter flushes once more at its end.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return CLOSED
