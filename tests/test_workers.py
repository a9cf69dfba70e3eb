"""Runs of several processes: which GPU each takes, and what is left when one of them dies."""

from __future__ import annotations

import dataclasses
import json
import os
from collections import Counter
from pathlib import Path

import pytest
import torch

from conformance import device_loss, gpus, journal, threads
from conformance.cli import main
from conformance.post_mortem import ending, post_mortem
from conformance.registry import parse_case
from conformance.results import read_results
from conformance.runtime import Runtime
from tests import crashing, fake_gpus, planted
from tests.harness_runs import CPU, FORMATS, harness, pytest_run

GPU = Runtime(torch.device("cuda", 0), False)
FAKES = ("-p", "tests.fake_gpus")

# --- which GPU ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("workers", "count"), [(8, 3), (4, 4), (2, 8), (5, 1)])
def test_workers_take_gpus_in_turn(workers, count):
    pool = gpus.Gpus(count)
    assert [pool.take(f"gw{k}") for k in range(workers)] == [k % count for k in range(workers)]


def test_a_replacement_takes_the_gpu_of_the_dead():
    pool = gpus.Gpus(3)
    for k in range(6):
        pool.take(f"gw{k}")
    for dead, fresh in (("gw4", "gw6"), ("gw2", "gw7"), ("gw6", "gw8")):
        gpu = pool.held[dead]
        pool.give_back(dead)
        assert pool.take(fresh) == gpu
    pool.give_back("gw100")


@pytest.mark.parametrize(
    ("option", "runtime", "shared"),
    [("auto", GPU, 3), ("cuda", GPU, 3), ("cuda:1", GPU, 0), ("auto", CPU, 0), ("cpu", CPU, 0)],
)
def test_only_a_device_without_a_number_is_shared_out(option, runtime, shared, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert gpus.shared(option, runtime) == shared


@pytest.mark.parametrize(("cores", "count", "workers"), [(128, 8, 32), (16, 8, 16), (128, 1, 4), (2, 0, 2)])
def test_auto_starts_no_more_workers_than_gpus_have_room_for(cores, count, workers):
    assert gpus.most_workers(cores, count) == workers


def test_a_worker_runs_on_its_gpu_and_makes_it_current(monkeypatch):
    asked: list[object] = []
    monkeypatch.setattr(gpus, "choose", lambda option: asked.append(option) or GPU)
    monkeypatch.setattr(torch.cuda, "set_device", asked.append)
    assert gpus.use("auto", 2) is GPU
    assert gpus.use("cuda:1", None) is GPU
    assert asked == ["cuda:2", 2, "cuda:1"]


# --- CPU threads --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cores", "workers", "share"), [(16, 7, "2"), (2, 2, "1"), (2, 5, "1"), (64, 1, "64")]
)
def test_workers_divide_the_cores(cores, workers, share, monkeypatch):
    monkeypatch.setattr(threads, "cores", lambda: cores)
    assert threads.share(workers, {}) == share
    assert threads.share(workers, {threads.VARIABLE: ""}) == share


@pytest.mark.parametrize(("workers", "environment"), [(2, {threads.VARIABLE: "8"}), (0, {})])
def test_what_the_user_set_stays(workers, environment):
    assert threads.share(workers, environment) is None


def test_a_worker_has_its_share_of_the_cores_from_the_start(tmp_path, monkeypatch):
    log = tmp_path / "threads"
    monkeypatch.setenv("THREADS_LOG", str(log))
    monkeypatch.delenv(threads.VARIABLE, raising=False)
    run = ("conformance", "-k", "test_words and nf4-fp16", "--max-examples", "2", "--results", str(tmp_path))
    assert pytest_run("-p", "tests.worker_threads", "-n", str(threads.cores()), *run).returncode == 0
    found = dict(line.split() for line in log.read_text(encoding="utf-8").splitlines())
    workers = {name: count for name, count in found.items() if name != "controller"}
    assert len(workers) == threads.cores()
    assert set(workers.values()) == {"1"}


# --- journal ------------------------------------------------------------------------------------


def test_journal_holds_the_last_step_and_goes_when_all_is_well(tmp_path):
    book = journal.Journal(tmp_path, "gw1", seed=5)
    book.begin("test_a")
    book.note(case="nf4:shape=123456789", step="kernel")
    book.begin("b")
    book.note(step="input")
    line = journal.read(journal.path_of(tmp_path, "gw1"))
    assert line is not None
    assert {key: line[key] for key in ("seed", "worker", "pid", "test", "step")} == {
        "seed": 5,
        "worker": "gw1",
        "pid": os.getpid(),
        "test": "b",
        "step": "input",
    }
    assert "case" not in line
    assert journal.left_over(tmp_path) == []  # this process runs
    book.close()
    assert list(tmp_path.iterdir()) == []


