"""Upstream's answers for the int8 matrix product: equal to the spec, or declined; and where it differs."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from conformance.bits import DTYPES, same, to_bits, to_float
from conformance.faults import Context
from conformance.known_faults import load
from conformance.materialize import materialize
from oracles.base import Declined
from oracles.spec.rounding import round_to
from tests.harness_runs import CPU, FORMATS, drawn, harness

NAMES = ("gemm_quantize", "gemm_accumulate", "gemm_epilogue", "gemm_int8", "gemm_dynamic")
ORACLES = [
    pytest.param(name, oracle, id=f"{name}-{oracle.name}")
    for name in NAMES
    for oracle in FORMATS[name].oracles
]


def need(oracle) -> None:
    reason = oracle.missing(CPU.device)
    if reason:
        pytest.skip(reason)


def answer(oracle, weight, out: str) -> np.ndarray:
    return to_bits(oracle.dequantize(weight, DTYPES[out]))


@pytest.mark.parametrize(("name", "oracle"), ORACLES)
def test_upstream_equals_the_spec_or_declines(name, oracle):
    """On the suite's own cases; but for bitsandbytes' constant, which is the fault of that name, and
    oneDNN's subnormal bfloat16."""
    need(oracle)
    run = harness(known=load())
    fmt, answered = FORMATS[name], 0
    constant = {fault.name: fault for fault in fmt.faults}.get("absmax-constant-6.200124e-05")
    for out in DTYPES:
        for case in drawn(name, 300, out=out):
            weight, _ = materialize(fmt, case)
            try:
                got = answer(oracle, weight, out)
            except Declined:
                continue
            answered += 1
            model = fmt.unpack(weight)
            want = round_to(model.values(), DTYPES[out])
            if oracle.name == "bitsandbytes" and constant is not None:
                predicted = constant.decode(Context(weight, model, DTYPES[out]))
                assert predicted is not None
                want = predicted
            alike = same(got, want, DTYPES[out])
            if any(r.oracle == oracle.name and r.ulp == 0 for r in fmt.relaxations):
                alike |= (to_float(got, DTYPES[out]) == 0) & (to_float(want, DTYPES[out]) == 0)
            excused = run.excuse(oracle, case, got, want, DTYPES[out])
            assert alike.all() or excused == "onednn-bf16-subnormal", case.id
    assert answered >= 8


@pytest.mark.parametrize(("name", "oracle"), ORACLES)
def test_no_elements_are_declined(name, oracle):
    need(oracle)
    for text in FORMATS[name].zero_size:
        with pytest.raises(Declined):
            oracle.dequantize(materialize(FORMATS[name], FORMATS[name].parse(text))[0], torch.float32)


def test_sums_beyond_float32_are_right_or_declined():
    """K at which a float32 sum is rounded, and K at which int32 wraps."""
    fmt = FORMATS["gemm_accumulate"]
    for text in fmt.large:
        weight, _ = materialize(fmt, fmt.parse(text))
        want = round_to(fmt.unpack(weight).values(), torch.float32)
        for oracle in fmt.oracles:
            if oracle.missing(CPU.device) is None:
                try:
                    got = answer(oracle, weight, "fp32")
                except Declined:
                    continue
                assert same(got, want, torch.float32).all(), (text, oracle.name)


# --- where upstream differs ---------------------------------------------------------------------


def test_torchao_makes_the_scale_in_the_dtype_of_the_activations():
    from oracles.upstream import load

    oracle = next(o for o in FORMATS["gemm_quantize"].oracles if o.name == "torchao")
    need(oracle)
    calls = load("torchao.quantization.quant_primitives")
    x = FORMATS["gemm_quantize"].words(FORMATS["gemm_quantize"].parse("M=3,K=33,xdtype=bf16")).x

    def scale(values):
        return calls.choose_qparams_affine(
            values, calls.MappingType.SYMMETRIC, [1, 33], torch.int8, -127, 127, scale_dtype=torch.float32
        )[0].reshape(-1)

    wide, narrow = scale(x.float()), scale(x)
    assert torch.equal(wide, x.float().abs().amax(dim=1) / 127)
    assert torch.equal(narrow, narrow.bfloat16().float())
    assert not torch.equal(wide, narrow)


def test_bitsandbytes_multiplies_by_a_constant_with_two_digits_swapped():
    oracle = next(o for o in FORMATS["gemm_epilogue"].oracles if o.name == "bitsandbytes")
    need(oracle)
    weight = FORMATS["gemm_epilogue"].words(FORMATS["gemm_epilogue"].parse("M=1,N=1,order=absmax"))
    weight = dataclasses.replace(
        weight,
        acc=torch.full((1, 1), 127 * 127, dtype=torch.int32),
        a_scale=torch.ones(1),
        w_scale=torch.ones(1),
    )
    got = oracle.dequantize(weight, torch.float32).item()
    assert got == np.float32(16129) * np.float32(6.200124e-05)
    assert FORMATS["gemm_epilogue"].unpack(weight).values().item() == np.float32(1)
