"""AutoAWQ's and GPTQModel's answers for AWQ weights, and AutoAWQ's faults pinned where they are."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from kernels import awq_quads
from kernels._packed import named_tensors
from oracles import autoawq, autoawq_triton, gptqmodel_awq
from oracles.base import Declined, Oracle
from tests.awq_weights import cols, differences, quads, random_bits, rows, unpack, want
from tests.kernel_weights import bits

CPU = torch.device("cpu")
DTYPES = [pytest.param(dtype, id=str(dtype)[6:]) for dtype in (torch.float16, torch.bfloat16, torch.float32)]
COLS = [autoawq.COLS, autoawq_triton.COLS, gptqmodel_awq.COLS]
ROWS = [autoawq.ROWS, gptqmodel_awq.ROWS]


def each(oracles: list[Oracle]) -> Any:
    return pytest.mark.parametrize("oracle", oracles, ids=[oracle.name for oracle in oracles])


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with np.errstate(all="ignore"):
        yield


def need(oracle: Oracle, weight: Any) -> None:
    reason = oracle.missing(weight.device)
    if reason:
        pytest.skip(f"{oracle.name}: {reason}")


def agrees(oracle: Oracle, weight: Any, dtype: torch.dtype) -> None:
    need(oracle, weight)
    before = [bits(tensor).clone() for _, tensor in named_tensors(weight)]
    assert differences(oracle.dequantize(weight, dtype).cpu(), want(weight, dtype)) == 0
    after = [bits(tensor) for _, tensor in named_tensors(weight)]
    assert all(torch.equal(*pair) for pair in zip(before, after, strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", DTYPES)
@pytest.mark.parametrize("shape", [(64, 40, 32), (33, 8, -1), (33, 16, 64), (1, 8, 4), (192, 24, 64)])
@each(COLS)
def test_cols_equal_the_model(oracle, shape, scale, dtype):
    agrees(oracle, cols(*shape, scale), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(15, 72, 5), (14, 24, 7), (8, 40, 1)])
@each([autoawq.COLS, gptqmodel_awq.COLS])
def test_cols_with_any_group_size(oracle, shape, dtype):
    agrees(oracle, cols(*shape), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", DTYPES)
@pytest.mark.parametrize("shape", [(128, 8, -1), (64, 8, 16), (192, 16, 64), (264, 8, 132), (96, 24, 32)])
@each(ROWS)
def test_rows_equal_the_model(oracle, shape, scale, dtype):
    agrees(oracle, rows(*shape, scale), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(64, 4, -1), (64, 8, 16), (192, 12, 64), (2112, 4, 132)])
def test_quads_equal_the_model(shape, dtype):
    agrees(autoawq.QUADS, quads(*shape), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [5000.0, 65504.0, 2.0**-24, -0.0, float("inf"), float("nan")])
@each(COLS)
def test_cols_with_extreme_scales(oracle, value, dtype):
    weight = cols(32, 16, 32)
    agrees(oracle, dataclasses.replace(weight, scales=torch.full_like(weight.scales, value)), dtype)


def test_provenance_says_package_callable_and_kind():
    assert str(autoawq.QUADS.provenance()).endswith("gemv_fast.pack_intweight, inverted)")
    assert autoawq.QUADS.provenance().kind == "identity probe"
    assert {oracle.provenance().package for oracle in COLS} == {"autoawq", "gptqmodel"}
    assert len({oracle.name for oracle in COLS}) == 3


# --- Packers -------------------------------------------------------------------------------


def layer(n_rows: int, outputs: int, group_size: int) -> tuple[torch.Tensor, ...]:
    """Codes [K, N], zeros [G, N], scales [G, N] and the float32 weight [N, K] that they stand for."""
    groups = n_rows // group_size
    codes = (random_bits(5, (n_rows, outputs), torch.int32) & 15).to(torch.int64)
    zeros = (random_bits(6, (groups, outputs), torch.int32) & 15).to(torch.int64)
    steps = (random_bits(7, (groups, outputs), torch.int32) & 1023) + 1
    scales = (steps * 2.0**-13).to(torch.float32)  # exact in float16
    spread = [table.repeat_interleave(group_size, dim=0) for table in (zeros, scales)]
    return codes, zeros, scales, ((codes - spread[0]) * spread[1]).T.contiguous()


@pytest.mark.parametrize("shape", [(64, 32, 32), (96, 64, 96), (40, 32, 8)])
def test_gemm_packer_writes_the_layout(shape):
    need(autoawq.COLS, cols(8, 8, 8))
    codes, zeros, scales, floats = layer(*shape)
    weight = autoawq.pack_cols(floats, scales, zeros, shape[2])
    weight.validate(deep=True)
    model = unpack(weight)
    assert np.array_equal(model.codes, codes)
    assert np.array_equal(model.zeros, zeros)
    assert np.array_equal(model.scales, scales)


@pytest.mark.parametrize("shape", [(64, 8, 32), (256, 16, 128), (1024, 8, 64), (1056, 8, 132), (160, 8, 160)])
def test_gemv_packer_writes_the_layout(shape):
    need(autoawq.ROWS, cols(8, 8, 8))
    codes, zeros, scales, floats = layer(*shape)
    weight = autoawq.pack_rows(floats, scales, zeros, shape[2])
    weight.validate(deep=True)
    model = unpack(weight)
    assert np.array_equal(model.codes, codes)
    assert np.array_equal(model.zeros, zeros)
    assert np.array_equal(model.scales, scales)


@pytest.mark.parametrize("shape", [(64, 8, 32), (256, 16, 128), (1024, 8, 64), (2112, 8, 132)])
def test_gemvfast_packer_writes_the_layout(shape):
    need(autoawq.QUADS, cols(8, 8, 8))
    codes, zeros, scales, floats = layer(*shape)
    weight = autoawq.pack_quads(floats, scales, zeros, shape[2])
    weight.validate(deep=True)
    model = unpack(weight)
    assert np.array_equal(model.codes, codes)
    assert np.array_equal(model.scales, scales)
    scaled = -(zeros.numpy() * scales.numpy().astype(np.float64)).astype(np.float16)
    assert np.array_equal(model.scaled_zeros.astype(np.float16).view(np.uint16), scaled.view(np.uint16))


@pytest.mark.parametrize("shape", [(16, 8, 8), (6, 40, 3)])
def test_both_libraries_pack_the_same_words(shape):
    need(gptqmodel_awq.COLS, cols(8, 8, 8))
    codes, zeros, scales, _ = layer(*shape)
    ours, theirs = (
        pack(codes, zeros, scales, shape[2]) for pack in (autoawq.pack_codes, gptqmodel_awq.pack_codes)
    )
    assert torch.equal(ours.qweight, theirs.qweight)
    assert torch.equal(ours.qzeros, theirs.qzeros)
    assert np.array_equal(unpack(ours).codes, codes)
    assert np.array_equal(unpack(ours).zeros, zeros)


# --- What upstream does not accept ---------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (
            lambda: autoawq_triton.COLS.dequantize(cols(48, 8, 16), torch.float16),
            "groups of 32, 64, 128 and K, found 16",
        ),
        (lambda: autoawq.ROWS.dequantize(rows(64, 3, 64), torch.float16), "found N = 3, K = 64"),
        (lambda: autoawq.pack_cols(*_floats(64, 40), 64), "multiples of 32 columns only, found N = 40"),
        (lambda: autoawq.pack_cols(*_floats(64, 32), 48), "divides K = 64, found 48"),
        (lambda: autoawq.pack_rows(*_floats(96, 8), -1), "groups of 32, 64, and 128 or more, found 96"),
        (lambda: autoawq.pack_rows(*_floats(136, 8), -1), "multiples of 32 codes only, found K = 136"),
        (lambda: autoawq.pack_quads(*_floats(160, 8), -1), "multiples of 64 codes only, found K = 160"),
        (lambda: autoawq.pack_quads(*_floats(64, 4), -1), "found N = 4, K = 64"),
    ],
)
def test_declined_with_a_reason(call, reason):
    with pytest.raises(Declined) as caught:
        call()
    assert reason in caught.value.reason


def _floats(n_rows: int, outputs: int) -> tuple[torch.Tensor, ...]:
    return torch.zeros(outputs, n_rows), torch.ones(1, outputs), torch.zeros(1, outputs, dtype=torch.int64)


# --- Faults of AutoAWQ 0.2.9 ---------------------------------------------------------------


@pytest.mark.parametrize("group_size", [-1, 128])
def test_fault_dequantize_gemm_raises_for_one_group_that_is_not_called_k(group_size):
    weight = cols(64, 8, -1)
    need(autoawq.COLS, weight)
    call = autoawq.upstream_module(autoawq.PACKING).dequantize_gemm
    with pytest.raises(RuntimeError):
        call(weight.qweight, weight.qzeros, weight.scales, 4, group_size)


def test_fault_dequantize_gemm_returns_more_rows_than_the_weight_has():
    """One row is broadcast over its group."""
    weight = cols(1, 8, 4)
    need(autoawq.COLS, weight)
    call = autoawq.upstream_module(autoawq.PACKING).dequantize_gemm
    assert call(weight.qweight, weight.qzeros, weight.scales, 4, 4).shape == (4, 8)


@pytest.mark.parametrize(
    ("code", "found"), [(16, [0, 0, 1, 0, 0, 0, 0, 0]), (-1, [15] * 8)], ids=["code16", "code-1"]
)
def test_fault_packer_spills_codes_out_of_range(code, found):
    """Column 2 is in the slot above column 0. See https://github.com/intel/auto-round/pull/2273."""
    need(autoawq.COLS, cols(8, 8, 8))
    floats, scales, zeros = _floats(8, 32)
    floats[0] = code
    assert unpack(autoawq.pack_cols(floats, scales, zeros, 8)).codes[0, :8].tolist() == found


