"""What the tests of the harness share: where they can run, and what Hypothesis remembers."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "interpreter: runs a Triton kernel on CPU tensors")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Triton is set up for one device a process: on a GPU the tests of the interpreter are skipped."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        return
    skip = pytest.mark.skip(reason="needs Triton's interpreter: run with --device cpu")
    for item in items:
        if item.get_closest_marker("interpreter"):
            item.add_marker(skip)


@pytest.fixture
def nothing_remembered() -> Iterator[None]:
    """Hypothesis has no failure of another run to begin with."""
    settings.register_profile("forgetful", settings.get_profile("conformance"), database=None)
    settings.load_profile("forgetful")
    yield
    settings.load_profile("conformance")
