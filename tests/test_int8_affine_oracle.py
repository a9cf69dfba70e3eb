"""Upstream's answers for int8_affine: equal to the spec, or declined; and where upstream differs."""

from __future__ import annotations

import dataclasses
import warnings

import numpy as np
import pytest
import torch

from kernels.int8_affine import Int8AffineWeight
from oracles.base import Declined, Oracle
from oracles.compressed_tensors_int8 import COMPRESSED_TENSORS
from oracles.spec.int8_affine import unpack
from oracles.torch_int8 import TORCH, TORCH_DECOMPOSED
from oracles.torchao_int8 import TORCHAO, TORCHAO_TENSOR
from tests.int8_affine_weights import PER, make, mismatches
from tests.kernel_weights import DTYPES

CPU = torch.device("cpu")
ORACLES = [TORCH, TORCH_DECOMPOSED, TORCHAO, TORCHAO_TENSOR, COMPRESSED_TENSORS]
# What each one answers: granularities and dtypes of codes.
ANSWERS = {
    "torch": (("tensor", "row", "column"), (torch.int8, torch.uint8)),
    "torch-decomposed": (tuple(PER), (torch.int8, torch.uint8)),
    "torchao": (tuple(PER), (torch.int8, torch.uint8)),
    "torchao-tensor": (("tensor", "row"), (torch.int8,)),
    "compressed-tensors": (("tensor", "row", "group"), (torch.int8,)),
}
by_name = {"ids": lambda oracle: oracle.name}


def need(oracle: Oracle) -> None:
    reason = oracle.missing(CPU)
    if reason:
        pytest.skip(reason)


@pytest.mark.parametrize("oracle", ORACLES, **by_name)
@pytest.mark.parametrize("per", PER)
@pytest.mark.parametrize("codes", [torch.int8, torch.uint8], ids=str)
@pytest.mark.parametrize("zero", ["none", "same", "int32"])
def test_upstream_equals_the_spec_or_declines(oracle, per, codes, zero):
    need(oracle)
    granularities, dtypes = ANSWERS[oracle.name]
    for scale in DTYPES:
        weight = make(per, shape=(5, 40), codes=codes, zero=zero, scale=scale)
        for dtype in DTYPES:
            if per not in granularities or codes not in dtypes:
                with pytest.raises(Declined):
                    oracle.dequantize(weight, dtype)
                continue
            got = oracle.dequantize(weight, dtype)
            assert got.dtype == dtype
            assert mismatches(weight, got) == 0


@pytest.mark.parametrize("oracle", ORACLES, **by_name)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("scale", DTYPES, ids=str)
def test_extreme_scales(oracle, scale, dtype):
    need(oracle)
    values = [0.0, -0.0, 6e-8, 1e-40, 1e-45, 65504.0, 3e38, -3e38, float("inf"), float("nan"), -1.5]
    weight = make("row", shape=(len(values), 256), zero="same")
    weight = dataclasses.replace(
        weight,
        codes=torch.arange(256).to(torch.uint8).view(torch.int8).repeat(len(values), 1),
        scale=torch.tensor(values, dtype=torch.float64).to(scale),
    )
    assert mismatches(weight, oracle.dequantize(weight, dtype)) == 0


@pytest.mark.parametrize("oracle", ORACLES, **by_name)
def test_no_elements_are_declined(oracle):
    need(oracle)
    with pytest.raises(Declined, match="zero elements"):
        oracle.dequantize(make("row", shape=(0, 8)), torch.float32)


@pytest.mark.parametrize("oracle", [TORCH_DECOMPOSED, TORCHAO, COMPRESSED_TENSORS], **by_name)
def test_a_short_last_group_is_declined(oracle):
    need(oracle)
    with pytest.raises(Declined, match="whole groups"):
        oracle.dequantize(make("group", shape=(5, 37)), torch.float32)


