"""A shrunk failure of a fused kernel is named by the failures that it was shrunk from as well, and the
interpreter is asked for few calls."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from conformance.earlier import hold_to, narrowed
from conformance.fused import BRIEF, LEAST, MANY, Probe, fused_kernel, sampled
from conformance.fused_activations import ALWAYS, FEW, TOKENS, tokens_of
from conformance.harness import Checked, Failure
from conformance.investigate import investigate
from conformance.products import Products
from conformance.profiles import FUSED_PART, FUSED_REAL, PROFILES
from conformance.registry import FUSED, Kernel, parse_case
from conformance.running import drawable, run_drawn
from conformance.setup import build
from conformance.strategies import cases, sample
from conformance.verdict import Cause, Verdict
from tests import fused_kernels as planted
from tests.harness_runs import CPU, FORMATS, records
from tests.test_fused import harness, judge, names

pytestmark = pytest.mark.usefixtures("nothing_remembered")


def shrunk(name: str, gemm: planted.Gemm, test: str, products: bool = False) -> Checked:
    """The failure that a drawn test of a fused kernel reports, looked into."""
    run = harness(name, gemm)
    kernel = run.kernels[name]
    drawn = cases(drawable(run, FORMATS[name]), out="fp16", route="words")
    with pytest.raises(Failure) as caught:
        run_drawn(Products(run) if products else run, test, drawn, kernel.name)  # type: ignore[arg-type]
    return investigate(run, caught.value.checked, kernel)


@pytest.mark.parametrize("depth", [16, 64])
@pytest.mark.parametrize("products", [False, True], ids=["one-hot", "products"])
def test_a_tail_that_is_skipped_is_no_codebook(depth, products):
    checked = shrunk("nf4", planted.tail_dropped("nf4", depth), f"tail-{depth}-{products}", products)
    assert checked.verdict.case["shape"] in ((1, 1), (1, 65))
    assert names(checked)[0] == f"k-tail-dropped-{depth}"
    assert not any(name.startswith("codebook") for name in names(checked))
    assert "holds on nf4:" in checked.verdict.apart


def test_where_one_element_is_all_the_tail_comes_first():
    """No earlier failure, and no kernel to ask."""
    checked = harness("nf4", planted.tail_dropped("nf4", 16)).judge(parse_case("nf4:shape=1x1,words=zeros"))
    assert names(checked)[0] == "k-tail-dropped-16"


def test_a_wrong_table_is_still_one():
    table = FORMATS["fp4"].unpack(FORMATS["fp4"].words(parse_case("fp4:"))).codebook

    def fp4(model):
        return replace(model, codebook=table)

    checked = shrunk("nf4", planted.distorted("nf4", fp4), "table")
    assert names(checked)[0].startswith("codebook")


# --- earlier failures ---------------------------------------------------------------------------


def test_an_earlier_failure_that_no_candidate_fits_is_passed_over():
    run = harness("nf4", planted.nf4_swapped)
    other = harness("nf4", planted.tail_dropped("nf4", 16)).judge(parse_case("nf4:shape=3x40"))
    checked = replace(run.judge(parse_case("nf4:shape=1x64,words=ramp")), earlier=(other,))
    assert names(investigate(run, checked, run.kernels["nf4"]))[0] == "nibble-swap"
    assert hold_to(FORMATS["nf4"], (), (other,)).words == ""


def test_products_keep_the_causes_that_earlier_ones_have_too():
    case = parse_case("nf4:shape=1x1")
    a, b, c = (Cause(name, name) for name in "abc")

    def wrong(*causes: Cause) -> Verdict:
        return Verdict("MISMATCH", case, "k", "cpu", "wrong", causes=causes)

    found = narrowed(wrong(a, b, c), [wrong(b, c), wrong(Cause("unknown", "?")), wrong(c)])
    assert [cause.name for cause in found.causes] == ["c"]
    assert found.apart == "holds on nf4:shape=1x1, unlike b"
    assert narrowed(wrong(a), [wrong(b)]) == wrong(a)


# --- few calls ------------------------------------------------------------------------------------


class Counted:
    """A fused function that counts its calls by number of tokens."""

    def __init__(self, gemm: planted.Gemm) -> None:
        self.gemm = gemm
        self.calls: dict[int, int] = {}

    def __call__(self, x: torch.Tensor, weight: object) -> torch.Tensor:
        self.calls[len(x)] = self.calls.get(len(x), 0) + 1
        return self.gemm(x, weight)


def judged(gemm: planted.Gemm, case: str, brief: bool) -> tuple[Checked, dict[int, int]]:
    counted = Counted(gemm)
    run = harness("nf4", counted)
    run.kernels["nf4"].function.brief = brief
    return run.judge(parse_case(case)), counted.calls


def test_a_brief_probe_is_a_few_calls():
    for brief, ones, many in ((True, 2 + BRIEF + LEAST, 2 * 7), (False, 2 * 33, 2 * 7)):
        checked, calls = judged(planted.nf4, "nf4:shape=3x300,words=ones", brief)
        assert checked.verdict.kind == "EXACT"
        assert calls == {1: ones, MANY: many}
    assert judged(planted.nf4, "nf4:shape=1x8200,words=ones", True)[1][MANY] == 2 * LEAST


@pytest.mark.parametrize("when", [lambda tokens: tokens == 1, lambda tokens: tokens > 1, lambda tokens: True])
def test_a_brief_probe_explains_the_whole(when):
    gemm = planted.distorted("nf4", planted.nibbles_swapped, when)
    checked, _ = judged(gemm, "nf4:shape=3x300", True)
    assert names(checked)[0] == "nibble-swap"
    assert "reproduces the whole output" in checked.verdict.causes[0].text


def test_a_long_weight_is_explained_whole_too():
    checked, calls = judged(planted.nf4_swapped, "nf4:shape=1x2400", True)
    assert "reproduces the whole output" in checked.verdict.causes[0].text
    assert calls[MANY] == 2 * 52
    assert calls[1] == 2 * (1 + LEAST)


def test_a_second_call_that_answers_otherwise_is_seen_by_a_brief_probe():
    class Forgetful(Counted):
        def __call__(self, x, weight):
            y = super().__call__(x, weight)
            return y * 2 if self.calls.get(1, 0) > 1 + BRIEF and len(x) == 1 else y

    run = harness("nf4", Forgetful(planted.nf4))
    run.kernels["nf4"].function.brief = True
    assert run.judge(parse_case("nf4:shape=3x70,words=ones")).verdict.kind == "NONDETERMINISTIC"


def test_few_tokens_are_all_in_turn():
    every = {tokens_of(f"nf4:shape={n}x64", few=True) for n in range(1, 60)}
    assert all(set(ALWAYS) <= set(one) and len(one) <= len(ALWAYS) + FEW for one in every)
    assert set(TOKENS) < {count for one in every for count in one}
    assert tokens_of("a", few=True) == tokens_of("a", few=True)


def test_a_path_of_one_number_of_tokens_is_met_in_a_test_s_cases():
    for wrong in (2, 8, 16, 24, 64, 128):
        drawn = sample(FORMATS["nf4"], PROFILES["default"] // FUSED_PART, out="fp16")
        assert any(wrong in tokens_of(case.id, few=True) for case in drawn)


def test_the_interpreter_draws_fewer_and_shorter_weights():
    run = build(CPU, fused=["nf4=tests.fused_kernels:nf4"])
    assert run.kernels["nf4"].function.brief
    assert run.fused_cases == PROFILES["default"] // FUSED_PART
    drawn = sample(drawable(run, FORMATS["nf4"]), 200, out="fp16")
    assert {len(case["shape"]) for case in drawn} == {2}
    assert max(case["shape"][0] * case["shape"][1] for case in drawn) <= 3 * 4096
    assert drawable(run, FORMATS["fp4"]) is FORMATS["fp4"]


def test_so_many_cases_are_drawn(tmp_path):
    run = replace(build(CPU, fused=["nf4=tests.fused_kernels:nf4"], results=tmp_path), fused_cases=5)
    run_drawn(run, "five", cases(drawable(run, FORMATS["nf4"]), out="fp16", route="words"), f"{FUSED}x")
    assert len(records(tmp_path)) == 5


def test_the_interpreter_takes_a_part_of_the_real_layers_and_tile_edges_once(monkeypatch):
    from conformance import test_formats, test_real_weights

    shown = []
    for module in (test_real_weights, test_formats):
        monkeypatch.setattr(module, "run_each", lambda harness, name, cases: shown.append(len(list(cases))))
    request = SimpleNamespace(node=SimpleNamespace(name="test"))
    for options in ({}, {"fused": ["nf4=tests.fused_kernels:nf4"]}):
        run = build(CPU, **options)
        if run.model is None:
            pytest.skip("no real model here")
        test_real_weights.test_real_weights(run, FORMATS["nf4"], "fp16", request)
        test_formats.test_tiles(run, FORMATS["nf4"], "fp16", request)
    real, tiles, fused_real, fused_tiles = shown
    assert 0 < fused_real <= real / FUSED_REAL + 1
    assert fused_tiles == tiles / 2 == len(FORMATS["nf4"].tile_cases)


@pytest.mark.parametrize("count", [4, 5, 30, 200])
def test_the_least_sample_has_the_ends(count):
    rows = list(sampled(count, LEAST))
    assert len(rows) == LEAST
    assert {0, count - 1} <= set(rows)


def test_a_fused_kernel_is_not_called_a_third_time():
    counted = Counted(planted.nf4)
    run = harness("nf4", counted)
    run.judge(parse_case("nf4:shape=1x4,words=ones,dest=new"))
    assert counted.calls == {1: 2 * 5, MANY: 2}
    assert isinstance(fused_kernel(FORMATS["nf4"], "tests.fused_kernels:nf4"), Kernel)
    assert isinstance(run.kernels["nf4"].function, Probe)
    assert judge("nf4", planted.nf4, "nf4:shape=1x4,words=ones,dest=new").verdict.kind == "EXACT"
