"""How much of the time that was given is left."""

from __future__ import annotations

import time
from collections.abc import Callable


class Budget:
    """Nothing is begun after ``seconds``; what has begun is finished. ``None`` is without limit."""

    def __init__(self, seconds: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._start = clock()
        self.seconds = seconds

    @property
    def spent(self) -> float:
        return self._clock() - self._start

    @property
    def left(self) -> float:
        """Seconds, never negative."""
        return float("inf") if self.seconds is None else max(0.0, self.seconds - self.spent)

    @property
    def over(self) -> bool:
        return self.left <= 0

    def part(self, parts: int) -> Budget:
        """A budget of one of ``parts`` equal parts of what is left."""
        return Budget(None if self.seconds is None else self.left / max(parts, 1), self._clock)
