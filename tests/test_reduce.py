"""``python -m conformance reduce``: the least that still fails, what is needed of it, and its bundles."""

from __future__ import annotations

import errno
import json
import math
import os
import time
from pathlib import Path

import pytest
import torch

from conformance import bundle
from conformance.cli import main
from conformance.errors import UsageError
from conformance.patterns import Pattern
from conformance.reduce.ddmin import ddmin
from conformance.reduce.result import LINES, Result, reduce, text, to_json
from conformance.reduce.tensors import data_tensors
from conformance.reduce.trial import Trial
from conformance.registry import parse_case
from kernels._packed import map_tensors, named_tensors
from tests import faulty, planted
from tests.harness_runs import FORMATS, harness


def reduced(kernel, case: str, seconds: float = 60, weight=None, **options) -> Result:
    run, start = harness(kernel, **options), parse_case(case)
    return reduce(Trial(run, run.kernels[start.format], time.monotonic() + seconds), start, weight)


def kept(result: Result) -> dict[str, tuple[str, ...]]:
    return {item.name: item.kept for item in result.kept if item.constant is not None}


def changed(a, b) -> list[str]:
    """Elements, by tensor, in which two weights differ."""
    one, other = dict(named_tensors(a)), dict(named_tensors(b))
    return [
        f"{name}[{i}]"
        for name, tensor in one.items()
        for i in range(tensor.numel())
        if not torch.equal(tensor.reshape(-1)[i], other[name].reshape(-1)[i])
    ]


# --- cases -------------------------------------------------------------------------------------


def test_tail_fault_to_one_scale():
    start = "nf4:shape=3x65,words=random(7),out=bf16,layout=offset"
    found = reduced(planted.tail_of_previous_block, start)
    assert found.case == parse_case("nf4:shape=1x65,words=zeros")
    assert found.signature.cause == "tail-block-absmax-previous"
    assert found.bad.verdict.kind == "MISMATCH"
    assert found.bad.verdict.causes[0].name == "tail-block-absmax-previous"
    steps = {step.dimension: str(step) for step in found.steps}
    assert steps["shape"] == "3x65 -> 1x65 fails alike; 1x64 passes"
    assert steps["out"] == "bf16 -> fp16 fails alike"
    assert steps["scales"] == "ordinary(0): needed, one passes"
    assert kept(found) == {"packed": (), "absmax": ("[0] 2",)}
    assert found.good.verdict.kind == "EXACT"
    assert len(changed(found.bad.weight, found.good.weight)) == 1
    assert found.neighbour.dimension == "shape"


def test_one_code_of_a_whole_weight():
    found = reduced(faulty.gptq_code_eleven, "gptq:K=40,N=17,g=8,words=random(3),act=perm(1),zeros=v2")
    # A pattern has an 11 by chance only, so the case keeps a few codes; the tensors keep one.
    assert found.case["K"] * found.case["N"] <= 32
    (element,) = kept(found)["qweight"]
    assert element.split()[-1].strip("0x") in ("b", "11")
    assert kept(found)["scales"] == ()
    assert found.case["act"] == Pattern("none")
    assert found.good is not None
    assert [name.partition("[")[0] for name in changed(found.bad.weight, found.good.weight)] == ["qweight"]


def test_bits_below_an_element():
    """Of an 8-bit code with a fault above 63, one bit is left."""

    def large(weight, dtype, result):
        return planted.dense(weight).codes > 63

    found = reduced(faulty.spoilt("llm_int8", large), "llm_int8:shape=3x9,words=random(4)")
    (element,) = kept(found)["codes"]
    assert element.endswith(" 0x40")


def test_group_fault_keeps_two_groups():
    found = reduced(
        faulty.spoilt("gptq", faulty.second_group),
        "gptq:K=129,N=33,g=16,words=random(3),zeros=v2,out=fp32,act=perm(3)",
    )
    assert (found.case["g"], found.case["K"], found.case["N"]) == (1, 2, 1)
    assert all(not elements for elements in kept(found).values())
    assert found.neighbour.case is not None
    assert found.good.verdict.case == found.neighbour.case


def test_one_dtype_only():
    found = reduced(faulty.spoilt("gptq", faulty.only_bfloat16), "gptq:K=33,N=5,out=bf16,layout=strided")
    assert found.case["out"] == "bf16"
    assert found.case["layout"] == "contiguous"
    (step,) = [step for step in found.steps if step.dimension == "out"]
    assert str(step) == "bf16: needed, fp16 passes"


