"""Deliberately wrong kernels, and right ones, as a user would write them.

They compute with torch, from the format's text, and share no code with the spec model or
with the fault catalogue: a cause that the report names is found, not assumed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl

from kernels import Unsupported, fp4, llm_int8, nf4
from kernels._blockwise import BlockwiseWeight
from kernels._packed import map_tensors
from kernels.llm_int8 import LLMInt8Weight

User = Callable[..., torch.Tensor]


def dense(weight: Any) -> Any:
    """The weight with every tensor contiguous and in memory of its own."""
    return map_tensors(weight, lambda _, t: torch.empty(t.shape, dtype=t.dtype, device=t.device).copy_(t))


def store(values: torch.Tensor, dtype: torch.dtype, out: torch.Tensor | None) -> torch.Tensor:
    result = values.to(dtype)
    return result if out is None else out.copy_(result)


def scales(weight: BlockwiseWeight, nested: str = "right") -> torch.Tensor:
    """absmax float32 [B]; ``nested`` says what is left out of the second level."""
    if weight.nested is None:
        return weight.absmax
    if nested == "skipped":
        return weight.absmax.float()
    group = torch.arange(weight.n_blocks) // weight.nested.blocksize
    product = weight.nested.codebook[weight.absmax.long()] * weight.nested.absmax[group]
    return product if nested == "no offset" else product + weight.nested.offset


def decode(
    weight: BlockwiseWeight,
    *,
    swap: bool = False,
    shift: int = 0,
    tail_scale: Callable[[torch.Tensor], Any] | None = None,
    nested: str = "right",
    codebook: torch.Tensor | None = None,
) -> torch.Tensor:
    """float32 values of a blockwise weight, with one thing wrong if asked for."""
    weight = dense(weight)
    data = weight.packed.reshape(-1).view(torch.uint8)
    if weight.bits == 4:
        pair = (data & 15, data >> 4) if swap else (data >> 4, data & 15)
        data = torch.stack(pair, dim=1).reshape(-1)[: weight.numel]
    absmax = scales(weight, nested)
    block = torch.arange(weight.numel) // weight.blocksize
    scale = absmax[(block + shift).clamp(0, max(0, weight.n_blocks - 1))]
    tail = weight.numel % weight.blocksize
    if tail and tail_scale is not None:
        scale[-tail:] = tail_scale(absmax)
    table = weight.codebook if codebook is None else codebook
    return (table[data.reshape(-1).long()] * scale).reshape(weight.shape)


def wrong(**fault: Any) -> User:
    """A blockwise kernel with the given fault of :func:`decode`."""

    def kernel(weight: Any, *, dtype: torch.dtype, out: torch.Tensor | None = None) -> torch.Tensor:
        return store(decode(weight, **fault), dtype, out)

    return kernel


def values(weight: Any) -> torch.Tensor:
    """Right float32 values of a weight of any of the formats."""
    if isinstance(weight, LLMInt8Weight):
        weight = dense(weight)
        inverse = torch.tensor(llm_int8.INV_127.value, dtype=torch.float32)
        return weight.codes.float() * weight.absmax[:, None] * inverse
    return decode(weight)


def right(weight: Any, *, dtype: torch.dtype, out: torch.Tensor | None = None) -> torch.Tensor:
    return store(values(weight), dtype, out)


def right_without_out(weight: Any, *, dtype: torch.dtype) -> torch.Tensor:
    return values(weight).to(dtype)


# --- wrong values ----------------------------------------------------------------------------


def nibbles_swapped(weight: Any, *, dtype: torch.dtype, out: torch.Tensor | None = None) -> torch.Tensor:
    return store(decode(weight, swap=True), dtype, out)


def tail_of_previous_block(
    weight: Any, *, dtype: torch.dtype, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Ignores that the last block is a partial one: n // blocksize blocks."""
    return store(decode(weight, tail_scale=lambda absmax: absmax[-2:][0]), dtype, out)


def table_with(index: int, ulp: int) -> torch.Tensor:
    """The nf4 table with one entry some ULP off."""
    table = nf4.codebook()
    table.view(torch.int32)[index] += ulp
    return table


def digits(table: torch.Tensor, count: int) -> torch.Tensor:
    return torch.tensor([round(float(v), count) for v in table], dtype=torch.float32)


TABLES = {"nf4": nf4.codebook, "fp4": fp4.codebook}


def bf16_truncated(weight: Any, *, dtype: torch.dtype, out: torch.Tensor | None = None) -> torch.Tensor:
    exact = values(weight)
    if dtype is torch.bfloat16:
        exact = (exact.contiguous().view(torch.int32) & -65536).view(torch.float32)
    return store(exact, dtype, out)


def nan_instead_of_inf(weight: Any, *, dtype: torch.dtype, out: torch.Tensor | None = None) -> torch.Tensor:
    result = values(weight).to(dtype)
    return store(torch.where(torch.isinf(result), math.nan, result), dtype, out)


def positive_zero(weight: Any, *, dtype: torch.dtype, out: torch.Tensor | None = None) -> torch.Tensor:
    return store(values(weight) + 0.0, dtype, out)


def positive_zero_in_large_blocks(
    weight: Any, *, dtype: torch.dtype, out: torch.Tensor | None = None
) -> torch.Tensor:
    """The wrong sign of a zero, in few of the cases that are drawn."""
    rare = weight.blocksize >= 512 and weight.nested is not None
    return store(values(weight).to(dtype) + 0.0 if rare else values(weight), dtype, out)


