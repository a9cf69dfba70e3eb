"""Wrong kernels get the verdict that says what is wrong with them; right ones are not accused."""

from __future__ import annotations

import re

import pytest
import torch

from conformance.execute import execute
from conformance.materialize import materialize
from conformance.registry import parse_case
from kernels import fp4, nf4
from tests import planted
from tests.harness_runs import CPU, FORMATS, NO_ORACLE, first_failure, harness, judge
from tests.harness_runs import planted as as_kernel

BLOCKWISE = ("nf4", "fp4", "blockwise8")
EVERY = (*BLOCKWISE, "llm_int8")


def names(verdict) -> list[str]:
    return [cause.name for cause in verdict.causes]


# --- right kernels ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("kernel", [planted.right, planted.right_without_out])
def test_right_kernel_is_not_accused(name, kernel):
    assert first_failure(harness(kernel), name, 60) is None


@pytest.mark.parametrize("name", EVERY)
def test_right_kernel_is_not_accused_by_upstream(name):
    from conformance.known_faults import load

    assert first_failure(harness(planted.right, oracles=None, known=load()), name, 40) is None


@pytest.mark.interpreter
@pytest.mark.parametrize("name", EVERY)
def test_builtin_kernel_is_not_accused(name):
    assert first_failure(harness(), name, 12, out="fp16") is None


# --- values -----------------------------------------------------------------------------------

WRONG_VALUES = [
    ("nibble-swap", {"swap": True}, "nf4:shape=5x40"),
    ("nibble-swap", {"swap": True}, "fp4:shape=1x7"),
    ("tail-block-absmax-previous", {"tail_scale": lambda s: s[-2:][0]}, "nf4:shape=3x65"),
    ("tail-block-absmax-zero", {"tail_scale": lambda s: 0.0}, "blockwise8:shape=3x257,blocksize=64"),
    ("tail-block-absmax-one", {"tail_scale": lambda s: 1.0}, "fp4:shape=1x65"),
    ("block-index-plus-one", {"shift": 1}, "nf4:shape=1x300,blocksize=32"),
    ("block-index-minus-one", {"shift": -1}, "blockwise8:shape=1x300,blocksize=64"),
    ("nested-absmax-skipped", {"nested": "skipped"}, "nf4:shape=4x64,absmax=nested"),
    ("nested-offset-skipped", {"nested": "no offset"}, "fp4:shape=4x64,absmax=nested"),
    ("nested-offset-skipped", {"nested": "no offset"}, "blockwise8:shape=4x64,absmax=nested"),
    ("codebook: bitsandbytes fp4", {"codebook": fp4.codebook()}, "nf4:shape=4x64,out=fp32"),
    ("codebook: bitsandbytes nf4", {"codebook": nf4.codebook()}, "fp4:shape=4x64,out=fp32"),
    (
        "codebook: nf4 rounded to 4 digits (torchao)",
        {"codebook": planted.digits(nf4.codebook(), 4)},
        "nf4:shape=4x64,out=fp32",
    ),
    (
        "codebook: bitsandbytes nf4",  # the weight brings a table, the kernel has its own
        {"codebook": nf4.codebook()},
        "nf4:shape=4x64,codebook=rounded4,out=fp32",
    ),
]


@pytest.mark.parametrize(
    ("cause", "fault", "case"), WRONG_VALUES, ids=[f"{c}-{i[:4]}" for c, _, i in WRONG_VALUES]
)
def test_wrong_values_are_a_mismatch_with_its_cause(cause, fault, case):
    verdict = judge(planted.wrong(**fault), case).verdict
    assert verdict.kind == "MISMATCH"
    assert names(verdict) == [cause]
    assert 1 <= len(verdict.located) <= 4


def test_one_literal_14_ulp_off():
    """No known table: the report says how far, and that the cause is unknown."""
    kernel = planted.wrong(codebook=planted.table_with(1, 14))
    verdict = judge(kernel, "nf4:shape=4x64,words=ramp,scales=one,out=fp32").verdict
    assert verdict.kind == "MISMATCH"
    assert "would need 14 ULP" in verdict.summary
    assert "24 of 256 elements" in verdict.summary
    assert names(verdict) == ["unknown"]
    assert all("code 1," in located.where for located in verdict.located)


def test_one_literal_is_found_by_the_suite():
    kernel = planted.wrong(codebook=planted.table_with(11, 14))
    failure = first_failure(harness(kernel), "nf4", out="fp32")
    assert failure is not None
    assert failure.checked.verdict.kind == "MISMATCH"


