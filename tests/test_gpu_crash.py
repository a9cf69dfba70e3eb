"""Kernels that really break a GPU: the run says so, and gives no verdict after it. Needs a CUDA GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from conformance.results import read_results
from conformance.verdict import FAILING
from tests.harness_runs import python

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU to break")

PARTS = "nf4 and fp16 and (large or zero_size or tiles)"
KERNELS = ("writes_far_away", "asserts_on_device")


def gpu_run(kernel: str, *arguments: str) -> tuple[int, str]:
    """A run on the GPU in a process of its own, which breaks that process and no other."""
    given = ("--kernel", f"nf4=tests/gpu_crashing.py:{kernel}", "-k", PARTS)
    options = ("-p", "no:cacheprovider", "--device", "auto", *given, *arguments)
    done = python("-m", "pytest", "conformance", *options)
    return done.returncode, done.stdout + done.stderr


def verdicts(folder: Path) -> list[tuple[str, str, str]]:
    return [(r["test"], r["case"], r["verdict"]) for r in read_results(folder) if r.get("test")]


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_run_of_one_process_stops_at_the_crash(kernel: str, tmp_path: Path):
    code, output = gpu_run(kernel, "--results", str(tmp_path / "r"))
    assert code == 1, output
    assert "CRASH_LAUNCH  nf4:" in output
    assert "the CUDA context is lost (CUDA error: " in output
    assert "tests were not run; run with -n 1" in output
    assert "INTERNALERROR" not in output
    kinds = [kind for _, _, kind in verdicts(tmp_path / "r")]
    assert kinds[-1] == "CRASH_LAUNCH"
    assert not set(kinds[:-1]) & set(FAILING)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_worker_is_replaced_and_the_rest_goes_on(kernel: str, tmp_path: Path):
    code, output = gpu_run(kernel, "-n", "1", "--results", str(tmp_path / "r"))
    assert code == 1, output
    assert "2 failed, 1 passed" in output
    assert "the CUDA context was lost (CUDA error: " in output
    found = verdicts(tmp_path / "r")
    crashed = {test for test, _, kind in found if kind == "CRASH_LAUNCH"}
    assert crashed == {"test_large[nf4-fp16]", "test_tiles[nf4-fp16]"}
    assert {kind for test, _, kind in found if test == "test_zero_size[nf4-fp16]"} == {"EXACT"}
    bundles = [json.loads(path.read_text()) for path in (tmp_path / "r").glob("bundles/*/case.json")]
    assert {bundle["id"] for bundle in bundles} == {c for _, c, kind in found if kind == "CRASH_LAUNCH"}
    assert all(bundle["environment"]["device"].startswith("cuda:") for bundle in bundles)


def test_a_refused_launch_breaks_nothing(tmp_path: Path):
    """A grid larger than there is: an error of one launch, after which the GPU works as before."""
    code, output = gpu_run("asks_too_much", "--results", str(tmp_path / "r"))
    assert code == 1, output
    assert "2 failed, 1 passed" in output
    assert "CUDA context" not in output


def test_a_bundle_of_a_crash_replays_with_a_right_kernel(tmp_path: Path):
    gpu_run("writes_far_away", "--results", str(tmp_path / "r"))
    (bundle,) = (tmp_path / "r" / "bundles").iterdir()
    done = python("-m", "conformance", "replay", str(bundle), "--kernel", "kernels.nf4:dequantize")
    assert done.returncode == 0, done.stdout + done.stderr
    done = python("-m", "conformance", "replay", str(bundle))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "CRASH_LAUNCH" in done.stdout
    assert "Traceback" not in done.stderr
