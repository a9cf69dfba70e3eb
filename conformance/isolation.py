"""Which step of a quantized matrix product is wrong: each one shown alone to a kernel that does them all.

A black box gives one number for a chain of steps. So the inputs are chosen such that all steps but one
have nothing to do: scales of 1, no zero points, no bias, accumulators of 0, activations that are whole
multiples of their scale, a weight that is the identity. The first step of the chain that fails on such
inputs is the wrong one; later ones may fail because of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from conformance.case import Case
from conformance.deadline import time_limit
from conformance.harness import Checked, Harness
from conformance.isolation_fp8 import fp8_steps
from conformance.isolation_int8 import activation_steps, operand_steps
from conformance.isolation_step import Step
from conformance.registry import Format, Kernel
from conformance.verdict import NEUTRAL, Verdict

OPERANDS, ACTIVATIONS, FP8 = "gemm_int8", "gemm_dynamic", "gemm_fp8"


def steps_of(name: str) -> tuple[Step, ...]:
    """The chain of ``gemm_int8`` and ``gemm_fp8`` (quantized operands) or ``gemm_dynamic`` (float ones)."""
    return {OPERANDS: operand_steps, ACTIVATIONS: activation_steps, FP8: fp8_steps}[name]()


@dataclasses.dataclass(frozen=True)
class Found:
    """What a step's inputs said.

    Attributes:
        step: the step.
        cases: that were judged.
        unsupported: cases that the kernel does not do, by its own reason.
        failures: of the judged ones, in order.
    """

    step: Step
    cases: tuple[Case, ...]
    unsupported: tuple[str, ...]
    failures: tuple[Checked, ...]

    @property
    def judged(self) -> int:
        return len(self.cases)

    @property
    def rows(self) -> str:
        """Words for whether it depends on the number of tokens, which often chooses another kernel."""
        wrong = {checked.verdict.case["M"] for checked in self.failures}
        right = {case["M"] for case in self.cases} - wrong
        if wrong == {1} and right:
            return "with M = 1 alone"
        return "with M > 1 alone" if wrong and 1 in right and 1 not in wrong else ""

    @property
    def state(self) -> str:
        if self.failures:
            return "WRONG"
        return "right" if self.judged else "not shown"


# Fields that show no step alone and may be given for all inputs, though some inputs have them.
FREE = ("lay", "codes")


def held(name: str) -> set[str]:
    """Names of the fields by which the steps of a chain are told apart."""
    pairs = (part for step in steps_of(name) for text in step.cases for part in text.split(","))
    return {part.partition("=")[0] for part in pairs} - set(FREE)


def isolate(
    harness: Harness,
    fmt: Format,
    kernel: Kernel,
    fields: Sequence[str] = (),
    outs: Sequence[str] = ("fp32",),
    seconds: float = 60.0,
) -> Iterator[Found]:
    """Show each step of the chain to a kernel, in the order of the chain.

    Args:
        harness: of a run without oracles; nothing is recorded.
        fmt: ``gemm_int8``, ``gemm_dynamic`` or ``gemm_fp8``.
        fields: field texts that hold for all cases, such as ``order=w-a``.
        outs: output dtypes, where a step does not need others.
        seconds: after which a case counts as one that never ends; it is then the last.
    """
    for step in steps_of(fmt.name):
        judged: list[Case] = []
        unsupported: list[str] = []
        failures: list[Checked] = []
        for out in step.out or outs:
            for text in step.cases:
                case = _case(fmt, text, fields, out)
                with time_limit(seconds) as limit:
                    checked = harness.judge(case, kernel)
                if limit.reached:
                    words = f"the kernel did not answer within {seconds:g} s"
                    device = str(harness.runtime.device)
                    checked = Checked(Verdict("CRASH_LAUNCH", case, kernel.name, device, words))
                    yield Found(step, (*judged, case), tuple(unsupported), (*failures, checked))
                    return
                if checked.verdict.kind in (*NEUTRAL, "VACUOUS"):
                    unsupported.append(checked.verdict.summary)
                    continue
                judged.append(checked.verdict.case)
                if checked.verdict.failed:
                    failures.append(checked)
        yield Found(step, tuple(judged), tuple(dict.fromkeys(unsupported)), tuple(failures))


def _case(fmt: Format, text: str, fields: Sequence[str], out: str) -> Case:
    given = [part for part in fields if part]
    if fmt.name == ACTIVATIONS and not any(part.startswith("rule=") for part in given):
        # The rule for which whole multiples of the scale are whole codes.
        given.append("rule=scale")
    names = {part.partition("=")[0] for part in given}
    kept = [part for part in text.split(",") if part.partition("=")[0] not in names]
    return fmt.parse(",".join((*kept, *given, f"out={out}")))


def first_wrong(found: Sequence[Found]) -> Found | None:
    """The step to look at: the first of the chain that fails alone."""
    return next((one for one in found if one.failures), None)


def forgot(harness: Harness, kernel: Kernel, found: Sequence[Found]) -> Case | None:
    """A case that was right and no longer is: the kernel's answers depend on what it was asked before."""
    wrong = {checked.verdict.case.id for one in found for checked in one.failures}
    right = [case for one in found for case in one.cases if case.id not in wrong]
    return next((case for case in right[:2] if harness.judge(case, kernel).verdict.failed), None)
