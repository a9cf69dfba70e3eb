"""One question: does this input fail in the same way? Counted, remembered, and limited in time."""

from __future__ import annotations

import dataclasses
import re
import time
import warnings
from collections.abc import Callable

import torch

from conformance.bundle import weight_digest
from conformance.case import Case
from conformance.deadline import time_limit
from conformance.harness import Checked, Harness
from conformance.neighbours import PASSES, REPEATS, against_spec, device_works
from conformance.registry import Kernel
from kernels._packed import PackedWeight, map_tensors

CRASHES = ("CRASH_COMPILE", "CRASH_LAUNCH")


@dataclasses.dataclass(frozen=True)
class Signature:
    """What "fails in the same way" means: the verdict's kind and its first cause.

    The cause of a crash is the type of the error, that of a wrong kind of result the sentence about
    it without its numbers.
    """

    kind: str
    cause: str

    @classmethod
    def of(cls, checked: Checked) -> Signature:
        verdict, execution = checked.verdict, checked.execution
        cause = verdict.causes[0].name if verdict.causes else ""
        if execution is not None and execution.crash is not None:
            cause = execution.error.partition(":")[0]
        elif execution is not None and execution.contract is not None:
            cause = re.sub(r"[\d\s,]+", " ", execution.contract)
        return cls(verdict.kind, cause)

    def __str__(self) -> str:
        return f"{self.kind} ({self.cause})" if self.cause else self.kind


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Answer for one input: whether it fails alike, whether it passes, and in words."""

    same: bool
    passes: bool
    words: str
    checked: Checked | None = None


INVALID = Outcome(False, False, "is no valid case")
UNTRIED = Outcome(False, False, "was not tried: out of time")
HANG = Outcome(False, False, "hangs")


@dataclasses.dataclass
class Trial:
    """Judges inputs against spec alone and compares each verdict with that of the start.

    Attributes:
        harness: of the run; no oracle is asked and nothing is recorded.
        until: ``time.monotonic()`` after which nothing is run any more.
        wanted: signature of the start, None before it was judged.
        runs: inputs judged.
        progress: called after each of them.
        lost: the device does not answer any more, so nothing is run.
    """

    harness: Harness
    kernel: Kernel
    until: float
    patience: float = 60.0
    wanted: Signature | None = None
    runs: int = 0
    progress: Callable[[int], None] = lambda runs: None
    lost: bool = False
    _known: dict[str, Outcome] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        self.harness = against_spec(self.harness, faults=True)

    @property
    def ended(self) -> bool:
        return self.lost or time.monotonic() >= self.until

    def start(self, case: Case, weight: PackedWeight | None = None) -> Checked:
        """Judge the start and take its signature as the one to keep.

        Raises:
            UsageError: the dimensions of ``case`` do not fit together.
        """
        for _ in range(REPEATS):  # what differs from run to run passes now and then
            began = time.monotonic()
            checked = self._checked(case, weight)
            if checked.verdict.failed:
                break
        self.wanted = Signature.of(checked)
        least = 0.5 if self.harness.runtime.interpreter else 20.0  # compiling takes its time
        self.patience = max(least, 10 * (time.monotonic() - began))
        return checked

    def crashed(self, checked: Checked) -> bool:
        """Whether a crash took the device with it: then every later input would fail alike."""
        return checked.verdict.kind == "CRASH_LAUNCH" and not device_works(self.harness.runtime.device)

    def case(self, case: Case) -> Outcome:
        """Outcome for a case and the tensors that it stands for."""
        return self._outcome(case.id, case, None)

    def judged(self, case: Case, weight: PackedWeight) -> Checked:
        """What :meth:`weight` found out, with the tensors."""
        return self._checked(case, weight)

    def weight(self, case: Case, weight: PackedWeight) -> Outcome:
        """Outcome for tensors in place of the case's."""
        if not valid(weight, deep=True):
            return INVALID
        return self._outcome(f"{case.id} {weight_digest(weight)}", case, weight)

    def _outcome(self, key: str, case: Case, weight: PackedWeight | None) -> Outcome:
        if key in self._known:
            return self._known[key]
        if self.ended:
            return UNTRIED
        outcome = INVALID
        # What differs from run to run fails in some runs only, and must pass in each.
        for _ in range(REPEATS if self.wanted and self.wanted.kind == "NONDETERMINISTIC" else 1):
            outcome = self._once(case, weight)
            if not outcome.passes:
                break
        if outcome.checked is None:
            self._known[key] = outcome
        elif not outcome.same:  # without its tensors, which may be large; what fails is asked once
            self._known[key] = dataclasses.replace(outcome, checked=None)
        return outcome

    def _once(self, case: Case, weight: PackedWeight | None) -> Outcome:
        seconds = max(0.05, min(self.patience, self.until - time.monotonic()))
        with time_limit(seconds) as limit:
            try:
                checked = self._checked(case, weight)
            except Exception:  # no valid case, or one that a packer or a model breaks on
                return INVALID
        self.runs += 1
        self.progress(self.runs)
        if limit.reached:
            return HANG
        kind = checked.verdict.kind
        self.lost = self.crashed(checked)
        found = Signature.of(checked)
        if found == self.wanted:
            return Outcome(True, False, "fails alike", checked)
        if kind in PASSES:
            return Outcome(False, True, "passes", checked)
        words = f"is another failure, {found}" if checked.verdict.failed else f"is {kind}"
        return Outcome(False, False, words)

    def _checked(self, case: Case, weight: PackedWeight | None) -> Checked:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if weight is None:
                return self.harness.judge(case, self.kernel)
            return self.harness.judge_weight(case, weight, None, self.kernel)


def valid(weight: PackedWeight, *, deep: bool) -> bool:
    """Whether a weight may be given to a kernel: indices in range. Values need not be finite."""
    finite = map_tensors(
        weight,
        # Bytes of fp8 are codes.
        lambda _, t: torch.nan_to_num(t, 1.0, 1.0, 1.0) if t.is_floating_point() and t.itemsize > 1 else t,
    )
    try:
        finite.validate(deep=deep)
    except (TypeError, ValueError):
        return False
    return True
