"""python -m benchmarks: a kernel that is not right to the bit gets no figure, and the rest goes on."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
import torch

from benchmarks import check, references
from benchmarks.budget import Budget
from benchmarks.cases import DTYPES, LARGEST, VARIANTS, BenchCase, select
from benchmarks.cli import main
from benchmarks.results import OURS, read
from conformance import interpreter
from conformance.errors import UsageError
from tests.benchmarking import machine

pytestmark = [
    pytest.mark.interpreter,
    # The interpreter multiplies with NumPy, which warns where hardware gives inf or NaN in silence.
    pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning"),
]
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _rounding_bfloat16():
    interpreter.correct()


def measurements(path: Path) -> list[dict]:
    return json.loads(path.read_text())["measurements"]


# --- right or no figure -----------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.label)
def test_the_formula_is_the_exact_model(variant):
    for dtype, group in itertools.product(DTYPES, variant.groups):
        case = BenchCase(variant.format, variant.name, dtype, *LARGEST, group)
        assert check.reference_fault(case, CPU) == ""


def test_a_wrong_formula_is_not_trusted(monkeypatch):
    case = select(["llm_int8"], ["fp16"], ["64"])[0]
    exact = references.formula

    def wrong(weight, dtype):
        value = exact(weight, dtype)
        value[3, 5] = 0
        return value

    monkeypatch.setattr(references, "formula", wrong)
    check._reference_fault.cache_clear()
    try:
        assert "1 of 65536 elements differ from the exact model" in check.reference_fault(case, CPU)
        assert (
            main(["--format", "llm_int8", "--size", "64", "--no-peers", "--part", "kernels"], machine()) == 1
        )
    finally:
        check._reference_fault.cache_clear()


def test_difference_says_where():
    want = torch.arange(12, dtype=torch.float16).reshape(3, 4)
    got = want.clone()
    assert check.difference(got, want) == ""
    got[1, 2] = -6
    assert check.difference(got, want) == "1 of 12 elements differ, first [1, 2]: got -6, want 6"
    check.poison(got[2:])
    assert check.difference(got, want).startswith("5 of 12 elements differ, 4 not written, first [1, 2]")
    zero = torch.zeros(2)
    assert check.difference(-zero, zero).startswith("2 of 2 elements differ")


WRONG = """
import torch
from kernels.llm_int8 import dequantize as right

calls = 0

def one_off(weight, *, dtype, out=None):
    right(weight, dtype=dtype, out=out)
    out[7, 9] += 1
    return out

def not_written(weight, *, dtype, out=None):
    kept = out[3].clone()
    right(weight, dtype=dtype, out=out)
    out[3] = kept
    return out

def sometimes(weight, *, dtype, out=None):
    global calls
    calls += 1
    right(weight, dtype=dtype, out=out)
    if calls > 1:
        out[0, 0] = 0
    return out

def another_tensor(weight, *, dtype, out=None):
    return right(weight, dtype=dtype)

def raises(weight, *, dtype, out=None):
    raise RuntimeError("no such thing")

def no_out(weight, *, dtype):
    return right(weight, dtype=dtype)
