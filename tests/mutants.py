"""Kernels with one fault of the catalogue each, and what the suite makes of them."""

from __future__ import annotations

from collections.abc import Callable

import torch

from conformance.bits import from_bits
from conformance.faults import Context, Fault
from conformance.registry import Format
from conformance.verdict import Verdict
from kernels._packed import map_tensors
from oracles.spec.rounding import round_to
from tests.harness_runs import FORMATS, first_failure, harness

# The output dtype that shows a fault: float32 unless the fault is in the output rounding.
OUT = {
    "bf16-truncate": "bf16",
    "bf16-half-away": "bf16",
    "fp16-saturate": "fp16",
    "sparse-after-rounding": "bf16",
    "bias-after-rounding": "bf16",
}


def mutant(fmt: Format, fault: Fault) -> Callable[..., torch.Tensor]:
    """A kernel with the fault; right where the fault cannot show."""

    def kernel(weight, *, dtype, out=None):
        dense = map_tensors(
            weight, lambda _, t: torch.empty(t.shape, dtype=t.dtype, device=t.device).copy_(t)
        )
        model = fmt.unpack(dense)
        bits = fault.decode(Context(dense, model, dtype))
        result = from_bits(round_to(model.values(), dtype) if bits is None else bits, dtype)
        return result if out is None else out.copy_(result)

    return kernel


def caught(name: str, fault: Fault, examples: int) -> Verdict:
    """Verdict of the failure that the suite's own strategy finds and shrinks to, or else of the first of
    its fixed cases that fails."""
    run = harness(mutant(FORMATS[name], fault))
    out = OUT.get(fault.name, "fp32")
    failure = first_failure(run, name, examples, out=out)
    if failure is not None:
        return failure.checked.verdict
    # Those that the suite runs every time.
    for text in (*FORMATS[name].tile_cases, *FORMATS[name].large):
        verdict = run.judge(FORMATS[name].parse(text).replace(out=out)).verdict
        if verdict.failed:
            return verdict
    raise AssertionError(f"{fault.name} is not caught")
