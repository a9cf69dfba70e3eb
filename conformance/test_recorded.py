"""Frozen cases with upstream's answers: judged where no upstream library is installed."""

import pytest

from conformance.against_recorded import Recorded, originals
from conformance.running import run_each
from conformance.vectors import FOLDER, path_of, read


def test_recorded(harness, fmt, out, request):
    """The kernel gives the bits that upstream gave when the vectors were recorded."""
    folder = harness.recorded or FOLDER
    if harness.recorded and not path_of(fmt.name, folder).exists():
        pytest.skip(f"--recorded {folder} has no vectors of {fmt.name}")
    vectors = [vector for vector in read(fmt, path_of(fmt.name, folder)).vectors if out in vector.answers]
    run_each(Recorded(harness, out), request.node.name, vectors)


def test_recorded_originals(harness, fmt, out, request):
    """The kernel gives the bits of a project without a package, recorded from its own build."""
    cases = originals(fmt, out)
    if not cases:
        pytest.skip("every upstream of this format has a package to call")
    run_each(harness, request.node.name, cases)
