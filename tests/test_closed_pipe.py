"""``| head`` ends a command quietly."""

from __future__ import annotations

import subprocess
import sys

import pytest

from conformance.closed_pipe import CLOSED, quietly
from tests.harness_runs import ROOT


@pytest.mark.parametrize(
    "arguments",
    [
        ("faults", "--markdown"),
        ("faults",),  # through rich
        ("faults", "--format", "gemm_int8"),
    ],
    ids=" ".join,
)
def test_a_reader_that_leaves(arguments):
    command = [sys.executable, "-m", "conformance", *arguments]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        errors = process.stderr.read().decode()
        assert process.wait(60) == CLOSED
    assert "Traceback" not in errors
    assert "BrokenPipe" not in errors


def test_other_ends_are_as_they_were():
    assert quietly(lambda: 2) == 2
    with pytest.raises(SystemExit, match="3"):
        quietly(lambda: sys.exit(3))
    with pytest.raises(ZeroDivisionError):
        quietly(lambda: 1 // 0)