def input_strides_ignored(
    weight: Any, *, dtype: torch.dtype, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Reads its inputs as if they were contiguous."""

    def raw(_: str, t: torch.Tensor) -> torch.Tensor:
        steps = [math.prod(t.shape[i + 1 :]) for i in range(t.dim())]
        return t.as_strided(t.shape, steps)

    return store(values(map_tensors(weight, raw)), dtype, out)


# --- wrong writes ----------------------------------------------------------------------------


def half_unwritten(weight: Any, *, dtype: torch.dtype, out: torch.Tensor | None = None) -> torch.Tensor:
    result = values(weight).to(dtype)
    if out is None:
        return result
    half = out.shape[-1] // 2
    out[..., :half] = result[..., :half]
    return out


def tail_left_out(weight: Any, *, dtype: torch.dtype, out: torch.Tensor | None = None) -> torch.Tensor:
    """Writes whole blocks only."""
    result = values(weight).to(dtype)
    if out is None:
        return result
    whole = weight.numel // weight.blocksize * weight.blocksize
    written = torch.arange(weight.numel).reshape(out.shape) < whole
    out[written] = result[written]
    return out


def _poke(out: torch.Tensor | None, offset: int) -> None:
    """Write one element ``offset`` elements from the start of ``out``."""
    if out is not None:
        out.as_strided((1,), (1,), out.storage_offset() + offset).fill_(1.0)


def past_the_end(weight: Any, *, dtype: torch.dtype, out: torch.Tensor | None = None) -> torch.Tensor:
    if out is not None:
        _poke(out, sum((size - 1) * step for size, step in zip(out.shape, out.stride(), strict=True)) + 1)
    return store(values(weight), dtype, out)


def before_the_start(weight: Any, *, dtype: torch.dtype, out: torch.Tensor | None = None) -> torch.Tensor:
    _poke(out, -1)
    return store(values(weight), dtype, out)


def output_strides_ignored(
    weight: Any, *, dtype: torch.dtype, out: torch.Tensor | None = None
) -> torch.Tensor:
    result = values(weight).to(dtype)
    if out is None:
        return result
    out.as_strided((out.numel(),), (1,)).copy_(result.reshape(-1))
    return out


def column_mask_missing(weight: Any, *, dtype: torch.dtype, out: torch.Tensor | None = None) -> torch.Tensor:
    """Stores rows in whole tiles of 16 columns, last row first: each ends in what follows it."""
    result = values(weight).to(dtype)
    if out is None:
        return result
    columns = out.shape[-1]
    tile = -(-columns // 16) * 16
    flat = result.reshape(-1, columns)
    for row in range(flat.shape[0]):
        line = torch.zeros(tile, dtype=dtype)
        line[:columns] = flat[row]
        out.as_strided((tile,), (1,), out.storage_offset() + row * columns).copy_(line)
    return out


def input_overwritten(weight: Any, *, dtype: torch.dtype, out: torch.Tensor | None = None) -> torch.Tensor:
    result = store(values(weight), dtype, out)
    weight.absmax[-1:] += 1
    return result


def differs_from_run_to_run() -> User:
    """Right in every other call; in the others the last element is another number."""
    calls = iter(range(10**9))

    def kernel(weight: Any, *, dtype: torch.dtype, out: torch.Tensor | None = None) -> torch.Tensor:
        result = values(weight).to(dtype)
        if next(calls) % 2:
            result.view(-1)[-1] += 1
        return store(result, dtype, out)

    return kernel


# --- no result, or another one -----------------------------------------------------------------


def other_dtype(weight: Any, *, dtype: torch.dtype) -> torch.Tensor:
    return values(weight).to(torch.float64)


def other_shape(weight: Any, *, dtype: torch.dtype) -> torch.Tensor:
    return values(weight).to(dtype).reshape(-1, 1)


def another_tensor(weight: Any, *, dtype: torch.dtype, out: torch.Tensor | None = None) -> torch.Tensor:
    return values(weight).to(dtype)


def no_tensor(weight: Any, *, dtype: torch.dtype) -> Any:
    return None


def raises(weight: Any, *, dtype: torch.dtype, out: torch.Tensor | None = None) -> torch.Tensor:
    raise RuntimeError("no such\nkernel image")


def unsupported(weight: Any, *, dtype: torch.dtype, out: torch.Tensor | None = None) -> torch.Tensor:
    raise Unsupported("not written yet")


def unsupported_bf16(weight: Any, *, dtype: torch.dtype, out: torch.Tensor | None = None) -> torch.Tensor:
    if dtype is torch.bfloat16:
        raise Unsupported("no bfloat16")
    return right(weight, dtype=dtype, out=out)


@triton.jit
def _does_not_compile(out, n, BLOCK: tl.constexpr):
    tl.static_assert(BLOCK == 7, "a tile of 7")
    tl.store(out + tl.arange(0, BLOCK), 0.0)


def does_not_compile(weight: Any, *, dtype: torch.dtype, out: torch.Tensor | None = None) -> torch.Tensor:
    out = torch.empty(weight.output_shape, dtype=dtype) if out is None else out
    _does_not_compile[(1,)](out, out.numel(), BLOCK=8)
    return out