def test_fault_packer_computes_codes_in_float16():
    """(W + z * s) / s is 15.4963; in float16 it rounds to 15.5 and the code to 16, which spills."""
    need(autoawq.COLS, cols(8, 8, 8))
    floats, scales, zeros = _floats(8, 32)
    floats[0], scales[:], zeros[:] = 0.494140625, 0.06591796875, 8
    right = unpack(autoawq.pack_cols(floats, scales, zeros, 8)).codes
    wrong = unpack(autoawq.pack_cols(floats.half(), scales.half(), zeros, 8)).codes
    assert right[0, :8].tolist() == [15, 8, 8, 8, 8, 8, 8, 8]
    assert wrong[0, :8].tolist() == [0, 8, 9, 8, 8, 8, 8, 8]


def test_fault_repack_to_exllama_corrupts_the_slot_after_a_zero_of_0():
    """A borrow: see https://github.com/ModelCloud/GPTQModel/issues/2350."""
    weight = cols(8, 8, 8)
    need(autoawq.COLS, weight)
    zeros = torch.tensor([[0, 5, 7, 3, 1, 0, 9, 15]])
    weight = autoawq.pack_codes(torch.arange(8).repeat(8, 1), zeros, weight.scales, 8)

    def read(converter: Any) -> list[int]:
        stored = int(autoawq.to_exllama(weight, converter)[1])
        return [((stored >> (4 * slot)) + 1) & 15 for slot in range(8)]

    assert read("awq_to_exllama") == zeros[0].tolist()
    assert read("unpack_reorder_pack") == [0, 4, 7, 3, 1, 0, 8, 15]
    codes = [autoawq.to_exllama(weight, name)[0] for name in ("awq_to_exllama", "unpack_reorder_pack")]
    assert torch.equal(*codes)


