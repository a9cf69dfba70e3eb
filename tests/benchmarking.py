"""A machine for the tests of the benchmarks: the CPU and Triton's interpreter, and a clock that is told."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from benchmarks.machine import Machine
from benchmarks.timing import Call


class ToldTimer:
    """Runs every call once and says what it was told: seconds of one call, the next time a new number."""

    def __init__(self, seconds: Sequence[float] = (1e-3,)) -> None:
        self.seconds = list(seconds)
        self.asked = 0

    def passes(self, calls: Sequence[Call]) -> list[float]:
        for call in calls:
            call()
        told = self.seconds[min(self.asked, len(self.seconds) - 1)]
        self.asked += 1
        # 11 passes with the median in the middle.
        return [told * (1 + step / 100) for step in range(-5, 6)]

    def host(self, call: Call, count: int = 200) -> float:
        call()
        return 5e-5

    def graph(self, call: Call, count: int = 50) -> float:
        call()
        return 2e-6


def machine(seconds: Sequence[float] = (1e-3,)) -> Machine:
    about = {"device": "Test Device", "torch": torch.__version__, "triton": "3.9.0", "date": "2026-01-31"}
    return Machine(torch.device("cpu"), ToldTimer(seconds), l2_bytes=0, about=about)