def test_one_literal_with_five_digits():
    """A single entry of a known table: that entry alone."""
    table = nf4.codebook()
    table[1] = planted.digits(table, 5)[1]
    verdict = judge(planted.wrong(codebook=table), "nf4:shape=4x64,words=ramp,out=fp32").verdict
    assert names(verdict) == ["lut-literal-1"]
    assert "reproduces the whole output" in verdict.causes[0].text


def test_one_literal_with_six_digits():
    """A single entry of a known table: that table, and that it applies in part."""
    table = nf4.codebook()
    table[1] = planted.digits(table, 6)[1]
    verdict = judge(planted.wrong(codebook=table), "nf4:shape=4x64,words=ramp,out=fp32").verdict
    assert names(verdict) == ["codebook: nf4 rounded to 6 digits", "unknown"]
    assert "in a part only" in verdict.causes[0].text


@pytest.mark.parametrize("name", EVERY)
def test_bf16_truncation(name):
    verdict = judge(planted.bf16_truncated, f"{name}:shape=5x40,out=bf16").verdict
    assert (verdict.kind, names(verdict)) == ("MISMATCH", ["bf16-truncate"])
    assert judge(planted.bf16_truncated, f"{name}:shape=5x40,out=fp32").verdict.kind == "EXACT"


@pytest.mark.parametrize("name", EVERY)
def test_nan_instead_of_infinity(name):
    verdict = judge(planted.nan_instead_of_inf, f"{name}:shape=5x40,scales=over(1)").verdict
    assert verdict.kind == "NONFINITE_CLASS"
    assert re.search(r"NaN instead of -?infinity", verdict.summary)


def test_sign_of_zero_counts():
    verdict = judge(planted.positive_zero, "nf4:shape=5x40,scales=zero").verdict
    assert verdict.kind == "MISMATCH"
    assert "would need 0 ULP" in verdict.summary


@pytest.mark.parametrize("name", EVERY)
def test_input_strides_ignored(name):
    kernel = planted.input_strides_ignored
    assert judge(kernel, f"{name}:shape=5x40").verdict.kind == "EXACT"
    assert judge(kernel, f"{name}:shape=5x40,layout=strided").verdict.kind in ("MISMATCH", "NONFINITE_CLASS")


# --- writes -----------------------------------------------------------------------------------

WRITES = [
    (planted.half_unwritten, "shape=5x40", "UNWRITTEN", "100 of 200 elements were never written"),
    (planted.half_unwritten, "shape=5x40,dest=new", "UNWRITTEN", "100 of 200"),
    (planted.half_unwritten, "shape=5x40,dest=strided", "UNWRITTEN", "100 of 200"),
    (planted.past_the_end, "shape=5x41", "OOB_WRITE", "1 bytes past the end of out"),
    (planted.past_the_end, "shape=5x40,dest=strided", "OOB_WRITE", "out"),
    (planted.before_the_start, "shape=5x40", "OOB_WRITE", "before out"),
    (planted.output_strides_ignored, "shape=5x40,dest=strided", "OOB_WRITE", "between its elements"),
    (planted.column_mask_missing, "shape=3x33", "OOB_WRITE", "past the end of out"),
    (planted.input_overwritten, "shape=5x40", "INPUT_MUTATED", "absmax"),
    (planted.input_overwritten, "shape=5x40,layout=strided", "INPUT_MUTATED", "absmax"),
    (planted.differs_from_run_to_run(), "shape=5x40", "NONDETERMINISTIC", "1 of 200 elements differ"),
]


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize(("kernel", "fields", "kind", "words"), WRITES)
def test_wrong_writes(name, kernel, fields, kind, words):
    verdict = judge(kernel, f"{name}:{fields}").verdict
    assert verdict.kind == kind
    assert words in verdict.summary


@pytest.mark.parametrize("name", BLOCKWISE)
def test_last_partial_block_left_out(name):
    failure = first_failure(harness(planted.tail_left_out), name)
    assert failure is not None
    verdict = failure.checked.verdict
    assert verdict.kind == "UNWRITTEN"
    assert "1 of 1 elements were never written" in verdict.summary


def test_missing_mask_is_found_by_the_suite():
    failure = first_failure(harness(planted.column_mask_missing), "nf4")
    assert failure is not None
    assert failure.checked.verdict.kind == "OOB_WRITE"