def test_a_journal_cut_short_is_none_and_a_foreign_file_is_one_sentence(tmp_path, capsys):
    path = journal.path_of(tmp_path)
    assert journal.read(path) is None
    path.write_text('{"pid": 1')
    assert journal.read(path) is None
    path.write_text('{"pid": 4, "test": "a"}\nrest of a longer line"}\n')
    assert journal.read(path) == {"pid": 4, "test": "a"}
    for foreign in ("[]\n", "{}\n", "no JSON\n"):
        path.write_text(foreign)
        assert main(["crashes", str(tmp_path)]) == 2
        assert capsys.readouterr().err.startswith("error: journal: expected a line")


def test_ending_of_a_process():
    assert [ending(code) for code in (None, 3, -11, -9, -250)] == [
        *("", "exit code 3", "SIGSEGV", "SIGKILL", "signal 250")
    ]


@pytest.mark.parametrize(
    ("step", "words", "tensors"),
    [
        ("input", "died while the input was made", False),
        ("kernel", "died in the kernel (SIGSEGV)", True),
        ("the oracle bitsandbytes", "died in the oracle bitsandbytes", True),
        ("judged", "damage done before may show late", True),
    ],
)
def test_post_mortem_says_at_which_step(step, words, tensors):
    run = harness()
    line = {"case": "nf4:shape=65", "step": step, "kernel": "k", "device": "cuda:1"}
    checked = post_mortem(run, line, "SIGSEGV")
    assert checked is not None
    verdict = checked.verdict
    assert (verdict.kind, verdict.device, verdict.failed) == ("CRASH_WORKER", "cuda:1", True)
    assert words in verdict.summary
    assert (checked.weight is not None) == tensors
    assert post_mortem(run, {"test": "t"}) is None


def test_every_step_is_noted_before_it_is_taken(tmp_path):
    book = journal.Journal(tmp_path)
    seen: list[tuple[str, str, str]] = []

    def look() -> None:
        line = journal.read(book.path)
        assert line is not None
        seen.append((line["step"], line["case"], line["kernel"]))

    def kernel(weight, *, dtype, out=None):
        look()
        return planted.right(weight, dtype=dtype, out=out)

    def answer(weight, dtype):
        look()
        return planted.right(weight, dtype=dtype)

    real = FORMATS["nf4"].oracles[0]
    oracle = dataclasses.replace(real, name="upstream", dequantize=answer, missing=lambda device: None)
    fmt = dataclasses.replace(FORMATS["nf4"], oracles=(oracle,))
    run = harness(kernel, oracles=None, fmt=fmt, journal=book)
    assert run.judge(parse_case("nf4:shape=65")).verdict.kind == "EXACT"
    name = run.kernels["nf4"].name
    assert set(seen) == {(step, "nf4:shape=65", name) for step in ("kernel", "the oracle upstream")}
    assert (journal.read(book.path) or {})["step"] == "judged"
    book.close()


# --- a lost GPU ---------------------------------------------------------------------------------


@pytest.fixture
def breakable(monkeypatch):
    """A device that is lost once :func:`fake_gpus.lose` was called."""
    monkeypatch.setattr(fake_gpus, "_lost", [])
    monkeypatch.setattr(device_loss, "why_lost", fake_gpus._why_lost)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (None, ""),
        (
            RuntimeError("CUDA error: misaligned address\nCUDA kernel errors might"),
            "CUDA error: misaligned address",
        ),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB"), ""),
        (RuntimeError("CUDA error: out of memory"), ""),
        (RuntimeError(""), "RuntimeError"),
    ],
)
def test_a_device_is_lost_when_it_answers_nothing(error, reason, monkeypatch):
    def synchronize(device):
        if error is not None:
            raise error

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    monkeypatch.setattr(torch, "zeros", lambda *args, **options: torch.ones(1))
    assert device_loss.why_lost(torch.device("cuda", 0)) == reason
    assert device_loss.why_lost(CPU.device) == ""


def test_a_launch_that_loses_the_device_asks_nobody_after_it(breakable):
    def never(weight, dtype):
        raise AssertionError("asked on a lost device")

    oracle = dataclasses.replace(FORMATS["nf4"].oracles[0], dequantize=never, missing=lambda device: None)
    fmt = dataclasses.replace(FORMATS["nf4"], oracles=(oracle,))
    checked = harness(crashing.breaks_gpu, oracles=None, fmt=fmt).judge(parse_case("nf4:shape=3x1001"))
    assert checked.verdict.kind == "CRASH_LAUNCH"
    assert "illegal memory access" in checked.verdict.summary
    assert checked.lost == fake_gpus.ERROR
    assert checked.verdict.notes == ()


