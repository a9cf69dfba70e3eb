"""How a test runs its cases: by Hypothesis or one after the other, and never vacuously."""

from __future__ import annotations

import contextlib
import dataclasses
import unittest
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import pytest
import torch

from conformance import device_loss
from conformance.case import Case
from conformance.fused_view import shaped
from conformance.harness import Checked, Failure, Harness
from conformance.registry import FUSED, Format
from conformance.verdict import NEUTRAL, Verdict

if TYPE_CHECKING:
    from conformance.strategies import Cases

# Failures that a shrunk one is looked at together with.
EARLIER = 4


class Tally:
    """Counts what a test judged. A test that judged nothing is skipped with the reason, and
    the run fails if that holds for all of them."""

    def __init__(self, harness: Harness, test: str) -> None:
        self.harness = harness
        self.test = test
        self.judged = 0
        self.reason = ""

    @property
    def run(self) -> Harness:
        """The run's harness: recorded vectors, empty weights and products have their own around it."""
        found: Harness = getattr(self.harness, "harness", self.harness)
        return found

    @property
    def _device(self) -> torch.device:
        return self.run.runtime.device

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
        except (pytest.skip.Exception, pytest.xfail.Exception, unittest.SkipTest) as error:
            # From a result that is not a plain tensor, or an exception's text: no case may be left out so.
            raise AssertionError(f"{case.id}: expected a verdict, found a skip ({error})") from error
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
    harness: Harness, test: str, strategy: Cases, kernel: str = "", *, also: Case | None = None
) -> None:
    """Judge cases that Hypothesis draws, and shrink the first failing one; then ``also``. Failures are
    remembered by test and ``kernel``: those of one kernel are not replayed against another.

    Shrinking keeps to failures like the first; the others are recorded and not raised. The wrong sign of
    a zero alone is the first only where nothing else fails.
    """
    tally = Tally(harness, test)
    passed_over = _drawn(tally, strategy, kernel, signs=False)
    if passed_over is not None:
        _drawn(tally, strategy, kernel, signs=True)
        raise passed_over  # it did not show a second time
    if also is not None:
        tally.check(also)
    tally.finish()


def drawable(harness: Harness, fmt: Format) -> Format:
    """The format with the shapes that are drawn for its kernel: a fused one has a weight of two dimensions,
    and in the interpreter a long K in the fixed cases alone."""
    if not harness.kernels[fmt.name].name.startswith(FUSED):
        return fmt
    return shaped(fmt, short=harness.runtime.interpreter)


def _drawn(tally: Tally, strategy: Cases, kernel: str, *, signs: bool) -> Failure | None:
    """Raise the first failure, shrunk; one in the sign of zeros alone only with ``signs``, and else return
    the first of these."""
    from hypothesis import Phase, core, given, settings
    from hypothesis.database import ExampleDatabase, InMemoryExampleDatabase, choices_to_bytes

    from conformance.strategies import Choices, draw_each

    raised: dict[Case, Failure] = {}
    found: dict[Case, Exception] = {}
    passed_over: Failure | None = None
    # Hypothesis starts every test of a seeded run from that one seed, so that all of them would
    # draw alike, and remembers no failure of it: give this test a seed and a key of its own.
    seed, key = f"{core.global_force_seed}/{tally.test}", f"{tally.test}/{kernel}".encode()
    secondary = key + b".secondary"  # where Hypothesis keeps failures that it has not shrunk

    def judge(case: Case) -> None:
        nonlocal passed_over
        try:
            tally.check(case)
        except Failure as failure:
            # Hypothesis shrinks to whatever is raised, so to the sign of a zero too, which needs less of a
            # case than a wrong value. What was raised once is raised again, however it differs.
            verdict = failure.checked.verdict
            if not raised and verdict.signs_alone and not signs:
                passed_over = passed_over or failure
                return
            first = next(iter(raised.values()), failure)
            if case in raised or alike(verdict) == alike(first.checked.verdict):
                raised[case] = failure
                raise

    def replay(database: ExampleDatabase) -> None:
        """Judge what is remembered, and shrink the first failure."""

        @settings(database=database, phases=(Phase.reuse, Phase.shrink))
        @given(strategy)
        def again(case: Case) -> None:
            if case in found:  # judged when it was drawn
                raise found.pop(case)
            judge(case)

        again._hypothesis_internal_use_seed = seed  # type: ignore[attr-defined]
        again._hypothesis_internal_database_key = key  # type: ignore[attr-defined]
        kept = [(place, entry) for place in (key, secondary) for entry in database.fetch(place)]
        with contextlib.suppress(unittest.SkipTest):  # where nothing is
            again()
        if passed_over is not None:
            # Hypothesis takes it for a pass, and forgets what has passed.
            for place, entry in kept:
                database.save(place, entry)

    remembered = settings().database
    database = InMemoryExampleDatabase() if remembered is None else remembered

    def look(case: Case, choices: Choices) -> None:
        try:
            judge(case)
        except device_loss.DeviceLost:
            database.save(key, choices_to_bytes(choices))
            raise
        except Exception as error:
            database.save(secondary, choices_to_bytes(choices))
            found[case] = error
            raise

    count = settings().max_examples
    if kernel.startswith(FUSED) and tally.run.fused_cases is not None:
        count = min(tally.run.fused_cases, count)
    try:
        if remembered is not None:
            replay(remembered)
        try:
            draw_each(strategy, count, seed, look)
        except Exception:
            if not found:
                raise
        # Not while the failure is handled: Hypothesis tells failures apart by what they came after, too.
        for error in tuple(found.values()):
            replay(database)
            raise error
    except Failure as failure:
        # What is left of a shrunk case fits many causes; those that it was shrunk from fit fewer.
        failure.checked = dataclasses.replace(failure.checked, earlier=_earlier(raised, failure.checked))
        raise
    return passed_over


def _earlier(raised: Mapping[Case, Failure], last: Checked) -> tuple[Checked, ...]:
    """The first failure and those with most elements, one of each size, without the last one."""
    others = [one.checked for one in raised.values() if one.checked.verdict.case != last.verdict.case]
    sizes = {checked.verdict.elements: checked for checked in others[:0:-1]}
    largest = sorted(sizes.values(), key=lambda checked: -checked.verdict.elements)
    return tuple(others[:1] + largest[: EARLIER - 1])
