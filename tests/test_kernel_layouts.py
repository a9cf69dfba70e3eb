"""The same bits for every legal way to lay out the same weight in memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
import torch

from kernels._packed import map_tensors, named_tensors
from oracles.spec import blockwise as spec_blockwise
from oracles.spec import llm_int8 as spec_llm_int8
from oracles.spec.rounding import round_to
from tests.kernel_weights import (
    BLOCKWISE,
    DEVICE,
    DTYPES,
    FORMATS,
    FOUR_BIT,
    bits,
    change,
    dequantize,
    make,
    same_bits,
)

CASES = [(name, False) for name in FORMATS] + [(name, True) for name in BLOCKWISE]
case = pytest.mark.parametrize(
    ("name", "nested"), CASES, ids=[name + "-nested" * nested for name, nested in CASES]
)
dtype = pytest.mark.parametrize("dtype", DTYPES, ids=["fp16", "bf16", "fp32"])


def every_other(tensor: torch.Tensor) -> torch.Tensor:
    """The same values, each followed by one that must not be read."""
    wide = torch.full((*tensor.shape, 2), 99, dtype=tensor.dtype, device=tensor.device)
    wide[..., 0] = tensor
    return wide[..., 0]


def column_major(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.t().contiguous().t() if tensor.dim() == 2 else tensor


def window(tensor: torch.Tensor) -> torch.Tensor:
    """The same values as a window into a larger buffer, from element 3 on."""
    buffer = torch.full((tensor.numel() + 5,), 99, dtype=tensor.dtype, device=tensor.device)
    window = buffer[3 : 3 + tensor.numel()].view(tensor.shape)
    return window.copy_(tensor)


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "every other element": every_other,
    "column-major": column_major,
    "storage offset": window,
}


@case
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=["fp16", "fp32"])
def test_contiguous_weight_decodes_to_the_spec(name: str, nested: bool, dtype: torch.dtype):
    """What the other tests compare with is itself right."""
    weight = make(name, nested=nested)
    unpack = spec_llm_int8.unpack if name == "llm_int8" else spec_blockwise.unpack
    want = round_to(unpack(weight).values(), dtype)
    got = bits(dequantize(name, weight, dtype=dtype)).numpy().view(want.dtype)
    assert np.array_equal(got, want)


@case
@dtype
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layout_of_the_inputs_changes_nothing(name: str, nested: bool, dtype: torch.dtype, layout: str):
    weight = make(name, nested=nested)
    other = map_tensors(weight, lambda field, tensor: LAYOUTS[layout](tensor))
    want = dequantize(name, weight, dtype=dtype)
    assert same_bits(dequantize(name, other, dtype=dtype), want)


@case
def test_a_scale_that_is_expanded_from_one_value(name: str, nested: bool):
    weight = make(name, nested=nested)
    expanded = change(weight, "absmax", lambda t: t[:1].expand(t.shape))
    copied = change(weight, "absmax", lambda t: t[:1].repeat(t.numel()))
    got = dequantize(name, expanded, dtype=torch.float32)
    assert same_bits(got, dequantize(name, copied, dtype=torch.float32))


def _window(dtype: torch.dtype) -> torch.Tensor:
    return torch.full((205,), 3.0, dtype=dtype, device=DEVICE)[5:].view(5, 40)


OUTS: dict[str, Callable[[torch.dtype], torch.Tensor]] = {
    "contiguous": lambda dtype: torch.full((5, 40), 3.0, dtype=dtype, device=DEVICE),
    "storage offset": _window,
    "column-major": lambda dtype: torch.full((40, 5), 3.0, dtype=dtype, device=DEVICE).t(),
    "every other element": lambda dtype: torch.full((5, 80), 3.0, dtype=dtype, device=DEVICE)[:, ::2],
    "row stride": lambda dtype: torch.full((5, 48), 3.0, dtype=dtype, device=DEVICE)[:, :40],
}


@case
@dtype
@pytest.mark.parametrize("layout", OUTS)
def test_layout_of_the_output_changes_nothing(name: str, nested: bool, dtype: torch.dtype, layout: str):
    weight = make(name, nested=nested)
    out = OUTS[layout](dtype)
    buffer = out.as_strided((out.untyped_storage().nbytes() // out.element_size(),), (1,), 0)
    got = dequantize(name, weight, dtype=dtype, out=out)
    assert got is out
    assert same_bits(got, dequantize(name, weight, dtype=dtype))
    # What lies between the elements of `out` keeps its value.
    written = torch.zeros_like(buffer, dtype=torch.bool)
    written.as_strided(out.shape, out.stride(), out.storage_offset()).fill_(True)
    assert bool((buffer[~written] == 3.0).all())


@case
@dtype
def test_inputs_are_not_written(name: str, nested: bool, dtype: torch.dtype):
    weight, untouched = make(name, nested=nested), make(name, nested=nested)
    dequantize(name, weight, dtype=dtype)
    pairs = list(zip(named_tensors(weight), named_tensors(untouched), strict=True))
    assert len(pairs) >= 2
    for (field, now), (_, before) in pairs:
        assert same_bits(now, before), field


@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (0, 0)], ids=str)
@case
@dtype
def test_zero_size(name: str, nested: bool, dtype: torch.dtype, shape: tuple[int, ...]):
    got = dequantize(name, make(name, shape, nested=nested), dtype=dtype)
    assert got.shape == shape
    assert got.dtype == dtype


@pytest.mark.parametrize("shape", [(0,), (1,), (), (1, 1, 1), (33,), (2, 3, 5, 7)], ids=str)
@pytest.mark.parametrize("name", BLOCKWISE)
def test_any_number_of_dimensions(name: str, shape: tuple[int, ...]):
    weight = make(name, shape)
    got = dequantize(name, weight, dtype=torch.float32)
    want = round_to(spec_blockwise.unpack(weight).values(), torch.float32)
    assert got.shape == shape
    assert np.array_equal(bits(got).numpy().view(np.uint32), want)


STORAGES = [torch.int8, torch.float16, torch.bfloat16, torch.int32, torch.float32]


@pytest.mark.parametrize("nested", [False, True], ids=["plain", "nested"])
@pytest.mark.parametrize("storage", STORAGES, ids=lambda dtype: str(dtype).removeprefix("torch."))
@pytest.mark.parametrize("name", FOUR_BIT)
def test_storage_dtype_changes_nothing(name: str, storage: torch.dtype, nested: bool):
    weight = make(name, nested=nested)
    viewed = change(weight, "packed", lambda t: t.view(-1).view(storage)[:, None])
    assert viewed.packed.dtype == storage
    want = dequantize(name, weight, dtype=torch.float32)
    assert same_bits(dequantize(name, viewed, dtype=torch.float32), want)


@pytest.mark.parametrize("offset", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("name", BLOCKWISE)
def test_misaligned_bytes(name: str, offset: int):
    weight = make(name)

    def shifted(tensor: torch.Tensor) -> torch.Tensor:
        buffer = torch.full((tensor.numel() + 8,), 0x5A, dtype=torch.uint8, device=DEVICE)
        window = buffer[offset : offset + tensor.numel()].view(tensor.shape)
        return window.copy_(tensor)

    moved = change(weight, "packed", shifted)
    assert (moved.packed.data_ptr() % 4 == 0) == (offset % 4 == 0)
    want = dequantize(name, weight, dtype=torch.float32)
    assert same_bits(dequantize(name, moved, dtype=torch.float32), want)


@pytest.mark.skipif(DEVICE.type != "cpu", reason="a GPU's allocator aligns every buffer")
@pytest.mark.parametrize("base", [0, 1, 2, 3])
@pytest.mark.parametrize("name", BLOCKWISE)
def test_buffer_whose_own_address_is_misaligned(name: str, base: int):
    """An aligned window of a misaligned buffer, as in a file mapped after an odd header."""
    weight = make(name)
    memory = bytearray(weight.packed.numel() + 64)
    start = torch.frombuffer(memory, dtype=torch.uint8).data_ptr()
    first = (base - start) % 4
    buffer = torch.frombuffer(memory, dtype=torch.uint8, offset=first)
    assert buffer.data_ptr() % 4 == base

    def aligned(tensor: torch.Tensor) -> torch.Tensor:
        offset = -buffer.data_ptr() % 4
        window = buffer[offset : offset + tensor.numel()].view(tensor.shape)
        return window.copy_(tensor)

    moved = change(weight, "packed", aligned)
    want = dequantize(name, weight, dtype=torch.float32)
    assert same_bits(dequantize(name, moved, dtype=torch.float32), want)


@case
def test_tile_edges_change_nothing(name: str, nested: bool):
    """One program or many, words or bytes: a tile may begin inside a block."""
    weight = make(name, (7, 47), nested=nested)  # primes: 329 elements, no whole words
    want = dequantize(name, weight, dtype=torch.float32)
    tiles = (
        [{"rows": rows, "cols": cols} for rows in (1, 3) for cols in (1, 16, 64)]
        if name == "llm_int8"
        else [{"lanes": lanes} for lanes in (1, 4, 64)]
    )
    for tile in tiles:
        assert same_bits(dequantize(name, weight, dtype=torch.float32, **tile), want), tile


@pytest.mark.parametrize("name", BLOCKWISE)
def test_blocks_larger_than_the_weight(name: str):
    weight = make(name, (3, 7))
    for blocksize in (32, 64, 128, 256, 512, 1024, 2048, 4096):
        one_block = dataclasses.replace(weight, blocksize=blocksize)
        want = dequantize(name, weight, dtype=torch.float32)
        assert same_bits(dequantize(name, one_block, dtype=torch.float32), want), blocksize
