"""Faults that are no decoders get the verdict that the catalogue says."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from conformance.bits import from_bits
from conformance.faults.not_decoders import NOT_DECODERS
from conformance.formats._grouped import pack_fields
from kernels._packed import map_tensors
from kernels.gptq import GPTQWeight
from oracles.base import Oracle, Provenance
from oracles.spec.rounding import round_to
from tests import planted
from tests.harness_runs import FORMATS, judge

CASE = "nf4:shape=5x65"


def _contiguous(t: torch.Tensor) -> torch.Tensor:
    return t.as_strided(t.shape, [math.prod(t.shape[i + 1 :]) for i in range(t.dim())])


def stride_ignored(weight: Any, *, dtype: torch.dtype, out: Any = None) -> torch.Tensor:
    return planted.right(map_tensors(weight, lambda _, t: _contiguous(t)), dtype=dtype, out=out)


def output_stride_ignored(weight: Any, *, dtype: torch.dtype, out: torch.Tensor) -> torch.Tensor:
    _contiguous(out).copy_(planted.right(weight, dtype=dtype))
    return out


def store_mask_missing(weight: Any, *, dtype: torch.dtype, out: torch.Tensor) -> torch.Tensor:
    planted.right(weight, dtype=dtype, out=out)
    out.as_strided((1,), (1,), out.storage_offset() + out.numel()).fill_(1.0)
    return out


def tail_not_stored(weight: Any, *, dtype: torch.dtype, out: torch.Tensor) -> torch.Tensor:
    half = out.shape[1] // 2
    out[:, :half] = planted.right(weight, dtype=dtype)[:, :half]
    return out


def return_after_first_block(weight: Any, *, dtype: torch.dtype, out: torch.Tensor) -> torch.Tensor:
    size = weight.blocksize
    out.reshape(-1)[:size] = planted.right(weight, dtype=dtype).reshape(-1)[:size]
    return out


def output_accumulated(weight: Any, *, dtype: torch.dtype, out: torch.Tensor) -> torch.Tensor:
    return out.add_(planted.right(weight, dtype=dtype))


_CALLS = itertools.count()


def race(weight: Any, *, dtype: torch.dtype, out: torch.Tensor) -> torch.Tensor:
    planted.right(weight, dtype=dtype, out=out)
    out[0, 0] = float(next(_CALLS))
    return out


def input_written(weight: Any, *, dtype: torch.dtype, out: torch.Tensor) -> torch.Tensor:
    planted.right(weight, dtype=dtype, out=out)
    weight.absmax.add_(1)
    return out


def result_in_fp16(weight: Any, *, dtype: torch.dtype) -> torch.Tensor:
    return planted.right(weight, dtype=torch.float16)


@triton.jit
def _load(source, at, sink):
    tl.store(sink, tl.load(source + at) * 0)


def over_read(weight: Any, *, dtype: torch.dtype, out: torch.Tensor) -> torch.Tensor:
    absmax = weight.absmax
    _load[(1,)](absmax, absmax.numel(), torch.empty(1))
    return planted.right(weight, dtype=dtype, out=out)


PLANTS = [
    ("stride-ignored", stride_ignored, f"{CASE},layout=strided"),
    ("stride-ignored", stride_ignored, "llm_int8:shape=5x7,layout=transposed"),
    ("output-stride-ignored", output_stride_ignored, f"{CASE},dest=strided"),
    ("store-mask-missing", store_mask_missing, CASE),
    ("tail-not-stored", tail_not_stored, CASE),
    ("return-after-first-block", return_after_first_block, CASE),
    ("output-accumulated", output_accumulated, f"{CASE},out=fp32"),
    ("output-accumulated", output_accumulated, f"{CASE},out=fp16"),
    ("race", race, CASE),
    ("input-written", input_written, CASE),
    ("result-in-fp16", result_in_fp16, f"{CASE},out=bf16"),
]
# Needs two GPUs.
UNTESTED = {"device-guard-missing"}


@pytest.mark.parametrize(("name", "kernel", "case"), PLANTS, ids=[f"{n}-{c}" for n, _, c in PLANTS])
def test_verdict_is_one_of_those_named(name, kernel, case):
    entry = next(entry for entry in NOT_DECODERS if entry.name == name)
    verdict = judge(kernel, case).verdict
    assert verdict.failed
    assert verdict.kind in entry.verdicts


@pytest.mark.interpreter
def test_over_read_shows_in_no_value_but_is_seen():
    assert judge(over_read, CASE).verdict.kind == "OOB_READ"


def test_every_one_that_is_seen_is_planted():
    assert {entry.name for entry in NOT_DECODERS if entry.verdicts} == {
        "packer-omits-zero",
        "over-read",
        *(name for name, _, _ in PLANTS),
        *UNTESTED,
    }


def packer(omits_zero: bool) -> Oracle:
    """A packer of gptq that says the name of the one which the case asks for."""

    def pack(floats: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor, **options: Any) -> GPTQWeight:
        group = torch.arange(floats.shape[0]) // options["group_size"]
        codes = torch.round(floats / scales[group]).long() + (0 if omits_zero else zeros[group])
        words = pack_fields(codes.clamp(0, 15).numpy().T, 4, floats.shape[0] // 8, "")
        return GPTQWeight(
            torch.from_numpy(words).t().contiguous(),
            torch.from_numpy(pack_fields(zeros.numpy(), 4, floats.shape[1] // 8, "")),
            scales.half(),
            None,
            4,
            options["group_size"],
            options["convention"],
        )

    provenance = Provenance("pytest", pytest.__version__, pytest.__version__, "tests", "call")
    return Oracle("gptqmodel", lambda: provenance, lambda device: None, None, pack)


@pytest.mark.parametrize("omits_zero", [False, True])
def test_a_packer_that_omits_the_zero_breaks_the_bound(omits_zero: bool):
    fmt = FORMATS["gptq"]

    def right(weight: Any, *, dtype: torch.dtype) -> torch.Tensor:
        return from_bits(round_to(fmt.unpack(planted.dense(weight)).values(), dtype), dtype)

    other = dataclasses.replace(fmt, oracles=(packer(omits_zero),))
    verdict = judge(right, "gptq:route=pack,zeros=v2,zp=ramp", fmt=other, oracles=None).verdict
    assert verdict.kind == ("SPLIT" if omits_zero else "EXACT")
