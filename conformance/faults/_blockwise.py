"""Wrong decoders of nf4, fp4 and blockwise8; the catalogue with their names is ``blockwise.py``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import torch

from conformance.faults import Context
from kernels._blockwise import BlockwiseWeight
from oracles.spec.blockwise import BlockwiseModel

Decode = Callable[[Context], np.ndarray | None]


def _model(ctx: Context) -> tuple[BlockwiseWeight, BlockwiseModel]:
    assert isinstance(ctx.model, BlockwiseModel)
    return ctx.weight, ctx.model


def nibble_swap(ctx: Context) -> np.ndarray | None:
    weight, model = _model(ctx)
    if weight.bits != 4:
        return None
    data = weight.packed.contiguous().reshape(-1).view(torch.uint8).numpy()
    codes = np.stack([data & 15, data >> 4], axis=1).reshape(-1)[: model.codes.size]
    return ctx.bits(dataclasses.replace(model, codes=codes.astype(np.int64)))


def _from_places(ctx: Context, byte: np.ndarray, high: np.ndarray) -> np.ndarray | None:
    """Element i from the high or the low nibble of ``byte[i]``, held inside the bytes there are."""
    weight, model = _model(ctx)
    if weight.bits != 4 or not model.codes.size:
        return None
    data = weight.packed.contiguous().reshape(-1).view(torch.uint8).numpy()
    found = data[np.minimum(byte, data.size - 1)]
    codes = np.where(high, found >> 4, found & 15).astype(np.int64)
    if np.array_equal(codes, model.codes):
        return None
    return ctx.bits(dataclasses.replace(model, codes=codes))


def split_32(ctx: Context) -> np.ndarray | None:
    """GGUF's order: a block of 32 has its first half in low nibbles and its second in high ones."""
    i = np.arange(_model(ctx)[1].codes.size)
    return _from_places(ctx, i // 32 * 16 + i % 16, i % 32 >= 16)


def split_halves(ctx: Context) -> np.ndarray | None:
    """HQQ's order: the first half of the weight in high nibbles, the second in low ones."""
    n = _model(ctx)[1].codes.size
    half, i = -(-n // 2), np.arange(n)
    return _from_places(ctx, i % max(half, 1), i < half)


def odd_tail_low(ctx: Context) -> np.ndarray | None:
    """The last code of an odd length from the low nibble, which is padding."""
    i = np.arange(_model(ctx)[1].codes.size)
    return _from_places(ctx, i // 2, (i % 2 == 0) & ((i != i.size - 1) | (i.size % 2 == 0)))


def _block(ctx: Context, block: np.ndarray) -> np.ndarray:
    _, model = _model(ctx)
    return ctx.bits(dataclasses.replace(model, block=np.clip(block, 0, model.absmax.size - 1)))


def tail_previous(ctx: Context) -> np.ndarray | None:
    weight, model = _model(ctx)
    tail = weight.numel % weight.blocksize
    if not tail or model.absmax.size < 2:
        return None
    block = model.block.copy()
    block[-tail:] -= 1
    return _block(ctx, block)


def tail_scale(value: float) -> Decode:
    def decode(ctx: Context) -> np.ndarray | None:
        weight, model = _model(ctx)
        tail = weight.numel % weight.blocksize
        if not tail:
            return None
        absmax = model.absmax.copy()
        absmax[-1] = value
        return ctx.bits(dataclasses.replace(model, absmax=absmax))

    return decode


def tail_blank(ctx: Context) -> np.ndarray | None:
    weight, model = _model(ctx)
    tail = weight.numel % weight.blocksize
    if not tail:
        return None
    bits = ctx.bits(model).reshape(-1).copy()
    bits[-tail:] = 0
    return bits.reshape(weight.shape)


def shifted(by: int) -> Decode:
    def decode(ctx: Context) -> np.ndarray | None:
        _, model = _model(ctx)
        return _block(ctx, model.block + by) if model.absmax.size > 1 else None

    return decode


def first_block(ctx: Context) -> np.ndarray | None:
    _, model = _model(ctx)
    return _block(ctx, model.block * 0) if model.absmax.size > 1 else None


def fixed_blocksize(size: int) -> Decode:
    def decode(ctx: Context) -> np.ndarray | None:
        weight, model = _model(ctx)
        if weight.blocksize == size or model.absmax.size < 2:
            return None
        return _block(ctx, np.arange(model.block.size) // size)

    return decode


def by_byte(ctx: Context) -> np.ndarray | None:
    """The block of the byte's index in place of the element's: each absmax holds for two blocks."""
    weight, model = _model(ctx)
    if weight.bits != 4 or model.absmax.size < 2:
        return None
    return _block(ctx, np.arange(model.block.size) // 2 // weight.blocksize)


def early(ctx: Context) -> np.ndarray | None:
    """The last element of each block with the next block's absmax."""
    weight, model = _model(ctx)
    if model.absmax.size < 2:
        return None
    return _block(ctx, (np.arange(model.block.size) + 1) // weight.blocksize)


def inferred_blocksize(ctx: Context) -> np.ndarray | None:
    """ceil(n / number of blocks) elements to a block."""
    _, model = _model(ctx)
    if model.absmax.size < 2:
        return None
    block = np.arange(model.block.size) // -(-model.block.size // model.absmax.size)
    return None if np.array_equal(block, model.block) else _block(ctx, block)


def row_blocks(ctx: Context) -> np.ndarray | None:
    """Blocks restart at each row, as if rows were padded to whole blocks."""
    weight, model = _model(ctx)
    columns = weight.shape[-1] if weight.shape else 1
    if len(weight.shape) < 2 or columns % weight.blocksize == 0:
        return None
    flat = np.arange(model.block.size)
    return _block(ctx, flat // columns * (columns // weight.blocksize) + flat % columns // weight.blocksize)


def nested(change: str) -> Decode:
    def decode(ctx: Context) -> np.ndarray | None:
        weight, model = _model(ctx)
        if weight.nested is None:
            return None
        q = weight.absmax.numpy()
        code = weight.nested.codebook.numpy()
        scale = weight.nested.absmax.numpy()
        offset = weight.nested.offset.numpy()
        group = np.arange(q.size) // weight.nested.blocksize
        with np.errstate(all="ignore"):
            if change == "skipped":
                absmax = q.astype(np.float32)
            elif change == "no-offset":
                absmax = code[q] * scale[group]
            elif change == "fp16-product":
                product = code[q].astype(np.float16) * scale[group].astype(np.float16)
                absmax = product.astype(np.float32) + offset
            elif change == "fused":
                exact = code[q].astype(np.float64) * scale[group].astype(np.float64) + np.float64(offset)
                absmax = exact.astype(np.float32)
            elif change == "first-group":
                absmax = code[q] * scale[0] + offset
            else:
                absmax = (code[q] + offset) * scale[group]
        return ctx.bits(dataclasses.replace(model, absmax=absmax.astype(np.float32)))

    return decode


def table(entries: np.ndarray) -> Decode:
    def decode(ctx: Context) -> np.ndarray | None:
        weight, model = _model(ctx)
        if weight.bits != 4 or np.array_equal(entries.view(np.uint32), model.codebook.view(np.uint32)):
            return None
        return ctx.bits(dataclasses.replace(model, codebook=entries))

    return decode


def literal(code: int, digits: int) -> Decode:
    """One entry of the weight's own 4-bit table with ``digits`` decimals."""

    def decode(ctx: Context) -> np.ndarray | None:
        weight, model = _model(ctx)
        if weight.bits != 4:
            return None
        entries = model.codebook.copy()
        entries[code] = np.float32(np.round(np.float64(entries[code]), digits))
        return table(entries)(ctx)

    return decode


def scale_fp16(ctx: Context) -> np.ndarray | None:
    _, model = _model(ctx)
    with np.errstate(all="ignore"):
        absmax = model.absmax.astype(np.float16).astype(np.float32)
    return ctx.bits(dataclasses.replace(model, absmax=absmax))
