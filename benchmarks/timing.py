"""Clocks. A run takes its times from a :class:`Timer`; on a GPU it is :class:`CudaTimer`."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import torch

Call = Callable[[], object]

# Every pass goes over copies of the inputs and outputs that together are this many times the L2,
# so that no launch finds what an earlier one left there.
L2_TIMES = 4
MIN_COPIES = 2
MAX_COPIES = 512

MIN_PASSES, MAX_PASSES = 10, 100
PASSES_FOR_S = 0.02
_SLEEP_HZ = 2e9  # of the device's clock, roughly: a queue that starts too early only adds noise
_MAX_SLEEP_S = 0.25


@dataclasses.dataclass(frozen=True)
class Sample:
    """Seconds of one launch: median, 10th and 90th percentile over ``passes``."""

    seconds: float
    low: float
    high: float
    passes: int


class Timer(Protocol):
    """What a run needs of a clock. All answers are in seconds."""

    def passes(self, calls: Sequence[Call]) -> list[float]:
        """Time of one call in each of several passes over ``calls``, on the device alone."""
        ...

    def host(self, call: Call, count: int = 200) -> float:
        """Time of one call when it is called ``count`` times in a row and then waited for."""
        ...

    def graph(self, call: Call, count: int = 50) -> float:
        """Time of one call in a replayed graph of ``count``."""
        ...


def copies_for(n_bytes: int, l2_bytes: int) -> int:
    """Copies of a case's tensors that a pass goes over."""
    return max(MIN_COPIES, min(MAX_COPIES, -(-L2_TIMES * l2_bytes // max(n_bytes, 1))))


def sample(timer: Timer, calls: Sequence[Call]) -> Sample:
    """Median time of one of ``calls``."""
    found = sorted(timer.passes(calls))
    tenth = len(found) // 10
    return Sample(statistics.median(found), found[tenth], found[-1 - tenth], len(found))


def copy_calls(n_bytes: int, copies: int, device: torch.device) -> list[Call]:
    """Device copies that read and write ``n_bytes`` together, each in memory of its own."""
    half = max(1, n_bytes // 2)
    calls: list[Call] = []
    for index in range(copies):
        # Not zeros, which can move faster than data.
        source = torch.randint(0, 256, (half,), dtype=torch.uint8, device=device)
        target = torch.full_like(source, index % 256)
        calls.append(functools.partial(target.copy_, source))
    return calls


class CudaTimer:
    """CUDA events around whole passes.

    The queue is filled while the device sleeps, so that the time to launch, which the host
    needs, is not in the figures; :meth:`host` shows it.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def passes(self, calls: Sequence[Call]) -> list[float]:
        for call in calls:  # compiles, and touches every copy
            call()
        torch.cuda.synchronize(self.device)
        start = time.perf_counter()
        for call in calls[:4]:
            call()
        queued = (time.perf_counter() - start) / min(4, len(calls))
        torch.cuda.synchronize(self.device)
        whole = (time.perf_counter() - start) / min(4, len(calls)) * len(calls)
        count = min(MAX_PASSES, max(MIN_PASSES, int(PASSES_FOR_S / max(whole, 1e-9))))
        # The driver's queue holds about a thousand launches.
        count = max(3, min(count, 800 // (len(calls) + 1)))
        events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
        self._sleep(1.5 * queued * count * len(calls) + 1e-3)
        events[0].record()
        for index in range(count):
            for call in calls:
                call()
            events[index + 1].record()
        torch.cuda.synchronize(self.device)
        return [before.elapsed_time(after) / 1e3 / len(calls) for before, after in itertools.pairwise(events)]

    def _sleep(self, seconds: float) -> None:
        sleep = getattr(torch.cuda, "_sleep", None)
        if sleep is not None:
            sleep(int(min(seconds, _MAX_SLEEP_S) * _SLEEP_HZ))

    def host(self, call: Call, count: int = 200) -> float:
        for _ in range(3):
            call()
        torch.cuda.synchronize(self.device)
        start = time.perf_counter()
        for _ in range(count):
            call()
        torch.cuda.synchronize(self.device)
        return (time.perf_counter() - start) / count

    def graph(self, call: Call, count: int = 50) -> float:
        call()
        torch.cuda.synchronize(self.device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(count):
                call()
        times = []
        for _ in range(10):
            torch.cuda.synchronize(self.device)
            start = time.perf_counter()
            graph.replay()
            torch.cuda.synchronize(self.device)
            times.append((time.perf_counter() - start) / count)
        return statistics.median(times)
