"""python -m benchmarks.sweep: launch parameters are all tried, checked, and the best one found."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import subjects, weights
from benchmarks.budget import Budget
from benchmarks.cases import DTYPES, VARIANTS, find_variants
from benchmarks.overhead import compile_times, tiny
from benchmarks.space import SPACES, configurations, defaults
from benchmarks.subjects import builtin, default_launch
from benchmarks.sweep import main
from benchmarks.warm import compile_all
from conformance import interpreter
from conformance.bits import DTYPES as TORCH
from tests.benchmarking import machine

pytestmark = pytest.mark.interpreter
ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def _rounding_bfloat16():
    interpreter.correct()


# --- the space --------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.label)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_configuration_is_one_that_the_kernel_takes(variant, dtype):
    case = tiny(variant, dtype)
    kernel, space = builtin(case.format), SPACES[case.format]
    found = configurations(case)
    parameters = inspect.signature(kernel).parameters
    assert found[0] == default_launch(case.format, weights.make(case, torch.device("cpu")), TORCH[dtype])
    assert len({tuple(sorted(launch.items())) for launch in found}) == len(found)
    for launch in found:
        assert set(launch) == set(space.names) <= set(parameters)
        assert all(parameters[name].default is None for name in space.names)
        assert launch[space.width] & (launch[space.width] - 1) == 0
    for launch in found[1:]:
        assert launch[space.width] / (32 * launch["num_warps"]) in space.per_thread
    whole = len(space.num_warps) * len(space.per_thread)
    for values in space.others.values():
        whole *= len(values)
    # All of them; the defaults are one, or come on top.
    assert len(found) - whole in (0, 1)


# Where the defaults change with the size of the output: the sizes beside each border.
BORDERS = {
    "gptq/2bit": [((4096, 1024), (4224, 1024)), ((4096, 4096), (4224, 4096))],
    "gptq/4bit": [((4096, 1024), (4224, 1024)), ((8192, 16384), (8320, 16384))],
    "gptq/4bit-act-order": [((4096, 1024), (4224, 1024)), ((4096, 4096), (4224, 4096))],
    "gptq/8bit": [((8192, 4096), (8320, 4096))],
    "squeezellm/3bit": [((8192, 4096), (8320, 4096))],
    "squeezellm/4bit": [((8192, 16384), (8320, 16384))],
}


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.label)
def test_defaults_depend_on_the_kind_of_weight_and_of_some_on_its_size(variant):
    def found(size):
        case = dataclasses.replace(tiny(variant), rows=size[0], cols=size[1], group=variant.groups[0])
        return defaults(case)

    borders = BORDERS.get(variant.label, [])
    same = [(128, 512), *itertools.chain(*borders), (16384, 16384)]
    for below, above in zip(same[::2], same[1::2], strict=True):
        assert found(below) == found(above), (below, above)
    for below, above in borders:
        assert found(below) != found(above)
        assert set(found(below)) == set(found(above))


def test_one_group_has_the_defaults_of_groups_that_follow_one_another():
    order, plain = (find_variants([f"gptq/{name}"])[0] for name in ("4bit-act-order", "4bit"))
    for size in ((4096, 1024), (4096, 4096), (16384, 16384)):
        one, other = (
            defaults(dataclasses.replace(tiny(variant), rows=size[0], cols=size[1]))
            for variant in (order, plain)
        )
        assert one == other


def test_nearest_to_the_defaults_first():
    usual, *others = configurations(tiny(find_variants(["llm_int8"])[0]))
    steps = [
        sum(abs(launch[key].bit_length() - usual[key].bit_length()) for key in usual) for launch in others
    ]
    assert steps == sorted(steps)
    assert steps[0] == 1


# --- the sweep --------------------------------------------------------------------------

ARGUMENTS = ["--format", "llm_int8", "--dtype", "fp16", "--size", "8x64", "--limit", "4"]


def swept(path: Path) -> list[dict]:
    return json.loads(path.read_text())["swept"]


def test_the_best_is_found_in_the_final_rounds(tmp_path, capsys):
    file = tmp_path / "sweep.json"
    # The copy, four configurations, then three rounds of them by their first times, each with the copy.
    first = [3.0, 5.0, 9.0, 4.0]
    rounds = [3.5, 4.5, 4.0, 9.0, 2.0]
    assert main([*ARGUMENTS, "--json", str(file)], machine([2.0, *first, *rounds * 3])) == 0
    (found,) = swept(file)
    assert found["complete"]
    assert [trial["seconds"] for trial in found["trials"]] == [3.5, 4.0, 9.0, 4.5]
    assert found["best"]["launch"] == found["trials"][0]["launch"]
    assert found["best"]["fraction"] == 2.0 / 3.5
    assert all(trial["again"] for trial in found["trials"])
    assert "llm_int8/rows/fp16/8x64" in capsys.readouterr().out


def spoiled(monkeypatch, number: int, spoil) -> dict[str, int]:
    """Replace the kernel by one that ``spoil`` spoils at the numbered configuration; returns that one."""
    right = builtin("llm_int8")
    bad = configurations(tiny(find_variants(["llm_int8"])[0]))[number]

    def dequantize(weight, *, dtype, out, rows, cols, num_warps):
        right(weight, dtype=dtype, out=out, rows=rows, cols=cols, num_warps=num_warps)
        if {"rows": rows, "cols": cols, "num_warps": num_warps} == bad:
            spoil(out)
        return out

    monkeypatch.setattr(subjects, "builtin", lambda name: dequantize)
    return bad


def test_a_configuration_that_is_wrong_cannot_win(tmp_path, monkeypatch):
    bad = spoiled(monkeypatch, 1, lambda out: out[2].fill_(0))
    file = tmp_path / "sweep.json"
    assert main([*ARGUMENTS, "--json", str(file)], machine()) == 1
    (found,) = swept(file)
    assert [trial["status"] for trial in found["trials"]] == ["ok", "wrong", "ok", "ok"]
    assert found["trials"][1]["seconds"] is None
    assert found["best"]["launch"] != bad


def test_a_configuration_that_fails_is_a_line(tmp_path, monkeypatch):
    def fail(out):
        raise RuntimeError("out of resources")

    spoiled(monkeypatch, 2, fail)
    file = tmp_path / "sweep.json"
    assert main([*ARGUMENTS, "--json", str(file)], machine()) == 0
    (found,) = swept(file)
    assert [trial["status"] for trial in found["trials"]] == ["ok", "ok", "failed", "ok"]
    assert found["trials"][2]["reason"] == "RuntimeError: out of resources"


def test_a_sweep_cut_short_says_so(tmp_path, monkeypatch):
    ticks = iter(range(10_000))
    monkeypatch.setattr(
        "benchmarks.sweep.Budget", lambda seconds: Budget(seconds, lambda: float(next(ticks)))
    )
    file = tmp_path / "sweep.json"
    arguments = ["--format", "llm_int8", "--format", "int8_affine/row", *ARGUMENTS[2:], "--seconds", "8"]
    assert main([*arguments, "--json", str(file)], machine()) == 0
    first, second = swept(file)
    assert not first["complete"]
    assert 0 < len(first["trials"]) < 4
    assert first["best"] is not None
    assert not second["complete"]


def test_the_table_of_a_file(tmp_path, capsys):
    file = tmp_path / "sweep.json"
    assert main([*ARGUMENTS, "--json", str(file)], machine()) == 0
    first = capsys.readouterr().out
    assert "llm_int8/rows/fp16/8x64" in first
    assert main(["--show", str(file)]) == 0
    assert capsys.readouterr().out.strip() == first.strip()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "expected a JSON file"),
        ("[]", "expected schema 1, found None"),
        ('{"schema": 2, "swept": []}', "expected schema 1, found 2"),
        ('{"schema": 1, "measurements": []}', "expected a sweep's file"),
        ('{"schema": 1, "swept": []}', "expected the fields of one"),
        ('{"schema": 1, "machine": {}, "swept": [{"case": {}}]}', "expected the fields of one"),
        ('{"schema": 1, "machine": {}, "swept": 3}', "expected the fields of one"),
    ],
)
def test_a_file_that_is_no_sweep(tmp_path, capsys, text, words):
    file = tmp_path / "sweep.json"
    file.write_text(text)
    assert main(["--show", str(file)]) == 2
    assert words in capsys.readouterr().err


def test_wrong_use(capsys):
    assert main(["--format", "nf5"], machine()) == 2
    assert "format: expected one of nf4" in capsys.readouterr().err
    assert main(["--size", "1x"], machine()) == 2
    assert "size: expected N or ROWSxCOLS, found '1x'" in capsys.readouterr().err


# --- processes that compile -------------------------------------------------------------


def test_compile_times_come_from_a_process_of_their_own():
    found = compile_times(find_variants(["llm_int8", "nf4/plain"]), ["fp16"], 120)
    assert [(entry.format, entry.reason) for entry in found] == [("nf4", ""), ("llm_int8", "")]
    for entry in found:
        assert entry.first_seconds is not None
        assert entry.next_seconds is not None
        assert min(entry.first_seconds, entry.next_seconds) > 0


def test_compile_times_of_a_process_that_is_too_slow():
    (found,) = compile_times(find_variants(["llm_int8"]), ["fp16"], 0.01)
    assert (found.first_seconds, found.reason) == (None, "ended after 0 s")


def test_compiling_ahead_never_stops_a_run():
    case = tiny(find_variants(["llm_int8"])[0])
    assert compile_all([(case, [{}])], 0, 60) == ""
    # What a kernel refuses is not this function's to say.
    assert compile_all([(case, [{}, {"rows": -1}])], 1, 120) == ""
    late = "compiling ahead: 0 of 2 processes failed, 2 were too slow"
    assert compile_all([(case, [{}, {}])], 2, 0.01) == late


def test_a_share_is_a_part_of_the_jobs(tmp_path):
    jobs = tmp_path / "jobs.json"
    cases = [vars(tiny(variant)) for variant in find_variants(["llm_int8", "int8_affine"])]
    jobs.write_text(json.dumps([{"case": case, "launches": [{}]} for case in cases]))
    names = []
    for share in ("0/2", "1/2"):
        command = [sys.executable, "-m", "benchmarks.warm", str(jobs), "--times", "--share", share]
        done = subprocess.run(
            command, cwd=ROOT, env=dict(os.environ), capture_output=True, text=True, check=True
        )
        names.append([json.loads(line)["variant"] for line in done.stdout.splitlines()])
    assert names == [["rows", "column", "tensor"], ["row", "group"]]
