"""What upstream libraries make of GPTQ weights: where they agree with the exact model, and where not."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from kernels._packed import named_tensors
from kernels.gptq import GPTQWeight, Zeros
from oracles import autogptq, compressed_tensors, gptqmodel
from oracles.autogptq import AUTOGPTQ, AUTOGPTQ_OLD
from oracles.base import Declined
from oracles.compressed_tensors import COMPRESSED_TENSORS
from oracles.gptqmodel import GPTQMODEL, GPTQMODEL_FILE
from oracles.identity import identity
from oracles.spec import gptq as spec
from oracles.upstream import load
from tests.gptq_weights import Order, make, mismatches, with_zeros
from tests.gptq_weights import pack as pack_fields
from tests.kernel_weights import same_bits

CPU = torch.device("cpu")
DTYPES = [torch.float16, torch.bfloat16, torch.float32]
ORACLES = {
    oracle.name: oracle for oracle in (AUTOGPTQ, AUTOGPTQ_OLD, GPTQMODEL, GPTQMODEL_FILE, COMPRESSED_TENSORS)
}
WIDTHS = [2, 3, 4, 8]
dtype_ids = {"ids": lambda dtype: str(dtype).removeprefix("torch.")}

_reasons = [reason for oracle in ORACLES.values() if (reason := oracle.missing(CPU)) is not None]
pytestmark = [
    pytest.mark.skipif(bool(_reasons), reason="; ".join(_reasons)),
    pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning"),
]


def without_maxq(weight: GPTQWeight) -> GPTQWeight:
    """The weight with every stored zero of maxq lowered by one."""
    return with_zeros(weight, np.minimum(spec.stored_zeros(weight), 2**weight.bits - 2))


# --- agreement --------------------------------------------------------------------------

# What each oracle answers in full: the convention, and the orders of rows.
ANSWERS: list[tuple[str, Zeros, Order]] = [
    ("autogptq", "v1-nowrap", "none"),
    ("autogptq", "v1-nowrap", "permuted"),
    ("autogptq", "v1-nowrap", "unequal"),
    ("gptqmodel", "v2", "none"),
    ("gptqmodel", "v2", "permuted"),
    ("gptqmodel", "v2", "unequal"),
    ("gptqmodel-file", "v1", "none"),
    ("gptqmodel-file", "v1", "permuted"),
    ("gptqmodel-file", "v2", "unequal"),
    ("compressed-tensors", "v2", "none"),
]


@pytest.mark.parametrize("group_size", [-1, 32, 64], ids="g{}".format)
@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize(("name", "zeros", "order"), ANSWERS)
def test_oracle_gives_the_exact_model(name: str, zeros: Zeros, order: Order, bits: int, group_size: int):
    weight = make(bits, rows=128, cols=64, group_size=group_size, zeros=zeros, order=order)
    for dtype in DTYPES:
        assert mismatches(weight, ORACLES[name].dequantize(weight, dtype)) == 0


@pytest.mark.parametrize("bits", WIDTHS)
def test_old_layer_gives_the_exact_model_of_its_convention(bits: int):
    zeros = autogptq.convention("auto_gptq.nn_modules.qlinear.qlinear_cuda_old", bits)
    assert zeros == ("v1-nowrap" if bits == 3 else "v1")
    weight = make(bits, rows=128, cols=64, group_size=32, zeros=zeros)
    weight = with_zeros(weight, np.where(np.arange(64) % 5, spec.stored_zeros(weight), 2**bits - 1))
    assert mismatches(weight, AUTOGPTQ_OLD.dequantize(weight, torch.float16)) == 0


@pytest.mark.parametrize("zeros", ["v1", "v1-nowrap"])
@pytest.mark.parametrize("name", ["autogptq", "autogptq-old", "gptqmodel"])
@pytest.mark.parametrize("bits", WIDTHS)
def test_without_a_stored_maxq_the_v1_conventions_are_one(bits: int, name: str, zeros: Zeros):
    weight = without_maxq(make(bits, zeros=zeros, group_size=32))
    assert mismatches(weight, ORACLES[name].dequantize(weight, torch.float16)) == 0


@pytest.mark.parametrize("dtype", DTYPES, **dtype_ids)
@pytest.mark.parametrize("scale_dtype", DTYPES, **dtype_ids)
@pytest.mark.parametrize(("name", "zeros", "order"), ANSWERS)
def test_extreme_scales(name: str, zeros: Zeros, order: Order, scale_dtype: torch.dtype, dtype: torch.dtype):
    """Infinite, NaN, subnormal, zero of either sign: an identity matrix of numbers would blur these."""
    weight = make(4, rows=64, group_size=32, zeros=zeros, order=order, scale_dtype=scale_dtype)
    special = [0.0, -0.0, -1.0, 6e-8, 5000.0, 65504.0, 1e-40, 3e38, float("inf"), float("-inf"), float("nan")]
    row = torch.tensor((special * 3)[:32], dtype=torch.float64).to(scale_dtype)
    weight = dataclasses.replace(weight, scales=row.repeat(2, 1))
    assert mismatches(weight, ORACLES[name].dequantize(weight, dtype)) == 0


@pytest.mark.parametrize(("rows", "cols", "group_size"), [(37, 19, 16), (96, 40, 64), (1, 1, -1)])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_gptqmodel_allows_any_size_and_a_short_last_group(bits: int, rows: int, cols: int, group_size: int):
    weight = make(bits, rows=rows, cols=cols, group_size=group_size, zeros="v2", order="permuted")
    assert mismatches(weight, GPTQMODEL.dequantize(weight, torch.float16)) == 0


def test_autogptq_allows_a_short_last_group():
    weight = make(4, rows=96, group_size=64, zeros="v1-nowrap", order="permuted")
    assert mismatches(weight, AUTOGPTQ.dequantize(weight, torch.float16)) == 0


@pytest.mark.parametrize(("name", "zeros", "order"), ANSWERS)
def test_inputs_are_not_written(name: str, zeros: Zeros, order: Order):
    weight, untouched = (make(4, group_size=32, zeros=zeros, order=order) for _ in range(2))
    ORACLES[name].dequantize(weight, torch.float16)
    for (field, now), (_, before) in zip(named_tensors(weight), named_tensors(untouched), strict=True):
        assert same_bits(now, before), field


def test_v1_conversion_does_not_write_the_weight():
    weight = make(4, group_size=32, zeros="v1")
    before = weight.qzeros.clone()
    GPTQMODEL.dequantize(weight, torch.float16)
    assert torch.equal(weight.qzeros, before)


DECLINED: list[tuple[str, dict[str, Any], str]] = [
    ("autogptq", {"zeros": "v2"}, "reads stored zeros as v1-nowrap, the weight has v2"),
    ("autogptq", {"zeros": "v1"}, "reads stored zeros as v1-nowrap, the weight has v1"),
    ("autogptq", {"rows": 40}, "packs K in 32s, and K is 40"),
    ("autogptq", {"cols": 40}, "packs N in 32s, and N is 40"),
    ("autogptq", {"rows": 0}, "packs K in 32s, and K is 0"),
    ("autogptq-old", {"zeros": "v1-nowrap"}, "reads stored zeros as v1, the weight has v1-nowrap"),
    ("autogptq-old", {"order": "permuted"}, "ignores g_idx"),
    ("autogptq-old", {"rows": 96, "group_size": 64}, "needs whole groups, and K is 96"),
    ("gptqmodel", {"zeros": "v1-nowrap"}, "wraps a stored zero of maxq to 0"),
    ("gptqmodel", {"group_size": 24}, "does not take this layer"),
    ("gptqmodel", {"rows": 0}, "zero elements"),
    ("gptqmodel-file", {"zeros": "v1-nowrap"}, "wraps a stored zero of maxq to 0"),
    ("gptqmodel-file", {"rows": 33}, "knows no padding, and the weight is 33 x 32"),
    ("gptqmodel-file", {"rows": 0}, "zero elements"),
    ("compressed-tensors", {}, "reads zeros as they are stored, the weight has v1"),
    ("compressed-tensors", {"zeros": "v2", "order": "permuted"}, "takes no group index"),
    ("compressed-tensors", {"zeros": "v2", "rows": 96, "group_size": 64}, "needs whole groups"),
]


@pytest.mark.parametrize(("name", "changes", "reason"), DECLINED)
def test_declined(name: str, changes: dict[str, Any], reason: str):
    with pytest.raises(Declined, match=reason):
        ORACLES[name].dequantize(make(4, **changes), torch.float16)


# --- packers ------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["none", "permuted"])
@pytest.mark.parametrize("bits", WIDTHS)
def test_packers_write_the_same_words(bits: int, order: Order):
    """AutoGPTQ, both packers of GPTQModel and compressed-tensors; each checks the others."""
    model = spec.unpack(make(bits, rows=64, group_size=32, zeros="v2", order=order))
    zeros = np.clip(model.stored, 1, None)  # AutoGPTQ cannot store 0
    scales = torch.exp2(torch.arange(64).reshape(2, 32) % 5 - 2.0)  # powers of two: no rounding
    weight = torch.from_numpy((model.codes - zeros[model.group]) * scales.numpy()[model.group]).float()
    options: dict[str, Any] = {"bits": bits, "group_size": 32}
    if order != "none":
        options["g_idx"] = torch.from_numpy(model.group).to(torch.int32)
    arguments = (weight, scales, torch.from_numpy(zeros))
    assert AUTOGPTQ.pack is not None
    assert GPTQMODEL.pack is not None
    packed = [AUTOGPTQ.pack(*arguments, **options)]
    packed += [GPTQMODEL.pack(*arguments, **options, packer=packer) for packer in ("block", "original")]
    for found in packed:
        found.validate(deep=True)
        assert torch.equal(found.qweight, packed[0].qweight)
        assert np.array_equal(spec.unpack(found).codes, model.codes)
        assert np.array_equal(spec.unpack(found).zeros, zeros)
    codes = torch.from_numpy(model.codes)
    assert torch.equal(compressed_tensors.pack_codes(codes, bits), packed[0].qweight)
    assert torch.equal(compressed_tensors.pack_zeros(torch.from_numpy(zeros), bits), packed[1].qzeros)
    assert torch.equal(pack_fields(model.codes.T, bits).t(), packed[0].qweight)
    if bits != 3:
        assert torch.equal(
            gptqmodel.GPTQMODEL.pack(*arguments, **options, convention="v1").qzeros, packed[0].qzeros
        )


def test_packers_do_not_write_their_arguments():
    for oracle in (AUTOGPTQ, AUTOGPTQ_OLD, GPTQMODEL):
        weight, scales = torch.ones(32, 32), torch.ones(1, 32)
        zeros = torch.full((1, 32), 3, dtype=torch.int32)
        assert oracle.pack is not None
        oracle.pack(weight, scales, zeros, bits=4, group_size=-1)
        assert bool((weight == 1).all() and (scales == 1).all() and (zeros == 3).all()), oracle.name


# --- the identity -------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, **dtype_ids)
def test_a_real_identity_matrix_gives_the_same_finite_values(dtype: torch.dtype):
    """As numbers; as bits but for the sign of zero, which a sum does not keep."""
    weight = make(4, rows=64, group_size=32, zeros="v1-nowrap", order="permuted", scale_dtype=dtype)
    module = load("auto_gptq.nn_modules.qlinear.qlinear_cuda")
    layer = module.QuantLinear(4, 32, 64, 32, False, weight_dtype=dtype)
    layer.qweight, layer.qzeros, layer.scales, layer.g_idx = (
        weight.qweight,
        weight.qzeros,
        weight.scales,
        weight.g_idx,
    )
    assert torch.equal(layer(torch.eye(64, dtype=dtype)), AUTOGPTQ.dequantize(weight, dtype))


def test_identity_answers_a_product_and_nothing_else():
    factor = torch.randn(8, 4)
    operand = identity(8, dtype=torch.float32, device=CPU)
    assert torch.matmul(operand, factor) is factor
    assert (operand @ factor) is factor
    assert operand.reshape(-1, operand.shape[-1]).matmul(factor) is factor
    for misuse in (
        lambda: operand + 1,
        lambda: operand.to(torch.float16),
        lambda: torch.nn.functional.linear(operand, factor.t()),
        lambda: torch.matmul(factor.t(), operand),
        lambda: torch.matmul(operand, factor.to(torch.float16)),
        lambda: torch.matmul(operand, factor[:4]),
    ):
        with pytest.raises(Declined):
            misuse()