def test_layout_only():
    found = reduced(planted.output_strides_ignored, "llm_int8:shape=5x33,dest=padded,words=random(2)")
    assert found.case["dest"] != "given"
    assert found.bad.verdict.kind == found.signature.kind
    (step,) = [step for step in found.steps if step.dimension == "dest"]
    assert "given passes" in str(step)


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        (planted.raises, "CRASH_LAUNCH"),
        (planted.other_dtype, "MISMATCH"),
        (planted.past_the_end, "OOB_WRITE"),
    ],
)
def test_everything_wrong_leaves_one_element(kernel, kind):
    found = reduced(kernel, "nf4:shape=3x129,words=random(7),dest=strided,blocksize=32")
    assert found.bad.verdict.kind == kind
    assert found.case["shape"] == (1, 1)
    assert found.good is None
    assert "not a matter of one dimension" in str(found.neighbour)
    assert all(not elements for elements in kept(found).values())


def test_another_crash_is_another_failure():
    """A ValueError on small weights is not the RuntimeError that was started from."""

    def kernel(weight, *, dtype, out=None):
        if weight.output_shape[-1] < 20:
            raise ValueError("too small")
        raise RuntimeError("no such image")

    found = reduced(kernel, "llm_int8:shape=3x33")
    assert found.case["shape"] == (1, 20)
    assert found.signature.cause == "RuntimeError"
    (step,) = [step for step in found.steps if step.dimension == "shape"]
    assert "1x19 is another failure, CRASH_LAUNCH (ValueError)" in str(step)


def test_nondeterministic():
    found = reduced(planted.differs_from_run_to_run(), "nf4:shape=3x129,words=random(7),dest=strided")
    assert found.bad.verdict.kind == "NONDETERMINISTIC"
    assert found.case["shape"] == (1, 1)
    assert found.case["dest"] == "given"


def test_a_candidate_that_hangs_is_refused():
    kernel = faulty.hangs_below(9, planted.nibbles_swapped)
    found = reduced(kernel, "nf4:shape=1x12,words=ramp", seconds=30)
    assert found.case["shape"] == (1, 9)
    (step,) = [step for step in found.steps if step.dimension == "shape"]
    assert str(step) == "1x12 -> 1x9 fails alike; 1x8 hangs"


def test_the_neighbours_are_inside_the_limit():
    def slow(weight, *, dtype, out=None):
        time.sleep(0.1)
        raise RuntimeError("wrong everywhere")

    began = time.monotonic()
    found = reduced(slow, "nf4:shape=1x1", seconds=1.2)
    # The tries that are under way when the time is up take their own.
    assert time.monotonic() - began < 3
    assert found.neighbour is None or found.neighbour.left > 0


def test_causes_are_those_of_the_second_look():
    """Two faults at once: what is left shows one of them alone, another input shows that it is not all."""

    def kernel(weight, *, dtype, out=None):
        result = planted.nibbles_swapped(weight, dtype=dtype, out=out)
        if result.numel() > 3:
            result.view(-1)[3] = 7
        return result

    run, start = harness(kernel), parse_case("nf4:shape=1x2,words=random(7),out=bf16")
    trial = Trial(run, run.kernels["nf4"], time.monotonic() + 60)
    found = reduce(trial, start)
    assert trial.wanted.cause == "nibble-swap"
    assert (found.signature.cause, found.bad.verdict.causes[0].name) == ("unknown", "unknown")
    shown = text(found, Path("bad"), None)
    assert shown.startswith("MISMATCH (unknown)  nf4:shape=1x1")
    assert "fits this case alone: nibble-swap" in shown
    assert to_json(found, Path("bad"), None)["cause"] == "unknown"


def test_a_dimension_and_a_tensor_of_one_name_are_told_apart():
    def always(weight, dtype, result):
        return torch.ones_like(result, dtype=torch.bool)

    found = reduced(faulty.spoilt("int8_affine", always), "int8_affine:shape=2x3,codes=uint8,zero=int32")
    lines = [line for line in text(found, Path("bad"), None).splitlines() if line.split()[0] == "codes"]
    assert len(lines) == 2
    assert sum(line.startswith("  codes      tensor: ") for line in lines) == 1


def test_out_of_time_is_said():
    def slow(weight, *, dtype, out=None):
        time.sleep(0.02)
        return planted.nibbles_swapped(weight, dtype=dtype, out=out)

    began = time.monotonic()
    found = reduced(slow, "nf4:shape=3x129,words=random(7)", seconds=0.4)
    assert time.monotonic() - began < 15
    assert "time ran out" in found.note
    assert found.bad.verdict.kind == "MISMATCH"


