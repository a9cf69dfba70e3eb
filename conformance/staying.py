"""A kernel that ends the process would take the verdicts with it, and leave the exit code that it chose."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any


class Left(Exception):
    """A kernel called ``os._exit``."""


@contextlib.contextmanager
def staying() -> Iterator[None]:
    """Raise :class:`Left` where the block calls ``os._exit``: a run that ends with code 0 in the middle
    would look like one that passed. Processes that the block forks may still leave."""
    here, leave = os.getpid(), os._exit

    def refused(status: int) -> Any:
        if os.getpid() != here:
            leave(status)
        raise Left(f"the kernel called os._exit({status}), which would have ended the run")

    os._exit = refused
    try:
        yield
    finally:
        os._exit = leave