@contextlib.contextmanager
def upstream_triton(weight: Any) -> Iterator[Any]:
    need(autoawq_triton.COLS, weight)
    module = autoawq.upstream_module(autoawq_triton.MODULE)
    with autoawq_triton.without_device_guard(module, weight.device):
        yield module.awq_dequantize_triton


def test_fault_triton_kernel_takes_one_group_for_a_whole_tile():
    """Harmless as called (32 rows, groups of 32 and more); wrong for the tile that it also accepts."""
    weight = cols(64, 8, 32)
    with upstream_triton(weight) as dequantize:
        arguments = (weight.qweight, weight.scales, weight.qzeros)
        wrong = dequantize(*arguments, block_size_y=64).cpu() != want(weight, torch.float16)
        assert differences(dequantize(*arguments).cpu(), want(weight, torch.float16)) == 0
    assert not wrong[:32].any()
    assert wrong[32:].any()


def test_fault_triton_kernel_infers_the_group_size_and_drops_the_last_rows():
    """65 rows and 2 groups: taken for groups of 32, and row 64 for one without a group."""
    weight = cols(65, 8, -1)
    scales, qzeros = weight.scales.repeat(2, 1), weight.qzeros.repeat(2, 1)
    with upstream_triton(weight) as dequantize:
        got = dequantize(weight.qweight, scales, qzeros).cpu()
    expected = want(weight, torch.float16)
    assert differences(got[:64], expected[:64]) == 0
    assert differences(got[64], expected[64]) > 0


def test_gemvfast_stores_a_rounded_product_in_place_of_the_zero():
    """Code 13 with zero 13 at scale 0.1 is not 0, and zero * scale beyond 65504 is -inf for good."""
    need(autoawq.QUADS, cols(8, 8, 8))
    floats, scales, zeros = _floats(64, 8)
    small = autoawq.pack_quads(floats, scales * torch.tensor(0.1).half(), zeros + 13, -1)
    assert (unpack(small).codes == 13).all()
    assert (autoawq.QUADS.dequantize(small, torch.float16) == -(2.0**-13)).all()
    huge = autoawq.pack_quads(floats, scales * 5000, zeros + 15, -1)
    assert (unpack(huge).codes == 15).all()
    assert (huge.qzeros[0] == float("-inf")).all()
    with pytest.raises(ValueError, match=r"qzeros\[:1\]: expected finite values, found -inf at flat index 0"):
        huge.validate(deep=True)
    assert (awq_quads.dequantize(huge, dtype=torch.float32, eighths=8) == float("-inf")).all()
