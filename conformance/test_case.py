"""The cases named by ``--case``."""

from conformance.running import run_each


def test_case(harness, given_case, request):
    """One case, as its id says; skipped with the reason when nothing could be judged."""
    run_each(harness, request.node.name, [given_case])
