"""Kernels that only load and store: every byte is loaded, every output stored; outputs of others are kept."""

from __future__ import annotations

import dataclasses
import weakref

import pytest
import torch

from benchmarks import weights
from benchmarks.cases import VARIANTS, BenchCase
from benchmarks.limits import candidates
from benchmarks.peers import Decoder
from kernels._packed import named_tensors

# Rows that no launch has as a power of two, and columns that the last program has not all of.
ROWS, COLS = 64, 320


def _weight(variant):
    case = BenchCase(variant.format, variant.name, "fp16", ROWS, COLS, 32 if variant.groups[0] else 0)
    return weights.make(case, torch.device("cpu"))


def _moved(weight, dtype, index=-1, fill=0x55):
    raw = torch.full((ROWS * COLS * dtype.itemsize,), fill, dtype=torch.uint8)
    candidates([weight], [raw.view(dtype).reshape(ROWS, COLS)])[index][0]()
    return raw


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.label)
def test_every_output_is_stored_whatever_the_launch(variant, dtype):
    weight = _weight(variant)
    # What was there before differs in every bit.
    assert torch.equal(_moved(weight, dtype), _moved(weight, dtype, index=-2, fill=0xAA))


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.label)
def test_every_stored_byte_is_loaded(variant):
    weight = _weight(variant)
    before = _moved(weight, torch.float16)
    # An order of rows has no byte that may be any number.
    tensors = {name: tensor for name, tensor in named_tensors(weight) if name != "g_idx"}
    padding = weights.traffic(weight, torch.float16) - ROWS * COLS * 2
    for name, tensor in tensors.items():
        raw = tensor.reshape(-1).view(torch.uint8)
        last = raw.numel() - 1
        if variant.format.startswith("awq") and padding < sum(t.nbytes for t in tensors.values()):
            last = 0  # of tensors with padding, which need not be loaded
        for at in {last // 3, last}:
            raw[at] ^= 1
            assert not torch.equal(_moved(weight, torch.float16), before), f"{name}: byte {at}"
            raw[at] ^= 1


def test_an_order_of_rows_is_followed():
    weight = next(_weight(variant) for variant in VARIANTS if variant.name == "4bit-act-order")
    other = dataclasses.replace(weight, g_idx=weight.g_idx.flip(0).contiguous())
    assert not torch.equal(_moved(weight, torch.float16), _moved(other, torch.float16))


def test_no_output_of_another_library_lies_where_the_one_before_it_did():
    made = []

    def prepare(weight, dtype):
        def call():
            found = torch.empty(4)
            made.append(weakref.ref(found))
            return found

        return call

    peer = Decoder("other", (), ("fp32",), prepare, upstream=False)
    calls = peer.choices([None, None], torch.float32, [])[0]
    made.clear()
    for call in (*calls, calls[0]):
        call()
    first, second, third = (one() for one in made)
    assert first is None
    assert second is not None
    assert third is not None
