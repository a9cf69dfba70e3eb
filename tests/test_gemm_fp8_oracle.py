"""Upstream's answers for fp8: equal to the spec, within the bound, or declined; and where it differs."""

from __future__ import annotations

from unittest import mock

import pytest
import torch

from conformance.allowed import leeway
from conformance.bits import DTYPES, same, to_bits
from conformance.materialize import materialize
from kernels.gemm_cast_fp8 import CastInput
from oracles.base import Declined
from oracles.spec.rounding import round_to
from oracles.torch_scaled_mm import SCALED_MM
from tests.harness_runs import CPU, FORMATS, drawn

ORACLES = [
    pytest.param(name, oracle, id=f"{name}-{oracle.name}")
    for name in ("gemm_cast_fp8", "gemm_fp8")
    for oracle in FORMATS[name].oracles
]


def need(oracle) -> None:
    reason = oracle.missing(CPU.device)
    if reason:
        pytest.skip(reason)


@pytest.mark.parametrize(("name", "oracle"), ORACLES)
def test_upstream_equals_the_spec_or_is_within_its_bound(name, oracle):
    """On the suite's own cases; the cast to the bit."""
    need(oracle)
    fmt, answered, exact = FORMATS[name], 0, 0
    for out, dtype in DTYPES.items():
        for case in drawn(name, 120, out=out):
            weight, _ = materialize(fmt, case)
            try:
                got = to_bits(oracle.dequantize(weight, dtype))
            except Declined:
                continue
            model = fmt.unpack(weight)
            want = round_to(model.values(), dtype)
            near = leeway(fmt.allowance, model, oracle.name, "cpu", got, want, dtype)
            alike = same(got, want, dtype)
            assert (alike if near is None else near.right).all(), case.id
            answered, exact = answered + 1, exact + int(alike.all())
    assert answered >= 60
    assert exact >= 30


@pytest.mark.parametrize(("name", "oracle"), ORACLES)
def test_no_elements_are_declined(name, oracle):
    need(oracle)
    for text in FORMATS[name].zero_size:
        with pytest.raises(Declined):
            oracle.dequantize(materialize(FORMATS[name], FORMATS[name].parse(text))[0], torch.float32)


def test_torch_multiplies_by_the_scales_before_the_sum_on_a_cpu():
    """Which is why it is held to a bound."""
    need(SCALED_MM)
    fmt = FORMATS["gemm_fp8"]
    weight = fmt.words(fmt.parse("M=8,N=33,K=96"))
    got = SCALED_MM.dequantize(weight, torch.float32)
    want = round_to(fmt.unpack(weight).values(), torch.float32)
    assert not same(to_bits(got), want, torch.float32).all()


class OnGpu:
    """Operands that say that they are on a GPU."""

    type = "cuda"


@pytest.mark.parametrize(
    ("fields", "out", "words"),
    [
        ("M=4,N=16,K=33", "bf16", "K and N in sixteens"),
        ("M=4,N=9,K=32", "bf16", "K and N in sixteens"),
        ("M=4,N=16,K=32", "fp32", "by row gives bfloat16"),
        ("M=4,N=16,K=32,aper=tensor,wper=tensor,bias=fp16", "fp32", "adds no bias to float32"),
        ("M=4,N=16,K=32,aper=tensor,wper=tensor,bias=fp32", "bf16", "a bias of the output's dtype"),
        ("M=4,N=16,K=32,aper=block,wper=channel", "bf16", "come in pairs"),
        ("M=4,N=16,K=128,aper=block,wper=block", "bf16", "whole blocks"),
        ("M=3,N=128,K=128,aper=block,wper=block", "bf16", "M in fours"),
        ("M=4,N=128,K=128,aper=block,wper=block", "fp32", "bfloat16 without a bias"),
    ],
)
def test_what_a_gpu_does_not_take_is_declined(fields, out, words):
    fmt = FORMATS["gemm_fp8"]
    weight = fmt.words(fmt.parse(fields))
    with (
        mock.patch.object(type(weight), "device", OnGpu()),
        mock.patch("torch.cuda.get_device_capability", return_value=(9, 0)),
        pytest.raises(Declined, match=words),
    ):
        SCALED_MM.dequantize(weight, DTYPES[out])


def test_torchao_makes_nan_of_rows_of_zeros():
    oracle = next(o for o in FORMATS["gemm_cast_fp8"].oracles if o.name == "torchao")
    need(oracle)
    from oracles.upstream import load

    with pytest.raises(Declined, match="a scale of 0"):
        oracle.dequantize(CastInput(torch.zeros(2, 5)), torch.float32)
    calls = load("torchao.quantization.quant_primitives")
    x = torch.zeros(2, 5)
    codes = calls._quantize_affine_float8(x, calls._choose_scale_float8(x, [1, 5]))
    assert codes.float().isnan().all()


def test_compressed_tensors_loses_the_sign_of_a_zero_to_a_zero_point():
    oracle = next(o for o in FORMATS["gemm_cast_fp8"].oracles if o.name == "compressed-tensors")
    need(oracle)
    x = torch.tensor([[1.0, -0.0]])
    assert torch.signbit(oracle.dequantize(CastInput(x), torch.float32)).tolist() == [[False, True]]
    from oracles.upstream import load

    args = load("compressed_tensors.quantization").QuantizationArgs(
        num_bits=8, type="float", symmetric=True, strategy="token", dynamic=True
    )
    calls = load("compressed_tensors.quantization.lifecycle.forward")
    with_zero = calls.quantize(x, torch.ones(1, 1), torch.zeros(1, 1), args)
    assert torch.signbit(with_zero.float()).tolist() == [[False, False]]


def test_torchao_makes_the_scale_in_the_dtype_of_the_activations():
    """Why 16-bit activations are widened before they are handed over."""
    oracle = next(o for o in FORMATS["gemm_cast_fp8"].oracles if o.name == "torchao")
    need(oracle)
    from oracles.upstream import load

    weight = FORMATS["gemm_cast_fp8"].words(FORMATS["gemm_cast_fp8"].parse("M=3,K=33,xdtype=bf16"))
    calls = load("torchao.quantization.quant_primitives")
    wide, narrow = (calls._choose_scale_float8(x, [1, 33]) for x in (weight.x.float(), weight.x))
    assert not torch.equal(wide, narrow)
    assert torch.equal(narrow, narrow.bfloat16().float())
