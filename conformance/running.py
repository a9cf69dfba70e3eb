"""How a test runs its cases: by Hypothesis or one after the other, and never vacuously."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch

from conformance import device_loss
from conformance.case import Case
from conformance.harness import Failure, Harness
from conformance.verdict import NEUTRAL, Verdict


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


def alike(verdict: Verdict) -> tuple[str, bool]:
    """What failures have in common that may stand for each other: wrong values of any class, or the
    verdict's kind; and whether signs of zeros are all that is wrong."""
    values = verdict.kind in ("MISMATCH", "NONFINITE_CLASS")
    return "values" if values else verdict.kind, verdict.signs_alone


def run_drawn(
    harness: Harness, test: str, strategy: Any, kernel: str = "", *, also: Case | None = None
) -> None:
    """Judge cases that Hypothesis draws, and shrink the first failing one; then ``also``. Failures are
    remembered by test and ``kernel``: those of one kernel are not replayed against another.

    Shrinking keeps to failures like the first; the others are recorded and not raised. The wrong sign of
    a zero alone is the first only where nothing else fails.
    """
    tally = Tally(harness, test)
    if _drawn(tally, strategy, kernel, signs=False):
        _drawn(tally, strategy, kernel, signs=True)
    if also is not None:
        tally.check(also)
    tally.finish()


def _drawn(tally: Tally, strategy: Any, kernel: str, *, signs: bool) -> bool:
    """Raise the first failure, shrunk; one in the sign of zeros alone only with ``signs``. Returns whether
    there was one of these instead."""
    from hypothesis import core, given

    raised: dict[Case, Failure] = {}
    passed_over = False

    @given(strategy)
    def judge(case: Case) -> None:
        nonlocal passed_over
        try:
            tally.check(case)
        except Failure as failure:
            # Hypothesis shrinks to whatever is raised, so to the sign of a zero too, which needs less of a
            # case than a wrong value. What was raised once is raised again, however it differs.
            verdict = failure.checked.verdict
            if not raised and verdict.signs_alone and not signs:
                passed_over = True
                return
            first = next(iter(raised.values()), failure)
            if case in raised or alike(verdict) == alike(first.checked.verdict):
                raised[case] = failure
                raise

    # Hypothesis starts every test of a seeded run from that one seed, so that all of them would
    # draw alike, and remembers no failure of it: give this test a seed and a key of its own.
    judge._hypothesis_internal_use_seed = f"{core.global_force_seed}/{tally.test}"  # type: ignore[attr-defined]
    judge._hypothesis_internal_database_key = f"{tally.test}/{kernel}".encode()  # type: ignore[attr-defined]
    judge()
    return passed_over
