"""The second look at a failure: pairs of faults, and inputs that tell causes apart."""

import dataclasses

import numpy as np
import pytest
import torch

from conformance.candidates import PAIR_WORK, pairs
from conformance.faults import Context, Fault
from conformance.investigate import investigate, look_into
from conformance.mutation.faulty import faulty_kernel
from conformance.registry import parse_case
from conformance.report import LINES, report
from kernels import Unsupported
from tests.harness_runs import FORMATS, first_failure, harness, planted, pytest_run
from tests.mutants import mutant
from tests.planted import right, wrong


def fault(fmt, name):
    return next(fault for fault in FORMATS[fmt].faults if fault.name == name)


def looked_into(kernel, case):
    """What becomes of the failure of ``kernel`` on one case."""
    run = harness(kernel)
    checked = run.judge(parse_case(case))
    assert checked.verdict.failed
    return investigate(run, checked, planted(kernel)).verdict


@pytest.mark.parametrize(
    ("made", "names"),
    [
        ({"swap": True, "shift": 1}, {"nibble-swap", "block-index-plus-one"}),
        (
            {"swap": True, "tail_scale": lambda absmax: absmax[-2]},
            {"nibble-swap", "tail-block-absmax-previous"},
        ),
        ({"swap": True, "nested": "no offset"}, {"nibble-swap", "nested-offset-skipped"}),
        ({"shift": -1, "nested": "skipped"}, {"block-index-minus-one", "nested-absmax-skipped"}),
    ],
)
def test_two_faults_at_once_are_both_named(made, names):
    verdict = looked_into(wrong(**made), "nf4:shape=3x1001,absmax=nested,out=fp32")
    assert set(verdict.causes[0].name.split(" + ")) == names
    assert "two faults at once" in verdict.causes[0].text
    assert "holds on" in verdict.apart


def test_an_output_rounding_on_top_of_another_fault():
    def kernel(weight, *, dtype, out=None):
        values = right(weight, dtype=torch.float32)
        shifted = wrong(shift=1)(weight, dtype=torch.float32)
        assert values.shape == shifted.shape
        bits = (shifted.view(torch.int32) >> 16).to(torch.int16).view(torch.bfloat16)
        return bits if out is None else out.copy_(bits)

    verdict = looked_into(kernel, "nf4:shape=3x1001,out=bf16")
    assert set(verdict.causes[0].name.split(" + ")) == {"block-index-plus-one", "bf16-truncate"}


@pytest.mark.parametrize("fmt", ["gptq", "awq_cols"])
@pytest.mark.parametrize("name", ["group-per-tile-64", "group-size-fixed-64", "first-group-everywhere"])
def test_a_second_input_leaves_one_of_several(fmt, name):
    run = harness(mutant(FORMATS[fmt], fault(fmt, name)))
    failure = first_failure(run, fmt, out="fp32")
    assert len(failure.checked.verdict.causes) > 2
    after = investigate(run, failure.checked, run.kernels[fmt]).verdict
    assert [cause.name for cause in after.causes] == [name]
    assert "holds on" in after.apart
    assert "unlike" in after.apart


def blocks_of(factor):
    """An absmax for ``factor`` times as many elements as it should be, which is in no catalogue above 2."""

    def decode(ctx):
        block = np.arange(ctx.model.block.size) // (factor * ctx.weight.blocksize)
        return ctx.bits(dataclasses.replace(ctx.model, block=block))

    return Fault("absmax-of-many", "", "", "", decode, kind="groups", trigger="")


@pytest.mark.parametrize(
    "case", ["shape=65", "shape=2x96", "shape=1x127,out=bf16", "shape=3x50,absmax=nested"]
)
def test_a_name_that_holds_on_few_blocks_alone_is_not_given(case):
    """Two or three blocks: also the block before, or the first one. In a larger weight it is neither."""
    verdict = looked_into(mutant(FORMATS["nf4"], blocks_of(3)), f"nf4:{case}")
    assert [cause.name for cause in verdict.causes] == ["unknown"], verdict
    assert "fits this case alone" in verdict.causes[0].text
    # What is in the catalogue is named by the same cases.
    verdict = looked_into(mutant(FORMATS["nf4"], fault("nf4", "absmax-index-by-byte")), f"nf4:{case}")
    assert [cause.name for cause in verdict.causes] == ["absmax-index-by-byte"], verdict


