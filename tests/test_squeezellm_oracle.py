"""Recorded answers of the original kernels, and the packers that write the same bits."""

from __future__ import annotations

import dataclasses
import hashlib

import numpy as np
import pytest
import torch

from conformance.bits import to_bits
from conformance.registry import parse_case
from kernels.squeezellm import dequantize
from oracles import squeezellm as oracles
from oracles.base import Declined
from oracles.spec.rounding import round_to
from oracles.spec.squeezellm import unpack
from tests.gptq_weights import pack
from tests.harness_runs import harness
from tests.kernel_weights import DEVICE, DTYPES, bits
from tests.squeezellm_weights import make

if DEVICE.type == "cpu":
    from conformance import interpreter

    interpreter.correct()

NAMES = oracles.recorded_names()
CPU = torch.device("cpu")


def skip_without(oracle) -> None:
    reason = oracle.missing(CPU)
    if reason:
        pytest.skip(reason)


def test_nine_cases_are_recorded_and_the_file_is_the_one_described():
    assert " ".join(NAMES) == (
        "w4 w3 w4_k256_n384 w3_k384_n256 w4_dup w4_sparse w3_sparse w4_hybrid w3_hybrid"
    )
    digest = hashlib.sha256(oracles.RECORDED.read_bytes()).hexdigest()
    assert digest in oracles.RECORDED.with_suffix(".txt").read_text(encoding="utf-8")
    assert oracles.SQUEEZELLM.missing(CPU) is None
    assert oracles.SQUEEZELLM.provenance().kind == "recorded"


@pytest.mark.parametrize("name", NAMES)
def test_spec_gives_the_recorded_bits(name):
    """But for the sign of a zero, which a sum of products does not show."""
    case = oracles.recorded_case(name)
    case.weight.validate(deep=True)
    model = unpack(case.weight)
    assert np.array_equal(model.codes, case.codes.numpy())
    got, want = model.values(), case.answer.numpy()
    differ = got.view(np.uint32) != want.view(np.uint32)
    assert (got[differ] == 0).all()
    assert np.signbit(got[differ]).all()
    assert not np.signbit(want[differ]).any()
    assert int(differ.sum()) == (1711 if name == "w4_dup" else 0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_kernel_gives_the_recorded_values(name, dtype):
    case = oracles.recorded_case(name)
    on_device = oracles.SqueezeLLMWeight(
        **{
            field.name: value.to(DEVICE) if isinstance(value, torch.Tensor) else value
            for field in dataclasses.fields(case.weight)
            for value in [getattr(case.weight, field.name)]
        }
    )
    got = dequantize(on_device, dtype=dtype, packed_rows=16).cpu()
    assert (to_bits(got) == round_to(unpack(case.weight).values(), dtype)).all()
    answer = oracles.SQUEEZELLM.dequantize(case.weight, dtype)
    assert answer.dtype == dtype
    assert torch.equal(got, answer)  # +0 equals -0 here; the test above says where


@pytest.mark.parametrize("name", ["w4_hybrid", "w3_hybrid"])
def test_no_other_order_of_the_sums_gives_the_recorded_bits(name):
    case = oracles.recorded_case(name)
    model = unpack(case.weight)
    outlier, full = np.zeros_like(model.dense()), np.zeros_like(model.dense())
    outlier[model.outlier_k, model.outlier_n] = model.outlier_values
    full[:, model.full_n] = model.full
    want = case.answer.numpy()
    assert ((model.dense() + outlier) + full == want).all()
    assert not (model.dense() + (outlier + full) == want).all()
    assert not ((model.dense() + full) + outlier == want).all()


@pytest.mark.parametrize("change", ["qweight", "lookup_table", "full_rows"])
def test_recorded_oracle_answers_for_nothing_else(change):
    weight = oracles.recorded_case("w4").weight
    if change == "full_rows":
        none = torch.zeros(0, dtype=torch.int32)
        weight = dataclasses.replace(weight, full_rows=torch.zeros(128, 0), full_row_indices=none)
    else:
        tensor = getattr(weight, change).clone()
        tensor.view(torch.int32)[3, 3] ^= 1
        weight = dataclasses.replace(weight, **{change: tensor})
    with pytest.raises(Declined, match=r"^recorded vectors only$"):
        oracles.SQUEEZELLM.dequantize(weight, torch.float32)


@pytest.mark.parametrize(
    ("oracle", "packer"),
    [
        (oracles.AUTOGPTQ, oracles.pack_autogptq),
        (oracles.COMPRESSED_TENSORS, oracles.pack_compressed_tensors),
    ],
    ids=["autogptq", "compressed-tensors"],
)
@pytest.mark.parametrize("name", NAMES)
def test_packers_of_other_projects_write_the_recorded_words(name, oracle, packer):
    skip_without(oracle)
    case = oracles.recorded_case(name)
    assert torch.equal(packer(case.codes, case.weight.bits), case.weight.qweight)


@pytest.mark.parametrize("bits_", [3, 4])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("table", [torch.float32, torch.float16], ids=str)
def test_torchao_looks_up_what_the_spec_says(bits_, table, dtype):
    skip_without(oracles.TORCHAO)
    weight = make(bits_, table=table, sparse=False, full=0)
    special = torch.tensor([float("inf"), -0.0, 1e-7, float("nan"), 65519.0, -1e-40])
    weight.lookup_table[:, 1:7] = special.to(table)
    got = oracles.TORCHAO.dequantize(weight, dtype)
    want = round_to(unpack(weight).values(), dtype)
    nan = got.isnan().numpy()
    assert ((to_bits(got) == want) | nan).all()
    assert torch.equal(oracles.unpack_codes(weight), torch.from_numpy(unpack(weight).codes))


def test_torchao_declines_what_it_has_no_notion_of():
    for weight in (make(full=0), make(sparse=False)):
        with pytest.raises(Declined, match="no outliers and no full rows"):
            oracles.TORCHAO.dequantize(weight, torch.float32)


@pytest.mark.parametrize("oracle", [oracles.AUTOGPTQ, oracles.COMPRESSED_TENSORS], ids=lambda o: o.name)
def test_packers_decode_nothing_and_are_not_asked(oracle):
    assert oracle.dequantize is None
    checked = harness(oracles=None).judge(parse_case("squeezellm:sparse=few(1)"))
    assert not any(note.startswith(oracle.name) for note in checked.verdict.notes)


@pytest.mark.parametrize("bits_", [3, 4])
def test_spec_unpacks_a_stream_packed_another_way(bits_):
    codes = np.random.default_rng(1).integers(0, 2**bits_, (64, 5))
    weight = make(bits_, cols=5, sparse=False, full=0)
    weight = dataclasses.replace(weight, qweight=pack(codes.T, bits_).t().contiguous())
    assert np.array_equal(unpack(weight).codes, codes)
    assert bits(torch.from_numpy(unpack(weight).values())).shape == (64, 5)
