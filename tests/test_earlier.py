"""What a failure reads like before it was shrunk: one token is off by one factor, several by their own."""

from __future__ import annotations

import pytest
import torch

from conformance.bits import from_bits
from conformance.harness import Failure
from conformance.investigate import investigate
from conformance.report import report
from conformance.running import run_drawn
from conformance.strategies import cases
from oracles.spec.rounding import round_to
from tests.harness_runs import FORMATS, harness

pytestmark = pytest.mark.usefixtures("nothing_remembered")


@pytest.mark.parametrize("name", ["gemm_epilogue", "gemm_int8", "gemm_fp8"])
@pytest.mark.parametrize(
    ("axis", "words"),
    [
        (0, "each token is off by a factor of its own: reads like the activation scale"),
        (1, "each channel is off by a factor of its own: reads like the weight scale"),
    ],
    ids=["token", "channel"],
)
def test_a_shrunk_failure_is_told_by_a_larger_one(name, axis, words):
    fmt = FORMATS[name]

    def kernel(weight, *, dtype, out=None):
        y = from_bits(round_to(fmt.unpack(weight).values(), torch.float32), torch.float32)
        numbers = torch.arange(y.shape[axis]) * 0.37 + 1.61
        y = (y * (numbers[:, None] if axis == 0 else numbers)).to(dtype)
        return y if out is None else out.copy_(y)

    run = harness(kernel)
    drawn = cases(fmt, out="fp32", route="words", bias="none")
    with pytest.raises(Failure) as caught:
        run_drawn(run, f"factor-{name}-{axis}", drawn, "planted")
    verdict = investigate(run, caught.value.checked, run.kernels[name]).verdict
    assert words in verdict.reading
    assert words in " ".join(report(verdict).split())
