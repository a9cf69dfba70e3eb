"""Frozen cases with upstream's answers: judged where no upstream library is installed."""

from conformance.against_recorded import Recorded
from conformance.running import run_each
from conformance.vectors import read


def test_recorded(harness, fmt, out, request):
    """The kernel gives the bits that upstream gave when the vectors were recorded."""
    vectors = [vector for vector in read(fmt).vectors if out in vector.answers]
    run_each(Recorded(harness, out), request.node.name, vectors)
