"""Tensors on cuda:1 while cuda:0 is the current device, and runs on two GPUs. Needs two of them."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from conformance.allowed import leeway
from conformance.bits import DTYPES, same, to_bits
from conformance.materialize import materialize
from conformance.registry import builtin_kernel, parse_case
from conformance.results import read_results
from conformance.runtime import Runtime
from conformance.setup import build
from kernels._packed import map_tensors
from oracles.spec.rounding import round_to
from tests.harness_runs import FORMATS, python

pytestmark = [
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA GPUs"),
    pytest.mark.skipif(
        os.environ.get("TRITON_INTERPRET") == "1", reason="needs compiled kernels: run with --device cuda"
    ),
]
SECOND = torch.device("cuda", 1)


@pytest.fixture(autouse=True)
def first_is_current():
    torch.cuda.set_device(0)
    yield
    assert torch.cuda.current_device() == 0, "the current device was changed"


def ids(name: str) -> list[str]:
    """The default case, those at the edges of tiles, and those without elements."""
    fmt = FORMATS[name]
    texts = ("", *fmt.tile_cases, *fmt.zero_size)
    return list(dict.fromkeys((fmt.parse(text) if text else fmt.case()).id for text in texts))


@pytest.mark.parametrize("out", DTYPES)
@pytest.mark.parametrize("case", [case for name in FORMATS for case in ids(name)])
def test_dequantize_runs_where_its_tensors_are(case: str, out: str):
    parsed = parse_case(case).replace(out=out)
    fmt, dtype = FORMATS[parsed.format], DTYPES[out]
    weight, _ = materialize(fmt, parsed)
    model = fmt.unpack(weight)
    want = round_to(model.values(), dtype)
    moved = map_tensors(weight, lambda _, tensor: tensor.to(SECOND))
    given = torch.full(weight.output_shape, float("nan"), dtype=dtype, device=SECOND)
    for options in ({}, {"out": given}):
        result = builtin_kernel(fmt).function(moved, dtype=dtype, **options)
        assert result.device == SECOND
        got = to_bits(result)
        near = leeway(fmt.allowance, model, "kernel", "cuda:1", got, want, dtype)
        assert bool(np.all(same(got, want, dtype) if near is None else near.right))


@pytest.mark.parametrize("name", FORMATS)
def test_a_harness_judges_on_the_second_gpu(name: str):
    """Kernel and oracles both, with the first as the current device."""
    verdict = build(Runtime(SECOND, False)).judge(FORMATS[name].case()).verdict
    assert verdict.device == "cuda:1"
    assert not verdict.failed, verdict.summary
    raised = [note for note in verdict.notes if "raised" in note]
    assert not raised


def test_workers_share_out_the_gpus(tmp_path: Path):
    options = (
        "-k",
        "llm_int8 and (tiles or large or zero_size)",
        "-n",
        "4",
        "--results",
        str(tmp_path / "r"),
    )
    done = python("-m", "pytest", "conformance", "-p", "no:cacheprovider", "--device", "cuda", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    count = torch.cuda.device_count()
    assert f"conformance workers: 4 on {count} GPUs; gwK runs on cuda:(K mod {count})" in done.stdout
    devices = Counter(record["device"] for record in read_results(tmp_path / "r") if record.get("test"))
    assert set(devices) <= {f"cuda:{index}" for index in range(min(4, count))}
    assert len(devices) >= 2
