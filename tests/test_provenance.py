"""What is printed of an upstream: its version, and when it is missing or not the tested one."""

import pytest

from oracles.base import Provenance


@pytest.mark.parametrize(
    ("version", "text"),
    [
        ("2.0", "package 2.0 (call package.f)"),
        ("1.9", "package 1.9 (call package.f, tested with 2.0)"),
        (None, "package not installed (call package.f)"),
    ],
    ids=["tested", "untested", "missing"],
)
def test_provenance_says_what_answers(version: str | None, text: str):
    assert str(Provenance("package", version, "2.0", "package.f", "call")) == text
