"""A time limit around calls of kernels, which may hang."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType


class TimeUp(BaseException):
    """Raised inside the block whose time is up. No Exception: kernels catch those."""


@dataclasses.dataclass
class Limit:
    """Whether the time was up. What the block found out last is then worth nothing."""

    reached: bool = False
    closed: bool = False


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[Limit]:
    """Leave the block after ``seconds``, by an exception that ends here.

    Works in the main thread of systems that have SIGALRM; elsewhere the block is not interrupted.
    A call into compiled code is interrupted when it returns: a GPU kernel that never ends is not.
    A timer of somebody else (pytest-timeout has one) goes on afterwards.
    """
    limit = Limit()
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield limit
        return

    def ring(number: int, frame: FrameType | None) -> None:
        if not limit.closed:
            limit.reached = True
            raise TimeUp

    started = time.monotonic()
    previous = signal.signal(signal.SIGALRM, ring)
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        try:
            yield limit
        finally:
            limit.closed = True
    except TimeUp:
        pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL if previous is None else previous)
        if left:
            signal.setitimer(signal.ITIMER_REAL, max(0.001, left - (time.monotonic() - started)), interval)
