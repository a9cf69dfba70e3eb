"""Recorded vectors: the shipped files, their format, and what a kernel's failure says."""

from __future__ import annotations

import dataclasses
import datetime
import json

import pytest
import torch

from conformance import recording, setup, vectors
from conformance.against_recorded import Recorded
from conformance.allowed import leeway
from conformance.bits import DTYPES, same, to_bits, to_float
from conformance.errors import UsageError
from conformance.harness import Failure
from conformance.report import LINES, report
from conformance.running import run_each
from conformance.vector_cases import curated
from conformance.vector_flags import FLAGS
from oracles.spec.rounding import round_to
from tests.harness_runs import CPU, FORMATS, ROOT, harness, python, records

# Everything that requirements/3-oracles.txt and 4-no-deps.txt bring.
UPSTREAM = ("bitsandbytes", "awq", "auto_gptq", "gptqmodel", "torchao", "compressed_tensors", "transformers")
LIMIT = 3_000_000


def file_of(name):
    return vectors.read(FORMATS[name])


# --- the shipped files -----------------------------------------------------------------------


def test_the_set_is_compact_and_complete():
    found = sorted(path.stem for path in vectors.FOLDER.iterdir())
    assert found == sorted(FORMATS)
    assert sum(path.stat().st_size for path in vectors.FOLDER.iterdir()) <= LIMIT


@pytest.mark.parametrize("name", FORMATS)
def test_lint(name):
    assert not list(vectors.problems(file_of(name)))


@pytest.mark.parametrize("name", FORMATS)
def test_recorded_answers_are_those_of_the_spec(name):
    """But for the registered sign of a zero, and a format's proven bound: faults of upstream are left out,
    not kept as truth."""
    fmt = FORMATS[name]
    for vector in file_of(name).vectors:
        model = fmt.unpack(vector.weight)
        for out, found in vector.answers.items():
            want = round_to(model.values(), DTYPES[out])
            for oracle, answer in found.items():
                assert answer.dtype == DTYPES[out]
                wrong = ~same(to_bits(answer), want, answer.dtype)
                if any(r.oracle == oracle and r.dtype is answer.dtype for r in fmt.relaxations):
                    wrong &= to_float(to_bits(answer), answer.dtype) != 0
                near = leeway(fmt.allowance, model, oracle, "cpu", to_bits(answer), want, answer.dtype)
                if near is not None:
                    wrong &= ~near.right
                assert not wrong.any(), f"{vector.id} {out} {oracle}"


@pytest.mark.parametrize("name", FORMATS)
def test_every_case_is_spelled_out(name):
    """All fields are stored: a later default changes no recorded case."""
    info, _ = vectors.read_info(vectors.path_of(name))
    for entry in info["vectors"]:
        assert set(entry["case"]["fields"]) == {dim.name for dim in FORMATS[name].all_dims}


def test_flags_say_what_they_mean():
    used = {flag for name in FORMATS for vector in file_of(name).vectors for flag in vector.flags}
    assert used == set(FLAGS), "a flag without a vector, or a vector without a described flag"
    page = (ROOT / "docs" / "vectors.md").read_text(encoding="utf-8")
    for name, flag in FLAGS.items():
        assert flag.description
        assert flag.effect
        assert f"| `{name}` | {flag.description} | {flag.effect} |" in page


# --- recording -------------------------------------------------------------------------------


def test_recording_again_gives_the_same_bytes():
    fmt, file = FORMATS["llm_int8"], file_of("llm_int8")
    run = setup.build(CPU)
    run.interpreter = None
    (oracle,) = fmt.oracles
    reason = run.missing(fmt, oracle)
    if reason is not None:
        pytest.skip(reason)
    source = file.oracles[oracle.name]
    here = (oracle.provenance().version, recording.device_words(run))
    if here != (source["version"], source["device"]):
        pytest.skip(f"recorded with {source['version']} on {source['device']}, here is {here}")
    again = recording.record(run, fmt, datetime.date.fromisoformat(source["date"]))
    assert vectors.to_bytes(again) == vectors.path_of(fmt.name).read_bytes()


def test_curated_cases_need_no_oracle_and_do_not_change():
    first = [case.id for case, _ in curated(FORMATS["nf4"])]
    assert first == [case.id for case, _ in curated(FORMATS["nf4"])]
    recorded = {vector.id for vector in file_of("nf4").vectors}
    assert recorded <= set(first)


def test_an_oracle_that_is_wrong_is_refused():
    """An answer that no known fault covers is not recorded as truth."""
    fmt = FORMATS["llm_int8"]
    spec = fmt.unpack

    def wrong(weight, dtype):
        values = torch.from_numpy(spec(weight).values()).to(dtype)
        return values + values.new_ones(())

    oracle = dataclasses.replace(fmt.oracles[0], missing=lambda device: None, dequantize=wrong)
    changed = dataclasses.replace(fmt, oracles=(oracle,))
    run = harness(fmt=changed, oracles=None)
    with pytest.raises(UsageError, match="expected every oracle to agree with the spec"):
        recording.record(run, changed, datetime.date(2026, 1, 1))