@pytest.mark.parametrize("kernel", [planted.right, planted.unsupported])
def test_what_does_not_fail_is_refused(kernel):
    with pytest.raises(UsageError, match="expected a case that fails"):
        reduced(kernel, "nf4:shape=3x65")


# --- tensors -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "needed", [[], [0], [7], [3, 4], [0, 9], [1, 5, 6, 30], list(range(8, 16)), list(range(31))]
)
def test_ddmin_finds_what_is_needed(needed):
    runs = []

    def holds(items):
        runs.append(len(items))
        return set(needed) <= set(items)

    assert ddmin(range(31), holds) == needed
    assert len(runs) < 600


def test_ddmin_result_is_minimal_when_parts_interact():
    """At least three even numbers, or 5 and 6: some minimal part, none of it superfluous."""

    def holds(items):
        return len([i for i in items if i % 2 == 0]) >= 3 or {5, 6} <= set(items)

    found = ddmin(range(12), holds)
    assert holds(found)
    assert not any(holds(found[:i] + found[i + 1 :]) for i in range(len(found)))


def test_tables_are_left_alone():
    case = parse_case("nf4:shape=3x65,absmax=nested")
    weight = FORMATS["nf4"].words(case)
    names = data_tensors(FORMATS["nf4"], case, weight)
    assert {"packed", "absmax", "nested.absmax"} <= names
    assert "codebook" not in names


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_is_reduced_to_valid_weights(name):
    """A fault in the first element of any format: one element is left, and no weight is out of range."""
    seen = []

    def first(weight, dtype, result):
        weight.validate(deep=True)
        seen.append(weight.output_shape)
        return torch.arange(result.numel()).reshape(result.shape) == 0

    fmt = FORMATS[name]
    case = fmt.case()
    for dimension, value in (("sparse", Pattern("few", 1)), ("act", Pattern("perm", 1))):
        if dimension in case:
            case = case.replace(**{dimension: value})
    found = reduced(faulty.spoilt(name, first), case.id)
    size = math.prod(found.bad.weight.output_shape)
    # The least that the words of the format allow.
    least = {"awq_cols": 8, "awq_rows": 16, "awq_quads": 256, "squeezellm": 8, "gemm_accumulate": 4}
    assert size == least.get(name, 1)
    assert len(seen) > 10
    assert len(text(found, Path("bad"), Path("good")).splitlines()) <= LINES
    assert json.loads(json.dumps(to_json(found, Path("bad"), None)))["case"] == found.case.id


def test_tensors_of_a_bundle_that_no_case_builds():
    case = parse_case("llm_int8:shape=2x5")
    weight = map_tensors(
        FORMATS["llm_int8"].words(case), lambda name, t: t if name == "absmax" else torch.full_like(t, 77)
    )

    def seventy_seven(weight, dtype, result):
        return planted.dense(weight).codes == 77

    found = reduced(faulty.spoilt("llm_int8", seventy_seven), case.id, weight=weight)
    assert found.case == case
    assert "only they are reduced" in found.note
    assert kept(found) == {"codes": ("[1, 4] 0x4d",), "absmax": ()} or len(kept(found)["codes"]) == 1


# --- the command -------------------------------------------------------------------------------


def command(*arguments: str) -> int:
    return main(["reduce", "--device", "cpu", *arguments])


CASE = "nf4:shape=3x65,words=random(7),out=bf16"
KERNEL = "tests.planted:tail_of_previous_block"


@pytest.mark.interpreter
def test_command_and_replay_of_both_bundles(tmp_path, capsys):
    out = tmp_path / "out"
    assert command(CASE, "--kernel", KERNEL, "--out", str(out), "--json", str(tmp_path / "r.json")) == 1
    printed = capsys.readouterr().out
    assert printed.startswith("MISMATCH (tail-block-absmax-previous)  nf4:shape=1x65,words=zeros\n")
    assert len(printed.splitlines()) <= LINES
    assert f"--case nf4:shape=1x65,words=zeros --kernel nf4={KERNEL}" in printed
    record = json.loads((tmp_path / "r.json").read_text())
    assert record["start"] == CASE
    assert record["case"] == "nf4:shape=1x65,words=zeros"
    assert record["neighbour"]["dimension"] == "shape"
    info = bundle.read(out / "bad").info
    assert info["reduced"] is True
    assert info["original"] == CASE
    for name, code, verdict in (("bad", 1, "MISMATCH"), ("good", 0, "EXACT")):
        assert main(["replay", str(out / name), "--device", "cpu"]) == code
        replayed = capsys.readouterr().out
        assert f"{verdict}  nf4:shape=1x65,words=zeros" in replayed
        assert f"tensors    reduced from those of {CASE}: not what the case builds" in replayed
    assert main(["replay", str(out / "bad"), "--device", "cpu", "--kernel", "tests.planted:right"]) == 0