"""


@pytest.mark.parametrize(
    ("function", "status", "reason"),
    [
        ("one_off", "wrong", "1 of 4096 elements differ, first [7, 9]"),
        ("not_written", "wrong", "64 of 4096 elements differ, 64 not written, first [3, 0]"),
        ("sometimes", "wrong", "after many launches 1 of 4096 elements differ, first [0, 0]"),
        ("another_tensor", "wrong", "4096 of 4096 elements differ, 4096 not written"),
        ("raises", "failed", "RuntimeError: no such thing"),
    ],
)
def test_a_wrong_kernel_gets_no_figure_and_the_others_go_on(function, status, reason, tmp_path, capsys):
    (tmp_path / "wrong.py").write_text(WRONG)
    file = tmp_path / "results.json"
    arguments = ["--format", "llm_int8", "--format", "int8_affine/row", "--dtype", "fp32", "--size", "64"]
    arguments += [
        "--kernel",
        f"llm_int8={tmp_path / 'wrong.py'}:{function}",
        "--no-peers",
        "--part",
        "kernels",
    ]
    assert main([*arguments, "--json", str(file)], machine()) == 1
    found, other = measurements(file)
    assert (found["status"], found["seconds"], found["fraction"]) == (status, None, None)
    assert found["reason"].startswith(reason)
    assert other["status"] == "ok"
    assert other["fraction"] == 1
    assert "1 ok, " in capsys.readouterr().out


def test_a_kernel_that_takes_no_out_is_refused(tmp_path, capsys):
    (tmp_path / "wrong.py").write_text(WRONG)
    assert main(["--size", "64", "--kernel", f"llm_int8={tmp_path / 'wrong.py'}:no_out"], machine()) == 2
    assert "to take out" in capsys.readouterr().err


# --- the whole command ------------------------------------------------------------------


def test_every_variant_is_checked_and_timed(tmp_path):
    file = tmp_path / "results.json"
    # A launch takes 2 ms, the copy after it 1 ms, and so on.
    clock = machine([2e-3, 1e-3] * len(VARIANTS))
    arguments = ["--size", "128", "--dtype", "fp16", "--no-peers", "--part", "kernels", "--json", str(file)]
    usual = [f"{variant.format}/{variant.name}" for variant in VARIANTS if len(variant.groups) == 1]
    for name in usual:
        arguments += ["--format", name]
    assert main(arguments, clock) == 0
    found = measurements(file)
    assert [f"{entry['format']}/{entry['variant']}" for entry in found] == usual
    for entry in found:
        assert (entry["status"], entry["by"], entry["reason"]) == ("ok", OURS, "")
        assert (entry["seconds"], entry["copy_seconds"], entry["fraction"]) == (2e-3, 1e-3, 0.5)
        assert entry["gb_per_s"] == entry["n_bytes"] / 2e-3 / 1e9


def test_the_file_reads_back(tmp_path):
    file = tmp_path / "results.json"
    assert (
        main(
            ["--format", "nf4", "--dtype", "bf16", "--size", "64x128", "--no-peers", "--json", str(file)],
            machine(),
        )
        == 0
    )
    content = json.loads(file.read_text())
    assert set(content) == {"schema", "machine", "measurements", "overheads", "compile_times"}
    assert set(content["measurements"][0]) == {
        *("format", "variant", "dtype", "rows", "cols", "group"),
        *("by", "status", "reason", "n_bytes", "seconds", "low", "high", "copy_seconds", "copies", "launch"),
        *("fraction", "gb_per_s"),
    }
    assert read(file).to_dict() == content
    assert [(entry["host_seconds"], entry["graph_seconds"]) for entry in content["overheads"]] == [
        (5e-5, 2e-6)
    ] * 2
    file.write_text(json.dumps({**content, "schema": 0}))
    with pytest.raises(UsageError, match="results: expected schema 1, found 0"):
        read(file)


def test_a_size_that_a_format_does_not_take_is_said(tmp_path):
    file = tmp_path / "results.json"
    arguments = [
        "--format",
        "gptq/3bit",
        "--format",
        "llm_int8",
        "--dtype",
        "fp16",
        "--size",
        "33x64",
        "--no-peers",
    ]
    assert main([*arguments, "--part", "kernels", "--json", str(file)], machine()) == 1
    gptq, llm = sorted(measurements(file), key=lambda entry: entry["format"])
    assert gptq["status"] == "failed"
    assert "multiple of 32 at 3 bit" in gptq["reason"]
    assert llm["status"] == "ok"


def test_peers_are_compared_and_a_missing_one_is_a_line(tmp_path, capsys, monkeypatch):
    from benchmarks import peers

    def missing(weight, dtype):
        raise ImportError("no module named upstream")

    def other(weight, dtype):
        def call():
            value = references.formula(weight, dtype)
            value[0, 1] = 0
            return value

        return call

    own = (
        peers.Decoder("missing", ("llm_int8",), ("fp32",), missing),
        peers.Decoder("other", ("llm_int8",), ("fp32",), other),
        peers.Decoder("elsewhere", ("nf4",), ("fp32",), missing),
        next(peer for peer in peers.PEERS if peer.name == "torch eager"),
    )
    monkeypatch.setattr(peers, "PEERS", own)
    file = tmp_path / "results.json"
    arguments = ["--format", "llm_int8", "--dtype", "fp32", "--size", "64", "--part", "kernels"]
    assert main([*arguments, "--json", str(file)], machine()) == 0
    found = {entry["by"]: entry for entry in measurements(file)}
    assert list(found) == [OURS, "missing", "other", "torch eager"]
    assert found["missing"]["status"] == "failed"
    assert found["missing"]["reason"] == "ImportError: no module named upstream"
    assert found["other"]["reason"].startswith("1 of 4096 elements differ, first [0, 1]")
    assert found["other"]["fraction"] == 1
    assert found["torch eager"]["reason"] == ""
    assert "no module named upstream" in capsys.readouterr().out


@pytest.mark.parametrize("every", [False, True])
def test_peers_are_compared_at_the_first_size_or_at_all(every, tmp_path):
    file = tmp_path / "results.json"
    arguments = ["--format", "llm_int8", "--dtype", "fp32", "--size", "64", "--size", "32x96"]
    arguments += ["--peer", "torch eager", "--part", "kernels", "--json", str(file)]
    assert main([*arguments, *(["--every-size"] if every else [])], machine()) == 0
    compared = [(e["rows"], e["cols"]) for e in measurements(file) if e["by"] == "torch eager"]
    assert compared == ([(64, 64), (32, 96)] if every else [(64, 64)])


def test_nothing_begins_after_the_time(tmp_path, monkeypatch):
    now = itertools.count(0, 1)
    monkeypatch.setattr("benchmarks.cli.Budget", lambda seconds: Budget(seconds, lambda: float(next(now))))
    file = tmp_path / "results.json"
    arguments = [
        "--format",
        "llm_int8",
        "--format",
        "int8_affine",
        "--dtype",
        "fp16",
        "--size",
        "64",
        "--no-peers",
    ]
    # The clock is read once at the start and once before each of the five cases.
    assert main([*arguments, "--part", "kernels", "--seconds", "3", "--json", str(file)], machine()) == 0
    found = measurements(file)
    assert [entry["status"] for entry in found] == ["ok", "ok", "skipped", "skipped", "skipped"]
    assert found[-1]["reason"] == "3 s were spent"
    assert found[-1]["seconds"] is None
