"""What the tests of the harness share: only where they can run."""

import os

import pytest


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
