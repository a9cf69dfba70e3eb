"""A kernel that ends the process would take the verdicts with it, and leave the exit code that it chose."""

from __future__ import annotations

import os
from types import TracebackType
from typing import Any


class Left(Exception):
    """A kernel called ``os._exit``."""


class Staying:
    """Within the block, raise :class:`Left` where it calls ``os._exit``: a run that ends with code 0 in the
    middle would look like one that passed. Processes that the block forks may still leave."""

    # Not contextlib's: three times as long, in each call of a kernel.
    __slots__ = ("_here", "_leave")

    def __enter__(self) -> None:
        self._here, self._leave = os.getpid(), os._exit
        os._exit = self._refuse  # type: ignore[assignment]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os._exit = self._leave

    def _refuse(self, status: int) -> Any:
        if os.getpid() != self._here:
            self._leave(status)
        raise Left(f"the kernel called os._exit({status}), which would have ended the run")