@pytest.mark.interpreter
def test_a_bundle_is_reduced_with_its_kernel_and_gate(tmp_path, capsys):
    run = harness(planted.tail_of_previous_block, gate="element")
    checked = run.judge(parse_case(CASE))
    folder = run.write_bundle(tmp_path / "b", checked, 1)
    assert command(str(folder), "--kernel", KERNEL, "--out", str(tmp_path / "out")) == 1
    assert bundle.read(tmp_path / "out" / "bad").info["gate"] == "element"
    capsys.readouterr()
    # The reduced bundle again: its tensors are no case's, and nothing more can be left out.
    assert command(str(tmp_path / "out" / "bad"), "--out", str(tmp_path / "again")) == 1
    assert "only they are reduced" in capsys.readouterr().out
    first = bundle.read(tmp_path / "out" / "bad").info["digest"]
    assert bundle.read(tmp_path / "again" / "bad").info["digest"] == first


@pytest.mark.interpreter
def test_altered_tensors_without_the_mark_are_still_refused(tmp_path, capsys):
    out = tmp_path / "out"
    assert command(CASE, "--kernel", KERNEL, "--out", str(out)) == 1
    file = out / "bad" / "case.json"
    info = json.loads(file.read_text())
    del info["reduced"]
    file.write_text(json.dumps(info))
    assert main(["replay", str(out / "bad"), "--device", "cpu"]) == 2
    assert "expected the tensors of nf4:shape=1x65" in capsys.readouterr().err


@pytest.mark.interpreter
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((CASE, "--kernel", "tests.planted:right"), "expected a case that fails"),
        (("nf4",), "expected a case id or the folder of a bundle, found 'nf4'"),
        (("nf4:shape=x",), "shape: expected sizes"),
        (("nosuch:",), "format: expected one of"),
        ((CASE, "--kernel", "tests.planted:nothing"), "expected a function 'nothing'"),
        ((CASE, "--seconds", "0"), "--seconds: expected a positive number, found 0"),
        ((CASE, "--seconds", "nan"), "--seconds: expected a positive number, found nan"),
        ((CASE, "--json", "no/such/folder/r.json"), "--json: expected a file that can be written"),
        ((CASE, "--json", __file__), f"--json: expected no file yet, found {__file__}; --force"),
        (("nf4:shape=" + "1x" * 200 + "y",), "shape: expected sizes"),
    ],
)
def test_wrong_usage(arguments, words, tmp_path, capsys):
    assert command(*arguments, "--out", str(tmp_path / "out")) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


@pytest.mark.interpreter
def test_a_folder_with_bundles_is_refused(tmp_path, capsys):
    (tmp_path / "bad").mkdir()
    assert command(CASE, "--kernel", KERNEL, "--out", str(tmp_path)) == 2
    assert "--out: expected a folder without bundles" in capsys.readouterr().err


@pytest.mark.interpreter
def test_destinations_are_looked_at_before_anything_runs(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("conformance.reduce.result.reduce", lambda *_: pytest.fail("it ran"))
    file = tmp_path / "file"
    file.write_text("mine")
    for place in (file, file / "below", tmp_path / ("x" * 300)):
        assert command(CASE, "--kernel", KERNEL, "--out", str(place)) == 2
        assert "--out: expected a folder to write to" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".conformance").write_text("mine")
    assert command(CASE, "--kernel", "tests.planted:right") == 2
    assert "--out: expected a folder to write to" in capsys.readouterr().err


@pytest.mark.interpreter
def test_what_cannot_be_written_is_still_shown(tmp_path, capsys, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(bundle, "save_file", full)
    record = tmp_path / "r.json"
    assert command(CASE, "--kernel", KERNEL, "--out", str(tmp_path / "out"), "--json", str(record)) == 2
    out, err = capsys.readouterr()
    assert out.startswith("MISMATCH (tail-block-absmax-previous)")
    assert err.startswith("error: --out: expected a folder to write to")
    assert err.count("\n") == 1
    assert json.loads(record.read_text())["case"] == "nf4:shape=1x65,words=zeros"
