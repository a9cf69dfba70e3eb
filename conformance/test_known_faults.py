"""Every entry of the known-faults file is still true, shown on its pinned case."""

import pytest

from conformance.harness import Failure
from conformance.registry import builtin_kernel, parse_case
from conformance.verdict import NEUTRAL


def test_known_fault(harness, fault, request):
    """KNOWN_FAULT on the pinned case; FIXED_FAULT (red) when upstream is right there."""
    case = parse_case(fault.case)
    fmt = harness.formats[case.format]
    oracle = next((o for o in fmt.oracles if o.name == fault.oracle), None)
    assert oracle is not None, f"{fault.id}: {fmt.name} has no oracle {fault.oracle!r}"
    reason = harness.missing(fmt, oracle) or harness.in_force(fault, oracle)
    if reason is not None:
        pytest.skip(f"{fault.id}: {reason}")
    # About the oracle: a fault of a kernel under test must not be read as one of upstream.
    verdict = harness.check(case, builtin_kernel(fmt), test=request.node.name)
    if verdict.kind in NEUTRAL:
        pytest.skip(f"{verdict.kind}: {verdict.summary}")
    if verdict.kind != "KNOWN_FAULT" or fault.id not in verdict.summary:
        raise Failure(harness.fixed(fault, verdict))
