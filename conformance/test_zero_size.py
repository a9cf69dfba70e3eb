"""Weights without elements: nothing to compare, but a shape, a dtype and no crash."""

import torch

from conformance.bits import DTYPES
from conformance.execute import execute
from conformance.materialize import materialize


def test_zero_size(harness, fmt, out):
    """The kernel returns an empty tensor of the right shape and dtype, and writes nowhere."""
    kernel = harness.kernels[fmt.name]
    for text in fmt.zero_size:
        weight, _ = materialize(fmt, fmt.parse(text))
        result = execute(kernel, weight, DTYPES[out], harness.runtime.device)
        assert result.unsupported is None, f"UNSUPPORTED {text}: {result.unsupported}"
        assert not result.crash, f"CRASH {text}: {result.error}"
        assert result.contract is None, f"{text}: {result.contract}"
        assert result.bits is not None and result.bits.shape == weight.output_shape
        assert not result.stray and not result.mutated, f"{text}: {result.stray} {result.mutated}"
        assert isinstance(result.bits.size, int) and torch.Size(weight.output_shape).numel() == 0