def test_a_file_is_not_overwritten(tmp_path):
    (tmp_path / "nf4.safetensors").write_bytes(b"mine")
    done = python("-m", "conformance", "record", "--format", "nf4", "--out", str(tmp_path))
    assert done.returncode == 2
    assert "expected no file yet, found nf4.safetensors; --force" in done.stderr
    assert (tmp_path / "nf4.safetensors").read_bytes() == b"mine"


def test_nothing_to_ask_is_an_error(tmp_path):
    done = python("-m", "conformance", "record", "--format", "nf4", "--out", str(tmp_path), blocked=UPSTREAM)
    assert done.returncode == 2
    assert "expected an installed oracle that answers for nf4, found none" in done.stderr
    assert not list(tmp_path.iterdir())


# --- bad files -------------------------------------------------------------------------------


def test_damaged_files(tmp_path):
    from safetensors.torch import save_file

    fmt = FORMATS["llm_int8"]
    path = tmp_path / "llm_int8.safetensors"
    with pytest.raises(UsageError, match="found none; write it with python -m conformance record"):
        vectors.read(fmt, path)
    path.write_bytes(vectors.path_of("llm_int8").read_bytes()[:-1])
    with pytest.raises(UsageError, match="expected a whole safetensors file"):
        vectors.read(fmt, path)
    info, tensors = vectors.read_info(vectors.path_of("llm_int8"))
    name = next(name for name, tensor in tensors.items() if tensor.dtype is torch.float32)
    flipped = {**tensors, name: -tensors[name]}
    for changed, stored, words in (
        ({**info, "schema": 2}, tensors, "expected schema 1 in llm_int8.safetensors, found 2"),
        ({"schema": 1, "format": "llm_int8"}, tensors, "expected a dict 'oracles'"),
        (info, flipped, "expected what was recorded, found llm_int8.safetensors altered"),
        ({**info, "format": "nf4"}, tensors, "altered"),
    ):
        save_file(stored, path, {"vectors": json.dumps(changed)})
        with pytest.raises(UsageError, match=words):
            vectors.read(fmt, path)
    with pytest.raises(UsageError, match="expected format fp4 in llm_int8"):
        vectors.read(FORMATS["fp4"], vectors.path_of("llm_int8"))


def test_a_stale_vector_is_an_error_and_not_used():
    first, second = file_of("llm_int8").vectors[:2]
    stale = dataclasses.replace(first, case=second.case)
    with pytest.raises(UsageError, match="the vectors are stale"):
        Recorded(harness(), "fp16").judge(stale)


# --- judging ---------------------------------------------------------------------------------


def test_recorded_answers_vote():
    verdict = Recorded(harness(), "fp16").judge(file_of("nf4").vectors[0]).verdict
    assert verdict.kind == "EXACT"
    assert verdict.summary == "kernel = recorded:bitsandbytes = recorded:bitsandbytes-python = spec"
    assert "bitsandbytes: missing: not asked for" in verdict.notes


def test_a_failure_names_the_flags():
    def kernel(weight, *, dtype):
        return torch.zeros(weight.shape, dtype=dtype)

    vector = file_of("nf4").vectors[0]
    with pytest.raises(Failure) as caught:
        run_each(Recorded(harness(kernel), "fp16"), "test", [vector])
    text = report(caught.value.checked.verdict)
    flat = " ".join(text.split())
    assert "kernel is wrong (spec = recorded:bitsandbytes = recorded:bitsandbytes-python)" in flat
    assert "[recorded vector, flags BASIC]" in flat
    assert "look no further" in flat
    assert len(text.splitlines()) <= LINES


def test_an_environment_without_upstream(tmp_path):
    """torch, triton, pytest, hypothesis and safetensors: recorded answers are judged, and the
    missing oracles are counted."""
    done = python(
        "-m", "pytest", "conformance", "-k", "llm_int8 or nf4", "--profile", "smoke", "--device", "cpu",
        "-p", "no:cacheprovider", "--results", str(tmp_path), "--hypothesis-seed", "1",
        blocked=UPSTREAM,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert "x bitsandbytes: missing: " in done.stdout
    found = [record for record in records(tmp_path) if "flags" in record]
    assert {record["format"] for record in found} == {"llm_int8", "nf4"}
    for record in found:
        assert record["verdict"] == "EXACT"
        assert record["flags"]
        assert any(vote["reference"].startswith("recorded:") for vote in record["votes"])
