"""Recorded answers that are damaged, or compare nothing, are an error; a wrong kernel meets them."""

import copy
import dataclasses
import json

import pytest
import torch
from safetensors.torch import save_file

from conformance import vectors
from conformance.against_recorded import Recorded, originals
from conformance.bits import DTYPES
from conformance.errors import UsageError
from conformance.harness import Failure
from conformance.realmodel import thinned
from conformance.running import run_each
from kernels import int8_affine
from oracles import squeezellm
from tests.harness_runs import FORMATS, harness, python
from tests.int8_affine_weights import make as make_int8


def changed(tmp_path, change):
    """The file of llm_int8 with its metadata changed and its digest made right again."""
    info, tensors = vectors.read_info(vectors.path_of("llm_int8"))
    info = copy.deepcopy(info)
    change(info)
    info["digest"] = vectors._total_digest(info, tensors)
    path = tmp_path / "llm_int8.safetensors"
    save_file(tensors, path, {"vectors": json.dumps(info)})
    return path


def each(function):
    def change(info):
        for vector in info["vectors"]:
            function(vector)

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda info: info.update(vectors=[]), "expected vectors, found none"),
        (each(lambda v: v["answers"].pop("fp16")), "expected answers in fp16, found none"),
        (each(lambda v: v.update(answers={out: {} for out in DTYPES})), "expected answers in fp16"),
        (
            lambda info: info["vectors"][0].update(answers={"fp16": {}}),
            "expected an answer for each output dtype",
        ),
        (lambda info: info["vectors"][0].update(flags=["BASIC", "NOPE", 3]), r"found \['3', 'NOPE'\]"),
        (lambda info: info["vectors"][0].update(answers={"fp16": "abc"}), "found a damaged one"),
        (lambda info: info["vectors"][0].update(case={"fields": 3}), "found a damaged one"),
        (lambda info: info["vectors"][0]["weight"].update(tensors=3), "found a damaged one"),
        (lambda info: info["vectors"][0].update(case={}), "found a damaged one"),
        (lambda info: info["vectors"].append(info["vectors"][0]), "a case is there twice"),
    ],
)
def test_a_file_with_a_right_digest_that_compares_nothing_or_is_malformed(tmp_path, change, words):
    with pytest.raises(UsageError, match=words):
        vectors.read(FORMATS["llm_int8"], changed(tmp_path, change))


@pytest.mark.parametrize("damage", ["missing", "truncated", "changed"])
def test_damaged_answers_of_squeezellm_are_named_and_stop_no_other_format(tmp_path, monkeypatch, damage):
    path = tmp_path / "squeezellm.safetensors"
    if damage != "missing":
        data = bytearray(squeezellm.RECORDED.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data[:1000] if damage == "truncated" else data)
    monkeypatch.setattr(squeezellm, "RECORDED", path)
    for cached in (squeezellm._damage, squeezellm._parameters, squeezellm.recorded_case):
        cached.cache_clear()
    try:
        reason = squeezellm.SQUEEZELLM.missing(torch.device("cpu"))
        assert reason.startswith("expected ")
        assert "squeezellm.safetensors" in reason
        case = originals(FORMATS["squeezellm"], "fp16")[0]
        with pytest.raises(UsageError, match=reason.split(",")[0]):
            harness().judge(case)
        assert harness().judge(FORMATS["nf4"].parse("shape=3x65")).verdict.kind == "EXACT"
    finally:
        monkeypatch.undo()
        for cached in (squeezellm._damage, squeezellm._parameters, squeezellm.recorded_case):
            cached.cache_clear()


def test_every_recorded_weight_of_the_original_project_is_judged():
    cases = originals(FORMATS["squeezellm"], "fp32")
    assert [case["recorded"] for case in cases] == list(squeezellm.NAMES)
    assert originals(FORMATS["nf4"], "fp32") == []


@pytest.mark.parametrize("blocked", ["a file", "no folder"])
def test_record_says_before_it_asks_that_it_cannot_write(tmp_path, blocked):
    out = tmp_path / "f"
    out.write_text("mine") if blocked == "a file" else (out / "llm_int8.safetensors").mkdir(parents=True)
    done = python("-m", "conformance", "record", "--format", "llm_int8", "--force", "--out", str(out))
    assert done.returncode == 2
    assert "error: record: expected a place to write" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.glob("**/*.part"))


def test_record_names_a_date_that_is_none(tmp_path):
    done = python("-m", "conformance", "record", "--date", "tomorrow", "--out", str(tmp_path))
    assert done.returncode == 2
    assert "expected a date such as" in done.stderr


@pytest.mark.parametrize(
    "wrong",
    [
        lambda w: {"codes": w.codes.clamp(min=-127) if w.codes.dtype is torch.int8 else w.codes},
        lambda w: {"zero_point": None if w.zero_point is None else w.zero_point.clamp(min=-127)},
    ],
)
def test_int8_clamped_to_127_fails_the_recorded_vectors(wrong):
    def kernel(weight, *, dtype, out=None):
        return int8_affine.dequantize(dataclasses.replace(weight, **wrong(weight)), dtype=dtype, out=out)

    file = vectors.read(FORMATS["int8_affine"])
    with pytest.raises(Failure):
        run_each(Recorded(harness(kernel), "fp32"), "test", file.vectors)


@pytest.mark.parametrize("every", [1, 3, 9, 43])
@pytest.mark.parametrize("name", sorted(FORMATS))
def test_a_thinned_real_model_meets_every_variant(name, every):
    fmt = FORMATS[name]
    step = max(every, fmt.real_step)
    cases = [(layer, number) for layer in range(37) for number in range(len(fmt.real_variants))]
    met = {number for out in DTYPES for _, number in thinned(cases, step, len(fmt.real_variants), out)}
    assert met == set(range(len(fmt.real_variants)))


def test_tensors_that_a_kernel_would_misread_are_refused():
    weight = make_int8("row")
    for name in ("codes", "scale"):
        negated = dataclasses.replace(weight, **{name: torch._neg_view(getattr(weight, name))})
        with pytest.raises(TypeError, match=f"{name}: expected a tensor without a pending negation"):
            int8_affine.dequantize(negated, dtype=torch.float32)
        sparse = dataclasses.replace(weight, **{name: getattr(weight, name).to_sparse()})
        with pytest.raises(TypeError, match=f"{name}: expected a strided tensor"):
            int8_affine.dequantize(sparse, dtype=torch.float32)


def test_a_group_size_beyond_the_row_is_one_group():
    fmt = FORMATS["int8_affine"]
    weight = fmt.words(fmt.parse("shape=3x17,per=group,g=17"))
    huge = dataclasses.replace(weight, group_size=2**40)
    huge.validate(deep=True)
    same = int8_affine.dequantize(huge, dtype=torch.float32) == int8_affine.dequantize(
        weight, dtype=torch.float32
    )
    assert same.all()