def test_write_into_an_input_of_a_shared_table():
    """The codebook is an input like any other."""

    def kernel(weight, *, dtype, out=None):
        result = planted.right(weight, dtype=dtype, out=out)
        weight.codebook[3] = 0.5
        return result

    verdict = judge(kernel, "nf4:shape=5x40").verdict
    assert verdict.kind == "INPUT_MUTATED"
    assert "codebook" in verdict.summary
    assert "first in element 3" in verdict.summary


# --- no result, or another one ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kernel", "kind", "words"),
    [
        (planted.other_dtype, "MISMATCH", "expected dtype float16, found float64"),
        (planted.other_shape, "MISMATCH", "expected shape [5, 40], found [200, 1]"),
        (planted.another_tensor, "MISMATCH", "expected the given out to be returned, found another tensor"),
        (planted.no_tensor, "MISMATCH", "expected a tensor, found NoneType"),
        (planted.raises, "CRASH_LAUNCH", "RuntimeError: no such kernel image"),
        (planted.unsupported, "UNSUPPORTED", "not written yet"),
        (planted.unsupported_bf16, "EXACT", "kernel = spec"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
@pytest.mark.parametrize("name", EVERY)
def test_no_result(name, kernel, kind, words):
    verdict = judge(kernel, f"{name}:shape=5x40").verdict
    assert verdict.kind == kind
    assert words in verdict.summary


def test_compile_error_on_the_interpreter_or_device():
    """The interpreter compiles nothing: there the same error is one of the launch."""
    verdict = judge(planted.does_not_compile, "nf4:shape=5x40").verdict
    assert verdict.kind in ("CRASH_COMPILE", "CRASH_LAUNCH")
    assert "a tile of 7" in verdict.summary


def test_compile_error_is_told_from_a_launch_error():
    class CompilationError(Exception):
        """As Triton's, by name: importing Triton's compiler is not for every version alike."""

    def kernel(weight, *, dtype):
        try:
            raise CompilationError("at 7:11: unexpected type")
        except CompilationError as error:
            raise RuntimeError("kernel failed") from error

    verdict = judge(kernel, "nf4:shape=5x40").verdict
    assert verdict.kind == "CRASH_COMPILE"
    assert "at 7:11: unexpected type" in verdict.summary


@pytest.mark.parametrize("fields", ["shape=0x64", "shape=3x0"])
@pytest.mark.parametrize("name", EVERY)
def test_nothing_to_compare_is_vacuous(name, fields):
    verdict = judge(planted.right, f"{name}:{fields}").verdict
    assert (verdict.kind, verdict.failed) == ("VACUOUS", True)


def test_bf16_is_unjudged_where_the_interpreter_cannot():
    from conformance.interpreter import Report

    report = Report(unjudged=(("bf16", "rounds wrongly"),))
    run = harness(planted.bf16_truncated, interpreter=report)
    verdict = run.judge(parse_case("nf4:shape=5x40,out=bf16")).verdict
    assert (verdict.kind, verdict.summary, verdict.failed) == ("UNJUDGED", "rounds wrongly", False)
    assert run.judge(parse_case("nf4:shape=5x40")).verdict.kind == "EXACT"


@pytest.mark.parametrize(
    ("kind", "gates"),
    [("WITHIN", ("coarse", "element")), ("MISMATCH", ("exact",))],
)
def test_looser_gates_pass_what_they_are_for(kind, gates):
    kernel = planted.wrong(codebook=planted.digits(nf4.codebook(), 4))
    for gate in gates:
        verdict = judge(kernel, "nf4:shape=4x64,out=fp32", gate=gate).verdict
        assert verdict.kind == kind
        if kind == "WITHIN":
            assert f"{gate} gate that was asked for" in verdict.summary
            assert "ulp" in verdict.label


@pytest.mark.parametrize("gate", ["coarse", "element", "exact"])
def test_no_gate_passes_a_wrong_write(gate):
    verdict = judge(planted.past_the_end, "nf4:shape=5x40", gate=gate).verdict
    assert verdict.kind == "OOB_WRITE"


def test_execution_leaves_the_given_weight_alone():
    weight, _ = materialize(FORMATS["nf4"], parse_case("nf4:shape=5x40"))
    before = weight.absmax.clone()
    execute(as_kernel(planted.input_overwritten), weight, torch.float16, CPU.device)
    assert torch.equal(weight.absmax, before)


def test_no_oracle_means_a_note_for_each():
    notes = judge(planted.right, "nf4:shape=5x40", oracles=NO_ORACLE).verdict.notes
    assert notes == tuple(f"{o.name}: missing: not asked for" for o in FORMATS["nf4"].oracles)
