"""Weights without elements, and what the end of a run says of tests that judged nothing."""

import shutil

import pytest

from conformance.registry import Kernel, parse_case
from conformance.vectors import path_of
from conformance.zero_size import Empty
from kernels import Unsupported
from tests.harness_runs import harness, pytest_run

PARTIAL = """
from kernels import Unsupported
from kernels.int8_affine import dequantize as right


def dequantize(weight, *, dtype, out=None):
    if weight.granularity != "tensor":
        raise Unsupported("per tensor only")
    if weight.codes.numel() == 0:
        raise RuntimeError("empty grid")
    return right(weight, dtype=dtype, out=out)
"""


def unsupported(weight, *, dtype, out=None):
    raise Unsupported("not this one")


def test_an_empty_weight_is_judged_but_nothing_is_compared():
    verdict = Empty(harness()).judge(parse_case("nf4:shape=0x64")).verdict
    assert (verdict.kind, verdict.elements) == ("EXACT", 0)


def test_a_refusal_is_no_pass():
    assert Empty(harness(unsupported)).judge(parse_case("nf4:shape=0x64")).verdict.kind == "UNSUPPORTED"


def test_a_crash_behind_an_unsupported_case_is_seen(tmp_path):
    kernel = tmp_path / "partial.py"
    kernel.write_text(PARTIAL)
    result = pytest_run(
        "conformance", "-k", "int8_affine and zero_size",
        "--kernel", f"int8_affine={kernel}:dequantize", "--results", str(tmp_path / "r"),
    )  # fmt: skip
    assert result.returncode == 1
    assert "CRASH_LAUNCH  int8_affine:per=tensor,shape=0x0" in result.stdout
    assert "int8_affine UNSUPPORTED: per tensor only" in result.stdout


def test_skipped_tests_are_in_the_summary_with_their_reason(tmp_path):
    kernel = tmp_path / "none.py"
    kernel.write_text(PARTIAL.replace('!= "tensor"', "!= None"))
    result = pytest_run(
        "conformance", "-k", "int8_affine and zero_size",
        "--kernel", f"int8_affine={kernel}:dequantize", "--results", str(tmp_path / "r"),
    )  # fmt: skip
    assert result.returncode == 1
    assert "3 x test_zero_size: UNSUPPORTED: per tensor only" in result.stdout.split("tests skipped:")[1]


def test_vectors_of_another_folder(tmp_path):
    shutil.copy(path_of("llm_int8"), tmp_path)
    found = pytest_run(
        "conformance", "-k", "test_recorded and fp16 and (llm_int8 or nf4) and not originals",
        "--recorded", str(tmp_path), "--results", str(tmp_path / "r"),
    )  # fmt: skip
    assert found.returncode == 0, found.stdout
    assert "1 passed, 1 skipped" in found.stdout
    assert f"--recorded {tmp_path} has no vectors of nf4" in found.stdout
    (tmp_path / "llm_int8.safetensors").write_bytes(b"no vectors")
    damaged = pytest_run(
        "conformance", "-k", "test_recorded and fp16 and llm_int8",
        "--recorded", str(tmp_path), "--results", str(tmp_path / "s"),
    )  # fmt: skip
    assert damaged.returncode == 1
    missing = pytest_run("conformance", "-k", "llm_int8", "--recorded", str(tmp_path / "nothing"))
    assert missing.returncode == 4
    assert "--recorded: expected a folder of recorded vectors" in missing.stderr


@pytest.mark.parametrize("text", ["K=12", "bits=3,K=8"])
def test_a_size_that_a_format_cannot_have_is_refused(text):
    from conformance.errors import UsageError

    run = harness()
    kernel: Kernel = run.kernels["squeezellm"]
    with pytest.raises(UsageError, match=r"K: expected a multiple of (8|32) at"):
        run.judge(parse_case(f"squeezellm:{text}"), kernel)
