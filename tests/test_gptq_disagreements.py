"""Where upstream libraries disagree about the same GPTQ weight, with the inputs that show it."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from kernels.gptq import GPTQWeight, Zeros
from oracles import autogptq
from oracles.autogptq import AUTOGPTQ, AUTOGPTQ_OLD
from oracles.base import Oracle
from oracles.gptqmodel import GPTQMODEL
from oracles.spec import gptq as spec
from oracles.upstream import load
from tests.gptq_weights import make, mismatches, with_codes, with_zeros
from tests.gptq_weights import pack as pack_fields

CPU = torch.device("cpu")
WIDTHS = [2, 3, 4, 8]

_reasons = [
    reason for oracle in (AUTOGPTQ, AUTOGPTQ_OLD, GPTQMODEL) if (reason := oracle.missing(CPU)) is not None
]
pytestmark = pytest.mark.skipif(bool(_reasons), reason="; ".join(_reasons))


def read_zeros(oracle: Oracle, stored: list[int], bits: int, zeros: Zeros) -> list[int]:
    """The zeros that an oracle reads from one row of 32 stored fields."""
    weight = make(bits, rows=32, cols=32, group_size=-1, zeros=zeros)
    weight = dataclasses.replace(weight, scales=torch.ones(1, 32), in_features=None)
    weight = with_codes(with_zeros(weight, [stored]), np.zeros((32, 32), dtype=np.int64))
    return [-int(value) for value in oracle.dequantize(weight, torch.float32)[0].tolist()]


@pytest.mark.parametrize("bits", WIDTHS)
def test_a_stored_zero_of_maxq_means_three_things(bits: int):
    """From the same words, one layer of AutoGPTQ reads maxq + 1, the other 0, GPTQModel's v2 maxq.

    https://github.com/AutoGPTQ/AutoGPTQ/pull/484
    """
    maxq = 2**bits - 1
    stored = [0] * 31 + [maxq]  # the last field of its word, so that nothing is carried into
    assert read_zeros(AUTOGPTQ, stored, bits, "v1-nowrap")[31] == maxq + 1
    old = autogptq.convention("auto_gptq.nn_modules.qlinear.qlinear_cuda_old", bits)
    assert read_zeros(AUTOGPTQ_OLD, stored, bits, old)[31] == (8 if bits == 3 else 0)
    assert read_zeros(GPTQMODEL, stored, bits, "v1")[31] == 0
    assert read_zeros(GPTQMODEL, stored, bits, "v2")[31] == maxq


@pytest.mark.parametrize(
    ("bits", "stored", "found"),
    [
        (2, [3, 1, 0, 0], [0, 3, 1, 1]),  # v1 says 0, 2, 1, 1
        (2, [3, 2, 0, 0], [0, 0, 2, 1]),  # v1 says 0, 3, 1, 1: the carry runs on
        (4, [15, 3, 0, 0], [0, 5, 1, 1]),  # v1 says 0, 4, 1, 1
        (8, [255, 7, 0, 0], [0, 9, 1, 1]),  # v1 says 0, 8, 1, 1
        (3, [7, 3, 0, 0], [0, 4, 1, 1]),  # right: 3 bit is converted field by field
    ],
)
def test_gptqmodel_v1_conversion_carries_into_the_next_field(bits: int, stored: list[int], found: list[int]):
    """A stored maxq makes the *next* zero one too large at 2, 4 and 8 bit."""
    assert read_zeros(GPTQMODEL, stored + [0] * 28, bits, "v1") == found + [1] * 28


def test_gptqmodel_converts_a_file_field_by_field():
    """Its dequantizer of checkpoint files decodes the same v1 zeros otherwise than its layers."""
    module = load("gptqmodel.utils.model_dequant")
    converted = module._correct_gptq_v1_qzeros(pack_fields([[15, 3] + [0] * 6], 4), 4)
    assert module.unpack_cols(converted, 4).tolist() == [[0, 4] + [1] * 6]


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_a_carry_out_of_the_last_field_of_a_word_is_lost(bits: int):
    per_word = 32 // bits
    stored = [0] * 32
    stored[per_word - 1] = 2**bits - 1
    want = [1] * 32
    want[per_word - 1] = 0
    assert read_zeros(GPTQMODEL, stored, bits, "v1") == want


def _pack(oracle: Oracle, bits: int, zeros: list[int], codes: np.ndarray, **options: Any) -> GPTQWeight:
    """Pack codes [32, 32] in one group with scales of one: the float weight is code - zero, exactly."""
    assert oracle.pack is not None
    scales = torch.ones(1, 32)
    weight = torch.from_numpy(codes - np.array([zeros])).float()
    return oracle.pack(weight, scales, torch.tensor([zeros]), bits=bits, group_size=-1, **options)


@pytest.mark.parametrize("bits", WIDTHS)
def test_gptqmodel_v2_to_v1_borrows_from_the_next_field(bits: int):
    """A zero of 0 becomes maxq, as v1 says, and takes 1 from the next at 2, 4 and 8 bit."""
    zeros = [0, 2] + [1] * 30
    packed = _pack(GPTQMODEL, bits, zeros, np.zeros((32, 32), dtype=np.int64), convention="v1")
    found = [2**bits - 1, 1 if bits == 3 else 0] + [0] * 30
    assert spec.stored_zeros(packed).tolist() == [found]


@pytest.mark.parametrize("oracle", [AUTOGPTQ, AUTOGPTQ_OLD], ids=lambda oracle: oracle.name)
@pytest.mark.parametrize("bits", WIDTHS)
def test_autogptq_packer_smears_a_zero_of_0(bits: int, oracle: Oracle):
    """It stores zero - 1 without a mask: -1 sets every bit above it in the 32-bit word."""
    zeros = [1] * 32
    zeros[2] = 0
    packed = _pack(oracle, bits, zeros, np.ones((32, 32), dtype=np.int64))
    assert int(packed.qzeros[0, 0]) == -(1 << (2 * bits))
    assert packed.qzeros[0, 1:].tolist() == [0] * (bits - 1)


def test_autogptq_packer_does_not_clamp_codes():
    """A code of 16 sets the lowest bit of the next one; GPTQModel clamps it to 15.

    https://github.com/ModelCloud/GPTQModel/pull/2963
    """
    codes = np.zeros((32, 32), dtype=np.int64)
    codes[0] = 16
    zeros = [1] * 32
    assert spec.unpack(_pack(AUTOGPTQ, 4, zeros, codes)).codes[:2, 0].tolist() == [0, 1]
    assert spec.unpack(_pack(GPTQMODEL, 4, zeros, codes)).codes[:2, 0].tolist() == [15, 0]


def test_gptqmodel_forward_rounds_twice_where_the_oracle_rounds_once():
    """float16 scales, bfloat16 input: the product is rounded to float16 first, then to bfloat16."""
    weight = make(8, rows=256, group_size=-1, zeros="v2")
    weight = dataclasses.replace(weight, scales=torch.full((1, 32), 1.9951171875, dtype=torch.float16))
    codes = np.tile(np.arange(256)[:, None], (1, 32))
    weight = with_codes(with_zeros(weight, np.zeros((1, 32))), codes)
    layer = load("gptqmodel.nn_modules.qlinear.torch").TorchLinear(
        bits=8, group_size=-1, desc_act=False, sym=False, in_features=256, out_features=32
    )
    layer.eval()
    layer.qweight, layer.qzeros, layer.scales = weight.qweight, weight.qzeros, weight.scales
    forward = layer(torch.eye(256, dtype=torch.bfloat16))
    once = GPTQMODEL.dequantize(weight, torch.bfloat16)
    twice = GPTQMODEL.dequantize(weight, torch.float16).to(torch.bfloat16)
    assert mismatches(weight, once) == 0
    assert torch.equal(forward, twice)
    assert forward[:, 0].ne(once[:, 0]).nonzero().flatten().tolist()[:4] == [7, 13, 14, 26]
