"""The kernels compile for GPUs: the interpreter accepts what the compiler does not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from conformance import cli
from conformance.ahead import work
from conformance.ahead.result import Compiled, read, write
from conformance.registry import formats

ROOT = Path(__file__).parent.parent
VARIANT = Compiled(
    *("3.9.0", "sm_90", "nf4", "nf4:shape=256x512", "ordinary", "blockwise_kernel", "x"),
    registers=32,
    stores={"out": {16: 2}},
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    # A cache of its own: what is to be shown is that the source of today compiles.
    return tmp_path_factory.mktemp("compile")


def compile_command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: interpreter and compiler cannot share one."""
    return subprocess.run(
        [sys.executable, "-m", "conformance", "compile", *arguments],
        cwd=ROOT,
        env={**os.environ, "TRITON_CACHE_DIR": str(folder / "cache"), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_every_kernel_compiles_for_a_gpu_that_is_not_there(folder):
    file = folder / "now.jsonl"
    done = compile_command(folder, "--target", "sm_90", "--quick", "--json", str(file))
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 failed; 0 expectations do not hold" in done.stdout
    results, _ = read(file)
    for sizes in ("ordinary", "large"):
        assert {one.format for one in results if one.sizes == sizes} == set(formats())
    assert all(one.registers > 8 and one.stores for one in results if one.sizes == "ordinary")
    # An earlier file with fewer registers and wider stores.
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line in lines:
        if line.get("kernel") == "blockwise_kernel" and line["sizes"] == "ordinary":
            line["registers"] //= 2
            line["stores"] = {"out": {"32": 1}}
    lines[0]["triton"] = "3.1.4"
    before = folder / "before.jsonl"
    before.write_text("".join(json.dumps(line) + "\n" for line in lines))
    options = ("--target", "sm_90", "--quick", "--format", "nf4", "--format", "llm_int8", "--jobs", "2")
    again = compile_command(folder, *options, "--before", str(before))
    assert again.returncode == 1, again.stdout + again.stderr
    worse = [line for line in again.stdout.splitlines() if line.startswith("WORSE")]
    assert len(worse) == 2
    assert all(line.startswith("WORSE nf4 blockwise_kernel, nf4:shape=256x512, sm_90: ") for line in worse)
    assert all(f"(Triton {results[0].triton} against Triton 3.1.4" in line for line in worse)
    assert ": 32 registers, were 16 " in worse[0]
    assert ": stores of 16 bytes to out, were 32 " in worse[1]


@pytest.fixture
def in_this_process(monkeypatch):
    """The command with results given instead of compiled."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # the command turns it off

    def run(results: list[Compiled], *arguments: str) -> int:
        monkeypatch.setattr(work, "compile_all", lambda *a, **k: iter(results))
        return cli.main(["compile", "--format", "nf4", "--target", "sm_90", *arguments])

    return run


def test_a_violated_expectation_is_an_error(in_this_process, capsys):
    assert in_this_process([VARIANT]) == 0
    spilling = Compiled(**{**vars(VARIANT), "spills": 3})
    assert in_this_process([VARIANT, spilling]) == 1
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("FAIL"))
    assert line == (
        "FAIL nf4 blockwise_kernel, nf4:shape=256x512, sm_90, Triton 3.9.0: expected no spills, found 3"
    )


def test_a_compiler_that_refuses_is_an_error(in_this_process, capsys):
    refused = Compiled(*list(vars(VARIANT).values())[:7], error="CompilationError: no")
    assert in_this_process([VARIANT, refused]) == 1
    out = capsys.readouterr().out
    assert "expected it to compile, found CompilationError: no" in out
    assert "1 variants compiled" in out
    assert in_this_process([]) == 1


def test_a_target_that_this_triton_does_not_know_is_left_out(monkeypatch):
    from conformance.ahead import build

    monkeypatch.setattr(build, "VERSION", (3, 2))
    targets, reasons = work.supported(["sm_100", "sm_90"])
    assert targets == ["sm_90"]
    assert reasons[0].startswith("sm_100 needs Triton 3.3, this is ")


BAD = [
    (["--jobs", "0"], "--jobs: expected 1 or more, found 0"),
    (["--format", "nf5"], "format: expected one of "),
    (["--before", "nowhere.jsonl"], "--before: expected a file that can be read, found nowhere.jsonl"),
    (["--json", "nowhere/now.jsonl"], "--json: expected a file that can be written, found nowhere/now.jsonl"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD)
def test_wrong_arguments(in_this_process, capsys, arguments, message):
    assert in_this_process([VARIANT], *arguments) == 2
    assert capsys.readouterr().err.startswith(f"error: {message}")


def test_no_target_for_this_triton(in_this_process, monkeypatch, capsys):
    monkeypatch.setattr(work, "unsupported", lambda target: f"{target} is beyond it")
    assert in_this_process([VARIANT]) == 2
    assert "--target: expected one for this Triton, found: sm_90 is beyond it" in capsys.readouterr().err


NOT_RESULTS = [
    ("", "found no first line"),
    ("{\n", "line 1, found: "),
    ('{"verdict": "EXACT"}\n', "line 1, found: 'record'"),
    ('{"record": "compile", "schema": 99, "triton": "3.9.0", "commit": null}\n', "schema 99, this is 1"),
    ('{"record": "compiled", "loads": {}, "stores": {}, "narrow": []}\n', "line 1, found: "),
    ("[]\n", "line 1, found: "),
]


@pytest.mark.parametrize(("text", "message"), NOT_RESULTS)
def test_a_file_that_is_no_results(in_this_process, tmp_path, capsys, text, message):
    file = tmp_path / "before.jsonl"
    file.write_text(text)
    assert in_this_process([VARIANT], "--before", str(file)) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: --before: expected results of compile in {file}")
    assert message in error


def test_results_come_back_from_a_file(tmp_path):
    narrow = Compiled(
        **{**vars(VARIANT), "narrow": ("x.py:1: i32 muli",), "loads": {"packed": {4: 1, 16: 2}}}
    )
    file = tmp_path / "now.jsonl"
    write(file, [VARIANT, narrow], "3.9.0")
    results, source = read(file)
    assert results == [VARIANT, narrow]
    assert source.startswith("Triton 3.9.0")
