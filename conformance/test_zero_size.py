"""Weights without elements: nothing to compare, but a shape, a dtype and no crash."""

import pytest

from conformance.harness import Failure


def test_zero_size(harness, fmt, out):
    """The kernel returns an empty tensor of the right shape and dtype, and writes nowhere."""
    for text in fmt.zero_size:
        checked = harness.judge_empty(fmt.parse(text).replace(out=out))
        if checked.verdict.failed:
            raise Failure(checked)
        if checked.verdict.kind == "UNSUPPORTED":
            pytest.skip(f"UNSUPPORTED: {checked.verdict.summary}")