def test_an_oracle_that_loses_the_device_is_named_instead_of_the_kernel(breakable):
    def breaks(weight, dtype):
        fake_gpus.lose()
        raise RuntimeError(fake_gpus.ERROR)

    def never(weight, dtype):
        raise AssertionError("asked on a lost device")

    first = dataclasses.replace(FORMATS["nf4"].oracles[0], missing=lambda device: None)
    oracles = tuple(
        dataclasses.replace(first, name=name, dequantize=function)
        for name, function in (("upstream", breaks), ("other", never))
    )
    fmt = dataclasses.replace(FORMATS["nf4"], oracles=oracles)
    checked = harness(planted.right, oracles=None, fmt=fmt).judge(parse_case("nf4:shape=65"))
    assert checked.verdict.kind == "CRASH_WORKER"
    assert "the oracle upstream ended the CUDA context: raised RuntimeError" in checked.verdict.summary
    assert checked.lost


def test_a_crash_that_the_device_survives_ends_nothing(breakable):
    checked = harness(planted.raises).judge(parse_case("nf4:shape=65"))
    assert checked.verdict.kind == "CRASH_LAUNCH"
    assert checked.lost == ""
    assert "context" not in checked.verdict.summary


# --- whole runs ---------------------------------------------------------------------------------

PARTS = "(nf4 or fp4) and fp16 and (large or zero_size or tiles)"
KERNELS = ("--kernel", "nf4=tests/crashing.py:segfaults", "--kernel", "fp4=tests/crashing.py:breaks_gpu")


def cases(folder: Path) -> list[tuple[str, str, str]]:
    """Test, case and verdict of each case of a run."""
    return [(r["test"], r["case"], r["verdict"]) for r in read_results(folder) if "test" in r]


def test_dead_workers_are_reported_with_their_case_and_the_rest_goes_on(tmp_path, capsys, monkeypatch):
    folder, log = tmp_path / "r", tmp_path / "log"
    monkeypatch.setenv("FAKE_GPUS_LOG", str(log))
    done = pytest_run("conformance", *FAKES, "-k", PARTS, *KERNELS, "-n", "2", "--results", str(folder))
    assert done.returncode == 1, done.stdout
    assert "4 failed, 2 passed" in done.stdout
    assert done.stdout.count("conformance seed:") == 1
    assert "conformance workers: 2 on 3 GPUs; gwK runs on cuda:(K mod 3)" in done.stdout
    # No case was run twice, and each crash ended its test.
    found = cases(folder)
    assert max(Counter((test, case) for test, case, _ in found).values()) == 1
    crashes = {test: (case, kind) for test, case, kind in found if kind.startswith("CRASH")}
    large, tiles = (
        "blocksize=32,shape=3x5500,absmax=nested",
        "blocksize=32,shape=1x8200,absmax=nested,tile=default",
    )
    assert crashes == {
        "test_large[nf4-fp16]": (f"nf4:{large}", "CRASH_WORKER"),
        "test_tiles[nf4-fp16]": (f"nf4:{tiles}", "CRASH_WORKER"),
        "test_large[fp4-fp16]": (f"fp4:{large}", "CRASH_LAUNCH"),
        "test_tiles[fp4-fp16]": (f"fp4:{tiles}", "CRASH_LAUNCH"),
    }
    assert "the process died in the kernel (SIGSEGV)" in done.stdout
    assert "the CUDA context was lost (CUDA error: an illegal memory access" in done.stdout
    for case, kind in crashes.values():
        assert f"{kind}  {case}\n" in done.stdout
        assert f"--case {case} --kernel " in done.stdout
    # Each crash has a bundle of the case that crashed, and no journal is left.
    bundles = [json.loads(path.read_text()) for path in folder.glob("bundles/*/case.json")]
    assert {bundle["id"] for bundle in bundles} == {case for case, _ in crashes.values()}
    assert not list(folder.glob("journal*"))
    capsys.readouterr()
    assert main(["crashes", str(folder)]) == 1
    said = capsys.readouterr().out
    died = sorted(case for case, kind in crashes.values() if kind == "CRASH_WORKER")
    assert sorted(line.split()[1].rstrip(":") for line in said.splitlines()) == died
    # Six workers, two at a time, each on the GPU of the one that it replaced.
    taken = [line.split() for line in log.read_text().splitlines()]
    assert len(taken) == len({worker for worker, _ in taken}) >= 5
    assert {gpu for _, gpu in taken} == {"0", "1"}


