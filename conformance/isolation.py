"""Which step of an int8 matrix product is wrong: each one shown alone to a kernel that does them all.

A black box gives one number for a chain of steps. So the inputs are chosen such that all steps but one
have nothing to do: scales of 1, no zero points, no bias, accumulators of 0, activations that are whole
multiples of their scale, a weight that is the identity. The first step of the chain that fails on such
inputs is the wrong one; later ones may fail because of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from conformance.case import Case
from conformance.harness import Checked, Harness
from conformance.registry import Format, Kernel
from conformance.verdict import NEUTRAL

OPERANDS, ACTIVATIONS = "gemm_int8", "gemm_dynamic"


@dataclasses.dataclass(frozen=True)
class Step:
    """A step of the chain and the inputs that show it alone.

    Attributes:
        name: as in the report.
        shown_by: what the other steps have to do meanwhile.
        cases: field texts of cases, without the output dtype.
        out: output dtypes that show it; None: the first that the kernel gives.
    """

    name: str
    shown_by: str
    cases: tuple[str, ...]
    out: tuple[str, ...] | None = None


# Inner dimensions around words of 4 codes, instructions of 16 and 32, and tiles; one token and many.
_DEPTHS = (1, 3, 4, 5, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 129)
_PLAIN = "aper=unit,wper=unit,scales=one"


def _operands() -> tuple[Step, ...]:
    shapes = ("M=1,K=32,N=8", "M=2,K=33,N=9", "M=17,K=64,N=17", "M=33,K=40,N=5")
    return (
        Step(
            "accumulation",
            "scales of 1, no zero points, no bias",
            (
                *(f"M=2,K=33,N=5,a=onehot({bit}),b=random(1),{_PLAIN}" for bit in (0, 8, 250, 264, 520)),
                *(
                    f"M={rows},K={depth},N=3,a=random(2),b=random(2),{_PLAIN}"
                    for depth in _DEPTHS
                    for rows in (1, 2)
                ),
                *(f"{shape},a=random(3),b=random(3),{_PLAIN}" for shape in shapes),
                f"M=2,K=40,N=4,a=extremes(1),b=extremes(2),{_PLAIN}",
                f"M=2,K=300,N=4,a=max,b=max,{_PLAIN}",
                f"M=2,K=33,N=5,codes=uint8,a=ones,b=random(1),{_PLAIN}",
                f"M=5,K=33,N=5,lay=KN,a=random(4),b=random(4),{_PLAIN}",
            ),
        ),
        Step(
            "zero point",
            "scales of 1, no bias",
            tuple(
                f"M=3,K=33,N=5,azero={per},azp=random(1),codes={codes},{_PLAIN}"
                for per in ("tensor", "token")
                for codes in ("int8", "uint8")
            ),
        ),
        Step(
            "activation scale",
            "weight scales of 1, no zero points, no bias",
            (
                *(f"{shape},aper={per},wper=unit" for shape in shapes for per in ("tensor", "token")),
                "M=8,K=16,N=8,aper=token,wper=unit",
            ),
        ),
        Step(
            "weight scale",
            "activation scales of 1, no zero points, no bias",
            (
                *(f"{shape},aper=unit,wper={per}" for shape in shapes for per in ("tensor", "channel")),
                "M=8,K=16,N=8,aper=unit,wper=channel",
            ),
        ),
        Step(
            "order of the scales",
            "both scales, no zero points, no bias",
            tuple(f"{shape},aper=token,wper=channel,scales=ordinary({i})" for i, shape in enumerate(shapes)),
        ),
        Step(
            "bias",
            "accumulators of 0, then products with bias",
            tuple(f"M=3,K=32,N=9,a=zeros,bias={dtype},{_PLAIN}" for dtype in ("fp32", "fp16", "bf16"))
            + tuple(f"{shape},bias=fp32,aper=token" for shape in shapes)
            + ("M=9,K=32,N=9,a=zeros,bias=fp32,aper=unit,wper=unit,scales=one",),
        ),
        Step(
            "output rounding",
            "products beyond and between the numbers of the output dtype",
            (
                "M=4,K=64,N=9,scales=ties(1),aper=token",
                "M=4,K=64,N=9,scales=huge(1),aper=token",
                "M=4,K=64,N=9,scales=subnormal(1),aper=token",
            ),
            ("fp16", "bf16", "fp32"),
        ),
        Step(
            "all together",
            "nothing left out",
            tuple(f"{shape},aper=token,azero=token,bias=fp16,codes=uint8" for shape in shapes),
        ),
    )


def _activations() -> tuple[Step, ...]:
    shapes = ("M=1,K=32,N=8", "M=2,K=33,N=9", "M=17,K=40,N=9", "M=33,K=24,N=5")
    whole = "x=whole(1)"
    return (
        Step(
            "accumulation",
            "activations that are whole multiples of their scale, weight scales of 1, no bias",
            tuple(
                f"M={rows},K={depth},N=3,{whole},wper=unit"
                for depth in _DEPTHS
                for rows in (1, 2)
                if depth > 1
            )
            + tuple(f"{shape},{whole},wper=unit" for shape in shapes),
        ),
        Step(
            "quantization",
            "a weight that is the identity, scales of 1, no bias",
            (
                *(
                    f"M=5,K=16,N=16,b=eye,wper=unit,x={x},xdtype={dtype}"
                    for x in ("whole(1)", "ties(1)", "near(1)", "ordinary(1)", "outlier(1)", "holes(1)")
                    for dtype in ("fp16", "fp32")
                ),
                "M=3,K=40,N=40,b=eye,wper=unit,x=last(1)",
                "M=5,K=16,N=16,b=eye,wper=unit,x=huge(1)",
            ),
        ),
        Step(
            "weight scale",
            "activations that are whole multiples of their scale, no bias",
            tuple(f"{shape},{whole},wper={per}" for shape in shapes for per in ("tensor", "channel")),
        ),
        Step(
            "bias",
            "activations of 0, then products with bias",
            tuple(f"M=3,K=32,N=9,x=zeros,wper=unit,bias={dtype}" for dtype in ("fp32", "fp16", "bf16"))
            + tuple(f"{shape},{whole},bias=fp32" for shape in shapes),
        ),
        Step(
            "output rounding",
            "products beyond and between the numbers of the output dtype",
            (
                "M=4,K=32,N=9,scales=ties(1)",
                "M=4,K=32,N=9,scales=huge(1)",
                "M=4,K=32,N=9,scales=subnormal(1)",
            ),
            ("fp16", "bf16", "fp32"),
        ),
        Step(
            "all together",
            "nothing left out",
            tuple(f"{shape},bias=fp16" for shape in shapes),
        ),
    )


def steps_of(name: str) -> tuple[Step, ...]:
    """The chain of ``gemm_int8`` (quantized operands) or ``gemm_dynamic`` (float activations)."""
    return {OPERANDS: _operands, ACTIVATIONS: _activations}[name]()


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


def isolate(
    harness: Harness, fmt: Format, kernel: Kernel, fields: Sequence[str] = (), outs: Sequence[str] = ("fp32",)
) -> Iterator[Found]:
    """Show each step of the chain to a kernel, in the order of the chain.

    Args:
        harness: of a run without oracles; nothing is recorded.
        fmt: ``gemm_int8`` or ``gemm_dynamic``.
        fields: field texts that hold for all cases, such as ``order=w-a``.
        outs: output dtypes, where a step does not need others.
    """
    for step in steps_of(fmt.name):
        judged, unsupported, failures = [], [], []
        for out in step.out or outs:
            for text in step.cases:
                checked = harness.judge(_case(fmt, text, fields, out), kernel)
                if checked.verdict.kind in NEUTRAL:
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