@pytest.mark.parametrize("oracle", [o for o in ORACLES if o.pack is not None], **by_name)
@pytest.mark.parametrize("per", PER)
@pytest.mark.parametrize("codes", [torch.int8, torch.uint8], ids=str)
@pytest.mark.parametrize("zero", ["none", "same"])
def test_packers_round_to_nearest(oracle, per, codes, zero):
    """Values on a quarter of a step: no tie and nothing near one, so every packer agrees."""
    need(oracle)
    granularities, dtypes = ANSWERS[oracle.name]
    if per not in granularities or codes not in dtypes:
        return
    want = make(per, shape=(5, 40), codes=codes, zero=zero)
    want = dataclasses.replace(want, scale=want.scale.abs())
    model = unpack(want)
    floats = torch.from_numpy(
        model.values() + np.float32(0.25) * model.scales[model.place].astype(np.float32)
    )
    got = oracle.pack(
        floats,
        want.scale,
        want.zero_point,
        dtype=codes,
        granularity=want.granularity,
        axis=want.axis,
        group_size=want.group_size,
    )
    assert torch.equal(got.codes, want.codes)


def test_asking_torch_leaves_no_deprecation_notice():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TORCH.dequantize(make("row"), torch.float32)


# --- where upstream differs ---------------------------------------------------------------------


def per_channel(weight: Int8AffineWeight, scale: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
    need(TORCH_DECOMPOSED)
    TORCH_DECOMPOSED.dequantize(weight, torch.float32)  # registers the operators
    return torch.ops.quantized_decomposed.dequantize_per_channel(
        weight.codes, scale, zero, 0, -128, 127, torch.int8, out_dtype=torch.float32
    )


def test_decomposed_subtracts_eight_bit_zero_points_in_eight_bits():
    weight = make("row", zero="same")
    assert weight.zero_point is not None
    wide = per_channel(weight, weight.scale, weight.zero_point.long())
    assert mismatches(weight, wide) == 0
    narrow = per_channel(weight, weight.scale, weight.zero_point)
    model = unpack(weight)
    step = model.codes - model.zeros[model.zero_place]
    wraps = np.abs(step + 0.5) > 128
    assert wraps.any()
    assert ((narrow.numpy() != wide.numpy()) == wraps).all()


def test_decomposed_multiplies_in_the_dtype_of_the_scale():
    weight = make("row", zero="same", scale=torch.float16)
    zero = weight.zero_point.long()  # type: ignore[union-attr]
    assert mismatches(weight, per_channel(weight, weight.scale.float(), zero)) == 0
    got = per_channel(weight, weight.scale, zero)
    assert got.dtype == torch.float32
    assert torch.equal(got, got.half().float())  # float32 in name only
    assert mismatches(weight, got) > 0


@pytest.mark.parametrize("per", ["tensor", "row"])
def test_torch_refuses_a_zero_point_out_of_range(per):
    weight = make(per, zero="int32")
    assert weight.zero_point is not None
    weight.zero_point[0] = 300
    with pytest.raises(RuntimeError, match="zero_point 300 is above upper bound"):
        TORCH.dequantize(weight, torch.float32)


def test_torch_has_another_arithmetic_for_float_zero_points():
    """``quint8`` with float zero points decodes to (q - z) * s in float, as HQQ; not this format."""
    codes = torch.tensor([[0, 7, 255]], dtype=torch.uint8)
    scale, zero = torch.tensor([0.5]), torch.tensor([1.25])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        held = torch._make_per_channel_quantized_tensor(codes, scale, zero, 0)
    assert held.qscheme() == torch.per_channel_affine_float_qparams
    with pytest.raises(TypeError, match="zero_point: expected dtype"):
        Int8AffineWeight(codes, scale, zero, "channel", axis=0).validate()


def test_torchao_quantizes_with_zero_points_only():
    """Its ``dequantize_affine`` takes None, its ``quantize_affine`` does not: the adapter gives zeros."""
    need(TORCHAO)
    from oracles.upstream import load

    primitives = load("torchao.quantization.quant_primitives")
    with pytest.raises(TypeError):
        primitives.quantize_affine(torch.ones(1, 4), [1, 4], torch.ones(1), None, torch.int8)
