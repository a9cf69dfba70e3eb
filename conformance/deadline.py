"""A time limit around calls of kernels, which may hang."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

# Seconds after which the exception is raised again where it got lost.
AGAIN = 0.1


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
    Where the exception gets lost, in a callback of the garbage collector, in ``__del__`` or in an
    ``except`` that takes all, it is raised again; not while it is handled, so that ``finally`` runs whole.
    A timer of somebody else (pytest-timeout has one) goes on afterwards.
    """
    limit = Limit()
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield limit
        return

    def ring(number: int, frame: FrameType | None) -> None:
        if limit.closed:
            return
        limit.reached = True
        if not isinstance(sys.exc_info()[1], TimeUp):
            raise TimeUp

    started = time.monotonic()
    previous = signal.signal(signal.SIGALRM, ring)
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN)
    try:
        with _raised_where_it_can_be(limit):
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


@contextlib.contextmanager
def _raised_where_it_can_be(limit: Limit) -> Iterator[None]:
    """Raise a lost :class:`TimeUp` in the function that the callback or ``__del__`` interrupted.

    The timer alone would not do: a kernel may spend nearly all of its time where exceptions get lost.
    """
    others, trace = sys.unraisablehook, sys.gettrace()

    def again(frame: FrameType, event: str, argument: Any) -> Any:
        if not limit.closed:
            raise TimeUp
        return None

    def lost(what: Any) -> None:
        if what.exc_type is not TimeUp:
            others(what)
            return
        interrupted = sys._getframe().f_back
        if interrupted is not None and not limit.closed:
            interrupted.f_trace, interrupted.f_trace_opcodes = again, True
            sys.settrace(lambda frame, event, argument: None)

    sys.unraisablehook = lost
    try:
        yield
    finally:
        # The interpreter drops a trace function that raises.
        if sys.gettrace() is not trace:
            sys.settrace(trace)
        sys.unraisablehook = others