def test_an_earlier_failure_of_few_blocks_is_no_proof():
    run = harness(mutant(FORMATS["nf4"], blocks_of(3)))
    checked, earlier = (run.judge(parse_case(f"nf4:shape={shape}")) for shape in ("65", "3x50"))
    shrunk = dataclasses.replace(checked, earlier=(earlier,))
    verdict = investigate(run, shrunk, run.kernels["nf4"]).verdict
    assert [cause.name for cause in verdict.causes] == ["unknown"], verdict


def test_without_a_kernel_no_input_is_run():
    run = harness(mutant(FORMATS["gptq"], fault("gptq", "group-size-fixed-64")))
    failure = first_failure(run, "gptq", out="fp32")
    after = look_into(FORMATS["gptq"], failure.checked).verdict
    assert after.causes == failure.checked.verdict.causes
    assert after.apart == ""


def test_a_cause_that_fits_the_first_case_alone_is_not_named():
    swapped, shifted = wrong(swap=True), wrong(swap=True, shift=1, nested="skipped")

    def kernel(weight, *, dtype, out=None):
        values = swapped(weight, dtype=dtype)
        if weight.numel != 5:
            values = shifted(weight, dtype=dtype) * 3
        return values if out is None else out.copy_(values)

    verdict = looked_into(kernel, "nf4:shape=1x5,out=fp32")
    assert [cause.name for cause in verdict.causes] == ["unknown"]
    assert "fits this case alone: nibble-swap" in verdict.causes[0].text
    assert "does not hold on" in verdict.apart


def test_a_cause_that_an_input_of_its_kind_refutes_is_not_named():
    swapped = wrong(swap=True)

    def kernel(weight, *, dtype, out=None):
        values = (swapped if weight.numel == 5 else right)(weight, dtype=dtype)
        return values if out is None else out.copy_(values)

    verdict = looked_into(kernel, "nf4:shape=1x5,out=fp32")
    assert [cause.name for cause in verdict.causes] == ["unknown"]
    assert "fits this case alone: nibble-swap" in verdict.causes[0].text
    assert "the kernel is right on" in verdict.apart
    assert "where this would show" in verdict.apart


def test_what_no_fault_explains_stays_unknown():
    def kernel(weight, *, dtype, out=None):
        values = right(weight, dtype=dtype)
        values.reshape(-1)[::3] += 1
        return values if out is None else out.copy_(values)

    verdict = looked_into(kernel, "nf4:shape=3x100,out=fp32")
    assert [cause.name for cause in verdict.causes] == ["unknown"]


def test_pairs_are_not_tried_on_a_whole_layer_and_the_report_says_so():
    case = parse_case(f"nf4:shape=1x{PAIR_WORK // len(FORMATS['nf4'].faults) ** 2 + 1}")
    weight = FORMATS["nf4"].words(case)
    ctx = Context(weight, FORMATS["nf4"].unpack(weight), torch.float32)
    values = ctx.model.values().view("u4")
    assert pairs(values, values != values, ctx, FORMATS["nf4"].faults) is None

    def kernel(weight, *, dtype, out=None):
        values = right(weight, dtype=dtype) + 1
        return values if out is None else out.copy_(values)

    verdict = looked_into(kernel, f"{case.id},out=fp32")
    assert "pairs of faults were not tried" in verdict.causes[0].text


def test_verdicts_without_values_are_left_as_they_are():
    run = harness(right)
    checked = run.judge(parse_case("nf4:shape=3x65,out=fp32"))
    assert investigate(run, checked, planted(right)) is checked
    gone = dataclasses.replace(checked, weight=None)
    assert investigate(run, gone, planted(right)) is gone


def test_the_report_of_a_run_names_one_cause_and_stays_short(tmp_path):
    result = pytest_run(
        "conformance", "-k", "test_words and nf4-fp32", "--hypothesis-seed=1",
        "--results", str(tmp_path / "r"), "--kernel", "nf4=tests/planted.py:nibbles_swapped",
    )  # fmt: skip
    assert result.returncode == 1
    text = result.stdout.split("MISMATCH", 1)[1].split("\n__", 1)[0].split("\n====", 1)[0]
    assert "cause      nibble-swap" in text
    assert "told apart holds on nf4:" in " ".join(text.split())  # a long id is a line of its own
    assert len(text.strip().splitlines()) <= LINES
    assert "replay" in text


