"""How a test runs its cases: by Hypothesis or one after the other, and never vacuously."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch

from conformance import device_loss
from conformance.case import Case
from conformance.harness import Failure, Harness
from conformance.verdict import NEUTRAL


class Tally:
    """Counts what a test judged. A test that judged nothing is skipped with the reason, and
    the run fails if that holds for all of them."""

    def __init__(self, harness: Harness, test: str) -> None:
        self.harness = harness
        self.test = test
        self.judged = 0
        self.reason = ""

    @property
    def _device(self) -> torch.device:
        # Recorded vectors, empty weights and products have a harness of their own around the run's.
        return getattr(self.harness, "harness", self.harness).runtime.device

    def check(self, case: Case) -> None:
        """Judge a case.

        Raises:
            Failure: the verdict is a failing one.
            DeviceLost: it, or whatever else was raised, left the device unusable.
        """
        try:
            verdict = self.harness.check(case, test=self.test)
        except Exception as error:
            checked = error.checked if isinstance(error, Failure) else None
            lost = (checked and checked.lost) or device_loss.why_lost(self._device)
            if lost:
                raise device_loss.DeviceLost(lost, checked) from error
            raise
        if verdict.kind in NEUTRAL:
            self.reason = f"{verdict.kind}: {verdict.summary}"
        else:
            self.judged += 1

    def finish(self) -> None:
        if not self.judged:
            pytest.skip(self.reason or "VACUOUS: there was no case to run")


def run_each(harness: Harness, test: str, cases: Iterable[Case]) -> None:
    """Judge the cases in order; the first failing one ends the test."""
    tally = Tally(harness, test)
    for case in cases:
        tally.check(case)
    tally.finish()


def run_drawn(harness: Harness, test: str, strategy: Any, kernel: str = "") -> None:
    """Judge cases that Hypothesis draws, and shrink the first failing one. Failures are remembered
    by test and ``kernel``: those of one kernel are not replayed against another."""
    from hypothesis import core, given

    tally = Tally(harness, test)

    @given(strategy)
    def judge(case: Case) -> None:
        tally.check(case)

    # Hypothesis starts every test of a seeded run from that one seed, so that all of them would
    # draw alike, and remembers no failure of it: give this test a seed and a key of its own.
    judge._hypothesis_internal_use_seed = f"{core.global_force_seed}/{test}"  # type: ignore[attr-defined]
    judge._hypothesis_internal_database_key = f"{test}/{kernel}".encode()  # type: ignore[attr-defined]
    judge()
    tally.finish()
