"""The printed commands work where they are printed: in the checkout, and in any other directory."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.rerun import ROOT, checkout, replay, rerun
from tests.harness_runs import records

KERNEL = """
def dequantize(weight, *, dtype, out=None):
    from tests.planted import right
    result = right(weight, dtype=dtype)
    return result.neg_() if out is None else out.copy_(result.neg_())
"""


def test_commands_in_the_checkout_and_elsewhere(tmp_path, monkeypatch):
    case = ("nf4", "nf4:shape=1", {})
    monkeypatch.chdir(ROOT)
    assert rerun(*case, root=checkout()) == "pytest conformance --case nf4:shape=1"
    assert replay("b", root=checkout()) == "python -m conformance replay b"
    monkeypatch.chdir(tmp_path)
    root = shlex.quote(str(ROOT))
    assert rerun(*case, root=checkout()) == f"pytest {root}/conformance --case nf4:shape=1"
    assert replay("b", root=checkout()) == f"PYTHONPATH={root} python -m conformance replay b"
    # A page is for checkouts on other machines.
    assert rerun(*case) == "pytest conformance --case nf4:shape=1"
    assert replay("b") == "python -m conformance replay b"


def shell(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return subprocess.run(
        command, shell=True, cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True
    )


def test_a_failure_seen_from_another_directory_is_reproduced_there(tmp_path):
    (tmp_path / "mine.py").write_text(KERNEL)
    selected = '-k "llm_int8 and words and fp16" --max-examples 3 --device cpu -p no:cacheprovider'
    first = shell(f"pytest {ROOT}/conformance {selected} --kernel llm_int8=mine.py:dequantize", tmp_path)
    assert first.returncode == 1, first.stdout + first.stderr
    (run,) = (tmp_path / ".conformance" / "runs").iterdir()
    assert records(run)
    for name in ("rerun", "replay"):
        (command,) = (
            line.removeprefix(name).strip()
            for line in first.stdout.splitlines()
            if line.startswith(f"{name} ")
        )
        again = shell(command, tmp_path)
        assert again.returncode == 1, again.stdout + again.stderr
        assert "MISMATCH  llm_int8:" in again.stdout, again.stdout + again.stderr


@pytest.mark.parametrize(
    "arguments", ["-k nf5", "-k 'fp4 and words and fp16' --kernel nf4=mine.py:dequantize"]
)
def test_what_was_asked_for_and_met_no_test_is_said(tmp_path, arguments):
    (tmp_path / "mine.py").write_text(KERNEL)
    done = shell(f"pytest {ROOT}/conformance {arguments} --max-examples 1 --device cpu", tmp_path)
    if "nf5" in arguments:
        assert done.returncode == 5
        assert "-k 'nf5' selects no case; formats: awq_cols, " in done.stdout
    else:
        assert done.returncode == 0, done.stdout + done.stderr
        words = "NOT CALLED: nf4 = mine.py:dequantize, given on the command line: no case of nf4 was judged"
        assert words in done.stdout