def test_workers_draw_what_one_process_draws(tmp_path):
    options = ("conformance", "-k", "nf4 and words", "--max-examples", "4", "--hypothesis-seed", "7")
    kernel = ("--kernel", "nf4=tests/planted.py:right")
    for name, workers in (("one", "0"), ("two", "2")):
        done = pytest_run(*options, *kernel, "-n", workers, "--results", str(tmp_path / name))
        assert done.returncode == 0, done.stdout
    assert sorted(cases(tmp_path / "one")) == sorted(cases(tmp_path / "two"))
    assert len(list((tmp_path / "two").glob("results-gw*.jsonl"))) == 2


def test_a_lost_gpu_stops_a_run_of_one_process_at_once(tmp_path):
    folder, database = tmp_path / "r", tmp_path / "database"
    options = ("conformance", *FAKES, "-k", "fp4 and fp16 and (words or large)", "--database", str(database))
    kernel = ("--kernel", "fp4=tests/crashing.py:breaks_gpu", "--max-examples", "200")
    done = pytest_run(*options, *kernel, "--results", str(folder))
    assert done.returncode == 1, done.stdout
    assert "1 failed" in done.stdout
    assert "the CUDA context is lost (CUDA error: an illegal memory access was encountered)" in done.stdout
    assert "1 tests were not run; run with -n 1" in done.stdout
    # The crash is the last verdict of all: nothing was shrunk or judged on the lost device.
    kinds = [kind for _, _, kind in cases(folder)]
    assert [kind for kind in kinds if kind.startswith("CRASH")] == kinds[-1:] == ["CRASH_LAUNCH"]
    (bundle,) = folder.glob("bundles/*/case.json")
    (crash,) = (case for _, case, kind in cases(folder) if kind == "CRASH_LAUNCH")
    assert json.loads(bundle.read_text())["id"] == crash
    # The next run begins with it.
    again = tmp_path / "again"
    pytest_run(*options, *kernel, "--results", str(again))
    assert [(case, kind) for _, case, kind in cases(again)] == [(crash, "CRASH_LAUNCH")]


def test_a_process_that_dies_alone_leaves_its_case(tmp_path, capsys):
    folder = tmp_path / "r"
    options = ("-k", "nf4 and fp16 and large", "--kernel", "nf4=tests/crashing.py:segfaults")
    done = pytest_run("conformance", *options, "--results", str(folder))
    assert done.returncode == -11
    assert main(["crashes", str(folder)]) == 1
    output = capsys.readouterr().out
    assert "CRASH_WORKER  nf4:blocksize=32,shape=3x5500,absmax=nested\n" in output
    assert "test       conformance/test_formats.py::test_large[nf4-fp16]\n" in output
    assert "--kernel nf4=tests/crashing.py:segfaults --device cpu -n 1" in output
    right = ("--device", "cpu", "--kernel", "tests/planted.py:right")
    assert main(["replay", str(folder / "bundles" / "nf4-crash_worker"), *right]) == 0
    assert main(["crashes", str(folder)]) == 0  # said once


def test_crashes_of_no_run_is_one_sentence(tmp_path, capsys):
    assert main(["crashes", str(tmp_path / "none")]) == 2
    assert (
        capsys.readouterr().err
        == f"error: crashes: expected a folder of a run, found nothing at {tmp_path}/none\n"
    )


def test_workers_that_cannot_start_end_the_run(tmp_path):
    module = tmp_path / "dies.py"
    module.write_text(
        "import os\nif 'PYTEST_XDIST_WORKER' in os.environ:\n    os._exit(4)\n"
        "from tests.planted import right\n"
    )
    options = ("-k", "nf4 and zero_size", "--kernel", f"nf4={module}:right", "-n", "1")
    done = pytest_run("conformance", *options, "--results", str(tmp_path / "r"))
    assert done.returncode == 3
    assert "3 workers died before their first test" in done.stdout


def test_looking_further_may_lose_the_device_without_losing_the_failure(tmp_path):
    """Inputs beside a failing one are run for its report; the report comes all the same."""
    kernel = ("--kernel", "nf4=tests/crashing.py:wrong_then_breaks_gpu")
    cases = ("--case", "nf4:shape=4x64", "--case", "nf4:shape=8x64")
    done = pytest_run("conformance", *FAKES, *cases, *kernel, "--results", str(tmp_path / "r"))
    assert done.returncode == 1, done.stdout
    assert "MISMATCH  nf4:shape=4x64\n" in done.stdout
    assert "1 tests were not run" in done.stdout
    assert "8x64" not in done.stdout
