"""The cases named by ``--case``."""


def test_case(harness, given_case, request):
    """One case, as its id says."""
    harness.check(given_case, test=request.node.name)
