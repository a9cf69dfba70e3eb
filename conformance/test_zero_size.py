"""Weights without elements: nothing to compare, but a shape, a dtype and no crash."""

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
        assert result.bits is not None
        assert result.bits.shape == weight.output_shape
        assert result.bits.size == 0
        touched = result.stray + result.mutated
        assert not touched, f"{text}: {touched}"
