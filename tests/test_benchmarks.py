"""python -m benchmarks: everything but the GPU's own clock."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks import weights
from benchmarks.budget import Budget
from benchmarks.cases import LARGEST, VARIANTS, BenchCase, parse_size, select
from benchmarks.cli import main
from benchmarks.timing import MAX_PASSES, MIN_PASSES, CudaTimer, copies_for, copy_calls, sample
from conformance import interpreter
from conformance.bits import DTYPES as TORCH
from tests.benchmarking import ToldTimer, machine

pytestmark = [
    pytest.mark.interpreter,
    # The interpreter multiplies with NumPy, which warns where hardware gives inf or NaN in silence.
    pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning"),
]
CPU = torch.device("cpu")
RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"


@pytest.fixture(autouse=True)
def _rounding_bfloat16():
    interpreter.correct()


def measurements(path: Path) -> list[dict]:
    return json.loads(path.read_text())["measurements"]


# --- what is measured -------------------------------------------------------------------


def test_the_summary_comes_first_and_nothing_twice():
    cases = select()
    assert {(case.rows, case.cols, case.dtype) for case in cases[: len(VARIANTS)]} == {(*LARGEST, "fp16")}
    assert len(set(cases)) == len(cases)
    # 7 sizes, and the further group sizes at the first of them, for three dtypes.
    assert len(cases) == 3 * (7 * len(VARIANTS) + sum(len(variant.groups) - 1 for variant in VARIANTS))


def test_selection():
    assert [case.id for case in select(["gptq/3bit"], ["bf16"], ["64x32"])] == ["gptq/3bit/bf16/64x32/g128"]
    assert {case.dtype for case in select(quick=True)} == {"fp16"}
    assert len(select(quick=True)) == len(VARIANTS)
    assert {case.group for case in select(["awq_rows"], ["fp32"], ["128"])} == {128, 32, 64, -1}
    assert parse_size("4096x14336") == (4096, 14336)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--format", "nf5"], "format: expected one of nf4, fp4,"),
        (["--dtype", "fp8"], "dtype: expected one of fp16, bf16, fp32, found 'fp8'"),
        (["--size", "0x3"], "size: expected N or ROWSxCOLS, found '0x3'"),
        (["--peer", "me", "--size", "64"], "peer: expected one of bitsandbytes, "),
        (["--part", "all"], "part: expected one of kernels, overhead, compile, found 'all'"),
        (["--seconds", "0"], "seconds: expected more than 0, found 0"),
        (["--kernel", "nf4"], "kernel: expected FORMAT=MODULE:FUNCTION, found 'nf4'"),
        (["--docs", "none.json"], "results: expected a JSON file, found FileNotFoundError"),
        (
            ["--docs", str(RESULTS / "h200.json"), "--output", "none.md"],
            "output: expected a page with the markers <!-- measured",
        ),
        (
            ["--show", str(RESULTS / "h200-sweep-fp16.json")],
            "results: expected those of python -m benchmarks, found a sweep in",
        ),
    ],
)
def test_wrong_use_is_one_sentence_and_status_2(arguments, sentence, capsys):
    assert main(arguments, machine()) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_without_a_gpu(capsys):
    assert main(["--quick"]) == 2
    assert capsys.readouterr().err.startswith("error: device: expected a CUDA GPU to measure on, found none")
    assert main(["--list", "--quick"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"{len(VARIANTS)} cases"


# --- bytes ------------------------------------------------------------------------------

# 256 rows, 128 columns, float16 output: 65536 bytes of output. The rest by hand.
STORED = {
    "nf4/plain": (64, 256 * 128 // 2 + 512 * 4 + 16 * 4),
    "nf4/nested": (64, 256 * 128 // 2 + 512 + 256 * 4 + 2 * 4 + 4 + 16 * 4),
    "fp4/plain": (128, 256 * 128 // 2 + 256 * 4 + 16 * 4),
    "fp4/nested": (4096, 256 * 128 // 2 + 8 + 256 * 4 + 4 + 4 + 16 * 4),
    "blockwise8/plain": (256, 256 * 128 + 128 * 4 + 256 * 4),
    "llm_int8/rows": (0, 256 * 128 + 256 * 4),
    "gptq/4bit": (128, 32 * 128 * 4 + 2 * 16 * 4 + 2 * 128 * 2),
    "gptq/4bit-act-order": (128, 32 * 128 * 4 + 2 * 16 * 4 + 2 * 128 * 2 + 256 * 4),
    "gptq/2bit": (128, 16 * 128 * 4 + 2 * 8 * 4 + 2 * 128 * 2),
    "gptq/3bit": (128, 24 * 128 * 4 + 2 * 12 * 4 + 2 * 128 * 2),
    "gptq/8bit": (-1, 64 * 128 * 4 + 32 * 4 + 128 * 2),
    "awq_cols/4bit": (128, 256 * 16 * 4 + 2 * 16 * 4 + 2 * 128 * 2),
    # Two groups of 64 in a row of 128: one word of zeros and two scales; six more scales are padding.
    "awq_rows/4bit": (64, 256 * 16 * 4 + 256 * 4 + 256 * 2 * 2),
    "awq_quads/4bit": (64, 64 * 128 * 2 + 2 * 2 * 256 * 2),
    "squeezellm/4bit": (0, 32 * 128 * 4 + 128 * 16 * 4),
    "squeezellm/3bit": (0, 24 * 128 * 4 + 128 * 8 * 4),
    "int8_affine/row": (0, 256 * 128 + 256 * 2),
    "int8_affine/column": (0, 256 * 128 + 128 * 2),
    "int8_affine/group": (32, 256 * 128 + 256 * 4 * 2 + 256 * 4),
    "int8_affine/tensor": (0, 256 * 128 + 2),
}


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.label)
@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
def test_bytes_that_must_move(variant, dtype):
    group, stored = STORED[variant.label]
    weight = weights.make(BenchCase(variant.format, variant.name, dtype, 256, 128, group), CPU)
    output = 256 * 128 * (2 if dtype == "fp16" else 4)
    assert weights.traffic(weight, TORCH[dtype]) == stored + output


def test_a_copy_is_of_the_same_bytes_in_enough_copies():
    assert copies_for(600 * 2**20, 60 * 2**20) == 2
    assert copies_for(5 * 2**20, 60 * 2**20) == 48
    calls = copy_calls(1000, 3, CPU)
    for call in calls:
        target, source = call.func.__self__, call.args[0]
        assert target.numel() * target.element_size() == source.numel() == 500
        call()
        assert torch.equal(target, source)
    assert len({call.args[0].data_ptr() for call in calls}) == 3


def test_the_figure_is_the_median():
    found = sample(ToldTimer([2.0]), [lambda: None])
    assert (found.seconds, found.passes) == (2.0, 11)
    assert (found.low, found.high) == (2.0 * 0.96, 2.0 * 1.04)


def test_the_clock_of_a_gpu_times_whole_passes_after_the_queue_is_full(monkeypatch):
    made: list[str] = []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            made.append("event")
            self.at = len(made)

        def elapsed_time(self, other):
            return float(other.at - self.at)  # ms: one for each call between, and the event itself

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: made.append("wait"))
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: made.append("sleep"), raising=False)
    times = CudaTimer(CPU).passes([lambda: made.append("a"), lambda: made.append("b")])
    assert MIN_PASSES <= len(times) <= MAX_PASSES
    assert set(times) == {3 / 1e3 / 2}
    queue = made[made.index("sleep") :]
    assert queue == ["sleep", "event", *["a", "b", "event"] * len(times), "wait"]
    assert made[: made.index("sleep")] == ["a", "b", "wait", "a", "b", "wait"]


# --- time -------------------------------------------------------------------------------


def test_budget():
    now = [100.0]
    budget = Budget(10, lambda: now[0])
    assert (budget.left, budget.over) == (10, False)
    now[0] = 104
    part = budget.part(3)
    assert part.seconds == 2
    now[0] = 106
    assert part.over
    assert not budget.over
    now[0] = 111
    assert (budget.left, budget.spent, budget.over) == (0, 11, True)
    assert not Budget(None, lambda: now[0]).over
    assert Budget(None, lambda: now[0]).part(4).seconds is None
