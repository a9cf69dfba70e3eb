"""Weights without elements: nothing to compare, but a shape, a dtype and no crash."""

from conformance.running import run_each
from conformance.zero_size import Empty


def test_zero_size(harness, fmt, out, request):
    """The kernel returns an empty tensor of the right shape and dtype, and writes nowhere."""
    run_each(Empty(harness), request.node.name, [fmt.parse(text).replace(out=out) for text in fmt.zero_size])
