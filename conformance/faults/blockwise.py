"""Wrong decoders of nf4, fp4 and blockwise8."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable

import numpy as np
import torch

from conformance.faults import Context, Fault
from kernels import fp4, nf4
from kernels._blockwise import BlockwiseWeight
from oracles.spec.blockwise import BlockwiseModel

Decode = Callable[[Context], np.ndarray | None]


def _model(ctx: Context) -> tuple[BlockwiseWeight, BlockwiseModel]:
    assert isinstance(ctx.model, BlockwiseModel)
    return ctx.weight, ctx.model


def _nibble_swap(ctx: Context) -> np.ndarray | None:
    weight, model = _model(ctx)
    if weight.bits != 4:
        return None
    data = weight.packed.contiguous().reshape(-1).view(torch.uint8).numpy()
    codes = np.stack([data & 15, data >> 4], axis=1).reshape(-1)[: model.codes.size]
    return ctx.bits(dataclasses.replace(model, codes=codes.astype(np.int64)))


def _block(ctx: Context, block: np.ndarray) -> np.ndarray:
    _, model = _model(ctx)
    return ctx.bits(dataclasses.replace(model, block=np.clip(block, 0, model.absmax.size - 1)))


def _tail_previous(ctx: Context) -> np.ndarray | None:
    weight, model = _model(ctx)
    tail = weight.numel % weight.blocksize
    if not tail or model.absmax.size < 2:
        return None
    block = model.block.copy()
    block[-tail:] -= 1
    return _block(ctx, block)


def _tail_scale(value: float) -> Decode:
    def decode(ctx: Context) -> np.ndarray | None:
        weight, model = _model(ctx)
        tail = weight.numel % weight.blocksize
        if not tail:
            return None
        absmax = model.absmax.copy()
        absmax[-1] = value
        return ctx.bits(dataclasses.replace(model, absmax=absmax))

    return decode


def _tail_blank(ctx: Context) -> np.ndarray | None:
    weight, model = _model(ctx)
    tail = weight.numel % weight.blocksize
    if not tail:
        return None
    bits = ctx.bits(model).reshape(-1).copy()
    bits[-tail:] = 0
    return bits.reshape(weight.shape)


def _shifted(by: int) -> Decode:
    def decode(ctx: Context) -> np.ndarray | None:
        _, model = _model(ctx)
        return _block(ctx, model.block + by) if model.absmax.size > 1 else None

    return decode


def _first_block(ctx: Context) -> np.ndarray | None:
    _, model = _model(ctx)
    return _block(ctx, model.block * 0) if model.absmax.size > 1 else None


def _fixed_blocksize(size: int) -> Decode:
    def decode(ctx: Context) -> np.ndarray | None:
        weight, model = _model(ctx)
        if weight.blocksize == size or model.absmax.size < 2:
            return None
        return _block(ctx, np.arange(model.block.size) // size)

    return decode


def _row_blocks(ctx: Context) -> np.ndarray | None:
    """Blocks restart at each row, as if rows were padded to whole blocks."""
    weight, model = _model(ctx)
    columns = weight.shape[-1] if weight.shape else 1
    if len(weight.shape) < 2 or columns % weight.blocksize == 0:
        return None
    flat = np.arange(model.block.size)
    return _block(ctx, flat // columns * (columns // weight.blocksize) + flat % columns // weight.blocksize)


def _nested(change: str) -> Decode:
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
            elif change == "fused":
                exact = code[q].astype(np.float64) * scale[group].astype(np.float64) + np.float64(offset)
                absmax = exact.astype(np.float32)
            elif change == "first-group":
                absmax = code[q] * scale[0] + offset
            else:
                absmax = (code[q] + offset) * scale[group]
        return ctx.bits(dataclasses.replace(model, absmax=absmax.astype(np.float32)))

    return decode


def _floats(bits: tuple[int, ...]) -> np.ndarray:
    return np.array([struct.unpack("<f", struct.pack("<I", b))[0] for b in bits], np.float32)


NF4_TABLE = _floats(nf4.CODEBOOK_BITS)
FP4_TABLE = _floats(fp4.CODEBOOK_BITS)
_FP4_OLD = FP4_TABLE.copy()
_FP4_OLD[[1, 9]] = np.array([0x3BAAAAA4, 0xBBAAAAA4], np.uint32).view(np.float32)
_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)

# Tables that kernels in the field use for these codes: what a mismatch is decoded with, so
# that the report can say which table a kernel has.
TABLES = {
    "bitsandbytes nf4": NF4_TABLE,
    "bitsandbytes fp4": FP4_TABLE,
    "nf4 rounded to 4 digits (torchao)": np.round(NF4_TABLE.astype(np.float64), 4).astype(np.float32),
    "nf4 rounded to 5 digits": np.round(NF4_TABLE.astype(np.float64), 5).astype(np.float32),
    "nf4 rounded to 6 digits": np.round(NF4_TABLE.astype(np.float64), 6).astype(np.float32),
    "nf4 in float16": NF4_TABLE.astype(np.float16).astype(np.float32),
    "fp4 rounded to 4 digits": np.round(FP4_TABLE.astype(np.float64), 4).astype(np.float32),
    "fp4 with codes 1 and 9 at 0x3baaaaa4": _FP4_OLD,
    "fp4 in float16": FP4_TABLE.astype(np.float16).astype(np.float32),
    "OCP e2m1": np.concatenate([_E2M1, -_E2M1]),
    "OCP e2m1 divided by 6": np.concatenate([_E2M1 / 6, -_E2M1 / 6]).astype(np.float32),
    "two's complement int4 divided by 7": (((np.arange(16) + 8) % 16 - 8) / 7).astype(np.float32),
}


def _table(table: np.ndarray) -> Decode:
    def decode(ctx: Context) -> np.ndarray | None:
        weight, model = _model(ctx)
        if weight.bits != 4 or np.array_equal(table.view(np.uint32), model.codebook.view(np.uint32)):
            return None
        return ctx.bits(dataclasses.replace(model, codebook=table))

    return decode


def _half_product(ctx: Context) -> np.ndarray | None:
    _, model = _model(ctx)
    with np.errstate(all="ignore"):
        absmax = model.absmax.astype(np.float16).astype(np.float32)
    return ctx.bits(dataclasses.replace(model, absmax=absmax))


_DEGRADED = "fluent but degraded text; perplexity rises without an error"
_GARBAGE = "loads and runs, output is garbage"

CODEBOOKS = tuple(
    Fault(
        f"codebook: {name}",
        f"value = table[q] * absmax with the table of {name}",
        "every use of the codes whose entries differ is off, by ULPs or by a factor",
        "store the table as exact float32 values of the format that was quantized",
        _table(table),
        ("https://github.com/bitsandbytes-foundation/bitsandbytes/issues/2025",),
    )
    for name, table in TABLES.items()
)

FAULTS = (
    Fault(
        "nibble-swap",
        "q[2j] from the low nibble, q[2j+1] from the high one",
        _GARBAGE,
        "the even element is in the high nibble",
        _nibble_swap,
        ("https://github.com/triton-lang/triton/pull/5197",),
    ),
    Fault(
        "tail-block-absmax-previous",
        "the short last block uses the absmax of the block before it",
        "the last weights of a layer are off by the ratio of two scales",
        "the number of blocks is ceil(n / blocksize)",
        _tail_previous,
        ("https://github.com/bitsandbytes-foundation/bitsandbytes/pull/1884",),
    ),
    Fault(
        "tail-block-absmax-zero",
        "the short last block is scaled by 0",
        "the last weights of a layer vanish",
        "mask elements by n, not blocks by n // blocksize",
        _tail_scale(0.0),
    ),
    Fault(
        "tail-block-blank",
        "the short last block is +0 whatever its codes",
        "the last weights of a layer vanish",
        "decode the last block too: the number of blocks is ceil(n / blocksize)",
        _tail_blank,
    ),
    Fault(
        "tail-block-absmax-one",
        "the short last block is not scaled",
        "the last weights of a layer are codebook values",
        "scale the tail like every other block",
        _tail_scale(1.0),
    ),
    Fault(
        "block-index-plus-one",
        "block b uses absmax[b + 1]",
        _DEGRADED,
        "block = i // blocksize",
        _shifted(1),
    ),
    Fault(
        "block-index-minus-one",
        "block b uses absmax[b - 1]",
        _DEGRADED,
        "block = i // blocksize",
        _shifted(-1),
    ),
    Fault(
        "first-block-everywhere",
        "every block uses absmax[0]",
        _DEGRADED,
        "advance the absmax index with the tile",
        _first_block,
    ),
    Fault(
        "blocksize-64-fixed",
        "block = i // 64 whatever the block size",
        _DEGRADED,
        "read the block size from the weight",
        _fixed_blocksize(64),
        ("https://github.com/mit-han-lab/llm-awq/issues/21",),
    ),
    Fault(
        "blocks-restart-at-rows",
        "block = row * (columns // blocksize) + column // blocksize",
        _DEGRADED,
        "blocks run over the flattened weight",
        _row_blocks,
    ),
    Fault(
        "nested-absmax-skipped",
        "absmax = the raw uint8 code",
        _GARBAGE,
        "dequantize absmax first: code2[q] * absmax2 + offset",
        _nested("skipped"),
        ("https://github.com/bitsandbytes-foundation/bitsandbytes/pull/1549",),
    ),
    Fault(
        "nested-offset-skipped",
        "absmax = code2[q] * absmax2, without + offset",
        _GARBAGE,
        "add the offset (the mean that was subtracted)",
        _nested("no-offset"),
    ),
    Fault(
        "nested-offset-first",
        "absmax = (code2[q] + offset) * absmax2",
        _GARBAGE,
        "multiply, then add",
        _nested("offset-first"),
    ),
    Fault(
        "nested-first-group",
        "absmax2[0] for every group of absmax codes",
        "weights after the first 256 blocks are off",
        "group = block // 256",
        _nested("first-group"),
    ),
    Fault(
        "nested-fma",
        "code2[q] * absmax2 + offset contracted into one FMA: one rounding instead of two",
        "1 ULP of absmax here and there; invisible in a model",
        "enable_fp_fusion=False, or arithmetic that cannot fuse",
        _nested("fused"),
    ),
    Fault(
        "scale-through-fp16",
        "absmax rounded to float16 first",
        "2**-11 relative error; inf or 0 for extreme scales",
        "keep absmax in float32",
        _half_product,
        ("https://github.com/ikawrakow/ik_llama.cpp/pull/2503",),
    ),
    *CODEBOOKS,
)
