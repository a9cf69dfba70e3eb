"""Fused kernels are judged by the weight that their products reveal, and by their products."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest

from conformance.errors import UsageError
from conformance.fused import MANY, SAMPLED, Probe, fused_kernel, sampled
from conformance.fused_activations import tokens_of
from conformance.fused_view import settle, view
from conformance.harness import Checked, Harness
from conformance.investigate import investigate
from conformance.products import Products
from conformance.registry import FUSED, Kernel, parse_case
from conformance.replay import replay
from conformance.report import report
from conformance.setup import parse_kernels
from tests import fused_kernels as planted
from tests.harness_runs import CPU, FORMATS, NO_ORACLE, drawn, first_failure, pytest_run

WEIGHTS = [name for name, fmt in FORMATS.items() if fmt.inner is not None]
CASES = {
    "nf4": "nf4:shape=5x70,scales=negative(1)",
    "fp4": "fp4:shape=5x70,scales=negative(1)",
    "blockwise8": "blockwise8:shape=5x70,blocksize=64,scales=negative(1)",
    "llm_int8": "llm_int8:shape=5x70,scales=negative(1)",
    "int8_affine": "int8_affine:shape=5x70,scales=negative(1)",
    "gptq": "gptq:K=70,N=9,g=16,scales=negative(1)",
    "awq_cols": "awq_cols:K=70,N=16,g=35,scales=negative(1)",
    "awq_rows": "awq_rows:K=80,N=5,g=16,scales=negative(1)",
    "awq_quads": "awq_quads:K=128,N=8,g=32,scales=negative(1)",
    "squeezellm": "squeezellm:K=72,N=9",
}


def harness(name: str, gemm: planted.Gemm, **more: object) -> Harness:
    """A harness whose kernel of one format is a fused one."""
    probe = Probe(FORMATS[name], gemm)
    kernel = Kernel(f"{FUSED}planted", probe, False, False, view, lambda: probe.remarks)
    return Harness(CPU, FORMATS, {name: kernel}, oracles=NO_ORACLE, **more)


def judge(name: str, gemm: planted.Gemm, case: str) -> Checked:
    run = harness(name, gemm)
    return investigate(run, run.judge(parse_case(case)), run.kernels[name])


def names(checked: Checked) -> list[str]:
    return [cause.name for cause in checked.verdict.causes]


# --- right ones ---------------------------------------------------------------------------------


def test_every_format_of_weights_has_a_case_here():
    assert set(CASES) == set(WEIGHTS)


@pytest.mark.parametrize("out", ["fp16", "bf16", "fp32"])
@pytest.mark.parametrize("name", WEIGHTS)
def test_a_right_kernel_passes(name, out):
    run, case = harness(name, planted.right(name)), parse_case(CASES[name]).replace(out=out)
    assert run.judge(case).verdict.kind in ("EXACT", "WITHIN")
    assert Products(run).judge(case).verdict.kind in ("EXACT", "WITHIN")


@pytest.mark.parametrize("name", WEIGHTS)
def test_a_right_kernel_is_not_accused_on_drawn_cases(name):
    run = harness(name, planted.right(name))
    assert first_failure(run, name, 20) is None
    kinds = [Products(run).judge(case).verdict.kind for case in drawn(name, 20)]
    assert set(kinds) <= {"EXACT", "WITHIN", "UNSUPPORTED"}
    assert {"EXACT", "WITHIN"} & set(kinds)


def test_the_sign_of_a_zero_is_the_one_relaxation():
    verdict = judge("nf4", planted.nf4, "nf4:shape=4x64,words=ramp,scales=negative(1)").verdict
    assert verdict.label == "WITHIN(0 ulp)"
    assert "+0 + -0 = +0" in verdict.summary
    assert judge("nf4", planted.nf4, "nf4:shape=4x64,words=ones").verdict.kind == "EXACT"


@pytest.mark.parametrize("scales", ["inf(1)", "nan(1)"])
def test_weights_that_are_not_finite_are_unsupported(scales):
    verdict = judge("nf4", planted.nf4, f"nf4:shape=3x65,scales={scales}").verdict
    assert verdict.kind == "UNSUPPORTED"
    assert "0 * inf = NaN" in verdict.summary


def test_a_weight_of_three_dimensions_is_unsupported():
    verdict = judge("nf4", planted.nf4, "nf4:shape=2x3x64").verdict
    assert (verdict.kind, "2 dimensions" in verdict.summary) == ("UNSUPPORTED", True)


# --- faults, named by the catalogue --------------------------------------------------------------

NAMED = [
    ("gptq", "zero", planted.zeros_plus_one, "gptq:K=70,N=16,g=16,zeros=v2,zp=below(1)"),
    ("awq_cols", "zero", planted.zeros_plus_one, "awq_cols:K=70,N=16,g=35"),
    ("gptq", "group", planted.next_group, "gptq:K=70,N=16,g=16"),
    ("awq_rows", "group", planted.next_group, "awq_rows:K=80,N=8,g=16"),
    ("nf4", "nibble-swap", planted.nibbles_swapped, "nf4:shape=5x70"),
    ("fp4", "nibble-swap", planted.nibbles_swapped, "fp4:shape=5x70"),
]


@pytest.mark.parametrize(("name", "word", "distort", "case"), NAMED)
def test_a_wrong_weight_is_named(name, word, distort, case):
    checked = judge(name, planted.distorted(name, distort), case)
    assert checked.verdict.kind == "MISMATCH"
    assert word in names(checked)[0]
    assert "reproduces the whole output" in checked.verdict.causes[0].text
    assert re.search(
        rf"M = 1 path wrong \(32 of \d+ rows probed\), M = {MANY} path wrong", checked.verdict.summary
    )


@pytest.mark.parametrize(("name", "word", "distort", "case"), NAMED)
def test_a_wrong_weight_is_named_by_its_products(name, word, distort, case):
    checked = Products(harness(name, planted.distorted(name, distort))).judge(parse_case(case))
    assert checked.verdict.kind == "MISMATCH"
    assert any(word in cause for cause in names(checked))


@pytest.mark.parametrize(
    ("when", "words"),
    [
        (lambda tokens: tokens == 1, f"M = 1 path wrong, M = {MANY} path right"),
        (lambda tokens: tokens > 32, f"M = 1 path right, M = {MANY} path wrong"),
    ],
    ids=["one", "many"],
)
def test_the_wrong_path_is_named(when, words):
    gemm = planted.distorted("nf4", planted.nibbles_swapped, when)
    checked = judge("nf4", gemm, "nf4:shape=9x30")
    assert words in checked.verdict.summary
    assert words in " ".join(report(checked.verdict).split())
    assert names(checked)[0] == "nibble-swap"
    product = Products(harness("nf4", gemm)).judge(parse_case("nf4:shape=9x30")).verdict
    assert product.kind == "MISMATCH"
    wrong = ", ".join(str(tokens) for tokens in tokens_of("nf4:shape=9x30") if when(tokens))
    assert f"all with M = {wrong}" in product.summary


def test_all_rows_are_probed_once_one_is_wrong():
    """A sample is enough to see it, and the cause is shown on the whole weight."""
    gemm = planted.distorted("nf4", planted.nibbles_swapped, lambda tokens: tokens == 1)
    checked = judge("nf4", gemm, "nf4:shape=3x300")
    assert names(checked)[0] == "nibble-swap"
    assert "reproduces the whole output" in checked.verdict.causes[0].text


def test_a_sample_is_told():
    gemm = planted.distorted("nf4", planted.nibbles_swapped, lambda tokens: tokens > 1)
    summary = judge("nf4", gemm, "nf4:shape=3x300").verdict.summary
    assert f"M = 1 path right ({SAMPLED} of 300 rows probed)" in summary


def test_the_second_tile_of_tokens():
    def gemm(x, weight):
        y = planted.nf4(x, weight)
        y[32:] *= 2
        return y

    assert "path wrong (from token 32 of x on)" in judge("nf4", gemm, "nf4:shape=4x64").verdict.summary


@pytest.mark.parametrize("name", ["nf4", "gptq"])
def test_a_transposed_square_weight_is_named(name):
    case = "nf4:shape=40x40" if name == "nf4" else "gptq:K=40,N=40,g=8"
    checked = judge(name, planted.transposed(name), case)
    assert names(checked)[0] == "product-transposed"


@pytest.mark.parametrize(("name", "case"), [("nf4", "nf4:shape=5x70"), ("gptq", "gptq:K=70,N=8,g=16")])
def test_a_dropped_tail_is_named(name, case):
    checked = judge(name, planted.tail_dropped(name, 32), case)
    assert "k-tail-dropped-32" in names(checked)
    assert "k-tail-dropped-128" not in names(checked)


def test_a_bias_is_named():
    checked = judge("nf4", planted.biased("nf4"), "nf4:shape=5x70")
    assert checked.verdict.kind == "MISMATCH"
    assert names(checked) == ["bias-added"]
    assert "expected y = 0 for x = 0" in checked.verdict.summary


def test_a_bias_of_many_tokens_alone():
    def gemm(x, weight):
        return planted.nf4(x, weight) + (0.5 if len(x) > 1 else 0)

    checked = judge("nf4", gemm, "nf4:shape=5x70")
    assert names(checked) == ["bias-added"]
    assert f"M = 1 path right (32 of 70 rows probed), M = {MANY} path wrong" in checked.verdict.summary


# --- functions that break the contract -----------------------------------------------------------


@pytest.mark.parametrize(
    ("gemm", "kind", "words"),
    [
        (planted.one_dimension, "MISMATCH", "y of x float16 [1, 70]: expected shape [1, 5], found [5]"),
        (planted.float32_result, "MISMATCH", "expected dtype float16, found float64"),
        (
            planted.raises_for_many,
            "CRASH_LAUNCH",
            f"M = 1 path right (32 of 70 rows probed), M = {MANY} path",
        ),
        (planted.writes_x, "INPUT_MUTATED", "x"),
        (planted.writes_weight, "INPUT_MUTATED", "absmax"),
        (planted.shared_buffer, "MISMATCH", "expected a y of its own from each call"),
        (planted.reads_past_x, "MISMATCH", "expected y = 0 for x = 0 (M = 1), found nan"),
        (lambda x, weight: None, "MISMATCH", "expected a tensor, found NoneType"),
        (planted.nothing, "UNSUPPORTED", "not here"),
    ],
)
def test_a_breach_is_told(gemm, kind, words):
    verdict = judge("nf4", gemm, "nf4:shape=5x70").verdict
    assert verdict.kind == kind
    assert words in verdict.summary


@pytest.mark.parametrize(
    ("gemm", "kind"),
    [
        (planted.one_dimension, "MISMATCH"),
        (planted.raises_for_many, "CRASH_LAUNCH"),
        (planted.writes_x, "INPUT_MUTATED"),
        (planted.nothing, "UNSUPPORTED"),
    ],
)
def test_a_breach_is_told_of_products_too(gemm, kind):
    assert Products(harness("nf4", gemm)).judge(parse_case("nf4:shape=5x70")).verdict.kind == kind


def test_one_path_may_be_unsupported():
    verdict = judge("nf4", planted.one_token_only, "nf4:shape=5x70,words=ones").verdict
    assert verdict.kind == "EXACT"
    assert f"M = {MANY}: unsupported: one token only" in verdict.notes


# --- pieces ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 31, 32, 33, 70, 128, 8200])
def test_the_sample_has_the_ends_and_edges(count):
    rows = list(sampled(count))
    assert rows == sorted(set(rows))
    assert len(rows) == min(count, SAMPLED)
    if count > 64:
        assert {0, 31, 32, count - 1} <= set(rows)


def test_zeros_take_the_sign_of_the_spec():
    want = np.array([0x8000, 0, 0x3C00, 0x8000], np.uint16)
    got = np.array([0, 0x8000, 0x8000, 0x3C00], np.uint16)
    assert settle(got, want).tolist() == [0x8000, 0, 0, 0x3C00]
    assert settle(want, want) is want


def test_options_are_checked():
    with pytest.raises(UsageError, match="--fused: expected FORMAT=MODULE:FUNCTION, found 'nf4'"):
        parse_kernels(FORMATS, [], ["nf4"])
    with pytest.raises(UsageError, match="--fused: expected one kernel for nf4"):
        parse_kernels(FORMATS, ["nf4=tests.planted:right"], ["nf4=tests.fused_kernels:nf4"])
    no_weight = dataclasses.replace(FORMATS["nf4"], inner=None)
    with pytest.raises(UsageError, match="--fused: expected a format of weights"):
        fused_kernel(no_weight, "tests.fused_kernels:nf4")


@pytest.mark.interpreter
def test_a_run_from_the_command_line(tmp_path):
    """Only the products of the given format are collected; the failure's commands have the option."""
    kernel = "nf4=tests.fused_kernels:nf4_swapped"
    files = ("conformance/test_fused.py", "conformance/test_formats.py")
    options = ("--fused", kernel, "--max-examples", "25", "--results", str(tmp_path / "r"))
    done = pytest_run(*files, "-k", "nf4 and (words or products) and fp16", *options)
    assert "2 failed" in done.stdout
    assert "nibble-swap" in done.stdout
    assert "--fused nf4=tests.fused_kernels:nf4_swapped" in done.stdout
    assert "conformance fused: nf4 = tests.fused_kernels:nf4_swapped, y = x @ W.T" in done.stdout


@pytest.mark.interpreter
def test_products_are_no_tests_without_the_option(tmp_path):
    done = pytest_run("conformance/test_fused.py", "--collect-only", "-q", "--results", str(tmp_path / "r"))
    assert "2 deselected" in done.stdout


def test_a_bundle_replays(tmp_path):
    run = harness("nf4", planted.nf4_swapped)
    checked = run.judge(parse_case("nf4:shape=5x70"))
    path = run.write_bundle(tmp_path / "bundle", checked, None)
    assert path is not None
    assert replay(path, "cpu", f"{FUSED}tests.fused_kernels:nf4_swapped") == 1
    assert replay(path, "cpu", f"{FUSED}tests.fused_kernels:nf4") == 0


def test_tokens_that_are_never_written_are_no_bias():
    def gemm(x, weight):
        y = planted.nf4(x, weight)
        y[32:] = 3.0
        return y

    verdict = judge("nf4", gemm, "nf4:shape=4x64").verdict
    assert "path wrong (from token 32 of x on)" in verdict.summary
    assert "bias-added" not in [cause.name for cause in verdict.causes]