def test_the_report_has_room_for_the_commands():
    verdict = looked_into(wrong(swap=True), "nf4:shape=1x5,out=fp32")
    text = report(verdict, (("rerun", "a"), ("replay", "b")))
    assert "told apart" in text
    assert text.splitlines()[-1].startswith("replay")


def test_a_fault_that_does_not_apply_to_the_second_input_is_not_refuted_by_it():
    """The table of bitsandbytes is the weight's own in most cases: there this kernel is right."""
    run = harness(mutant(FORMATS["nf4"], fault("nf4", "codebook: bitsandbytes nf4")))
    checked = run.judge(parse_case("nf4:shape=1x192,codebook=rounded4,words=ramp,scales=huge(21)"))
    after = investigate(run, checked, run.kernels["nf4"]).verdict
    assert "codebook: bitsandbytes nf4" in [cause.name for cause in after.causes]


def test_a_kernel_that_hangs_on_a_further_input_does_not_take_the_report(monkeypatch):
    import time

    from conformance import investigate as module

    monkeypatch.setattr(module, "SECONDS", 0.5)
    swapped = wrong(swap=True)

    def kernel(weight, *, dtype, out=None):
        if weight.numel != 5:
            time.sleep(60)
        values = swapped(weight, dtype=dtype)
        return values if out is None else out.copy_(values)

    started = time.monotonic()
    verdict = looked_into(kernel, "nf4:shape=1x5,out=fp32")
    assert time.monotonic() - started < 30
    assert "nibble-swap" in [cause.name for cause in verdict.causes]
    assert "not tried to the end" in verdict.apart


def test_a_partial_fit_that_shows_nowhere_else_is_no_cause():
    def kernel(weight, *, dtype, out=None):
        values = right(weight, dtype=dtype)
        if weight.numel == 64 and dtype is torch.float32:
            values.reshape(-1)[-1] = swapped_last
        return values if out is None else out.copy_(values)

    case = "nf4:shape=1x64,out=fp32"
    run = harness(right)
    weight = FORMATS["nf4"].words(parse_case(case))
    swapped_last = wrong(swap=True)(weight, dtype=torch.float32).reshape(-1)[-1]
    verdict = looked_into(kernel, case)
    assert run.judge(parse_case(case)).verdict.kind == "EXACT"
    assert verdict.causes[0].name == "unknown"
    assert "fits this case alone" in verdict.causes[0].text


def test_two_faults_of_which_the_shrunk_case_shows_one():
    swapped_fp16 = wrong(swap=True)

    def kernel(weight, *, dtype, out=None):
        if weight.nested is not None:
            raise Unsupported("plain absmax only")
        narrow = dataclasses.replace(weight, absmax=weight.absmax.half().float())
        values = swapped_fp16(narrow, dtype=dtype)
        return values if out is None else out.copy_(values)

    verdict = looked_into(kernel, "nf4:shape=1,words=ramp,scales=one,out=fp32")
    assert set(verdict.causes[0].name.split(" + ")) == {"nibble-swap", "scale-through-fp16"}
    assert "where no single fault does" in verdict.apart


@pytest.mark.parametrize(
    ("case", "name"),
    [
        (
            "nf4:shape=1x192,storage=int32,codebook=rounded4,words=ramp,scales=huge(21)",
            "codebook: bitsandbytes nf4",
        ),
        (
            "gemm_fp8:order=product,M=3,K=129,N=129,wper=block,scales=ties(10),a=ramp,b=whole(74),out=fp32",
            "w-block-of-first",
        ),
    ],
)
def test_a_fault_holds_where_it_does_not_apply_and_the_kernel_is_right(case, name):
    """Another cause fits the failing case too, and would show on the input where this one leaves no trace."""
    fmt = parse_case(case).format
    kernel = faulty_kernel(FORMATS[fmt], fault(fmt, name))
    run = harness(kernel.function, fmt=FORMATS[fmt])
    checked = run.judge(parse_case(case), kernel)
    assert len(checked.verdict.causes) > 1
    assert [cause.name for cause in investigate(run, checked, kernel).verdict.causes] == [name]
