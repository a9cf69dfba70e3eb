"""Triton kernels that move a weight's bytes and decode nothing; :mod:`benchmarks.limits` says what for."""

from __future__ import annotations

import triton
import triton.language as tl

from kernels._lanes import spread


@triton.jit
def _as_output(word, out):
    """An output made of the bits of an int32, for which nothing is computed."""
    if out.dtype.element_ty.primitive_bitwidth == 16:
        word = word.to(tl.int16)
    return word.to(out.dtype.element_ty, bitcast=True)


@triton.jit
def _folded(word):
    """All bits of an int32 in its lower half, which is all that a 16-bit output has of it."""
    return word ^ (word >> 16)


@triton.jit
def _tile(LANES: tl.constexpr):
    """Packed row and first column of a program; neighbours have neighbouring columns."""
    return tl.program_id(1).to(tl.int64), tl.program_id(0).to(tl.int64) * LANES


@triton.jit
def _further(word, others, place, n_places, n_others, mask, EACH: tl.constexpr):
    """``word``, with the part of the other tensors that belongs to it."""
    for i in tl.static_range(EACH):
        at = place + i * n_places
        word += tl.load(others + at, mask=mask & (at < n_others), other=0)
    return word


@triton.jit
def across_kernel(
    out,  # [n_words * OUTPUTS] output dtype
    words,  # [n_words] int32, int16 or uint8
    others,  # [n_others] int32
    n_words,
    n_others,
    n_places,  # ceil(n_words / RATIO)
    RATIO: tl.constexpr,  # words to one place in the others
    EACH: tl.constexpr,  # of the others that a place has
    OUTPUTS: tl.constexpr,  # outputs of a word, side by side
    LANES: tl.constexpr,
) -> None:
    first = tl.program_id(0).to(tl.int64) * LANES
    lane = tl.arange(0, LANES)
    mask = lane < tl.minimum(n_words - first, LANES)
    word = tl.load(words + first + lane, mask=mask, other=0, eviction_policy="evict_first").to(tl.int32)
    word = _folded(_further(word, others, (first + lane) // RATIO, n_places, n_others, mask, EACH))
    slot = tl.arange(0, OUTPUTS)[None, :]
    at = out + first * OUTPUTS + lane[:, None] * OUTPUTS + slot
    inside = mask[:, None] & (slot >= 0)
    tl.store(at, _as_output(word[:, None] + slot, out), mask=inside, eviction_policy="evict_first")


@triton.jit
def down_kernel(
    out,  # [n_packed * OUTPUTS, n_cols] output dtype
    words,  # [n_packed * WORDS, n_cols] int32
    others,  # [n_others] int32
    n_cols,
    n_others,
    n_places,  # ceil(n_packed * n_cols / RATIO)
    RATIO: tl.constexpr,  # words, or WORDS of them, to one place in the others
    EACH: tl.constexpr,  # of the others that a place has
    WORDS: tl.constexpr,  # words that are decoded together
    OUTPUTS: tl.constexpr,  # outputs of these, one below the other
    LANES: tl.constexpr,
) -> None:
    packed, first = _tile(LANES)
    col = tl.arange(0, LANES)
    mask = col < tl.minimum(n_cols - first, LANES)
    at = words + packed * WORDS * n_cols + first + col
    word = tl.load(at, mask=mask, other=0, eviction_policy="evict_first")
    for w in tl.static_range(1, WORDS):
        word += tl.load(at + w * n_cols, mask=mask, other=0, eviction_policy="evict_first")
    place = (packed * n_cols + first + col) // RATIO
    word = _folded(_further(word, others, place, n_places, n_others, mask, EACH))
    for slot in tl.static_range(OUTPUTS):
        at = out + (packed * OUTPUTS + slot) * n_cols + first + col
        tl.store(at, _as_output(word + slot, out), mask=mask, eviction_policy="evict_first")


@triton.jit
def scattered_kernel(
    out,  # [n_packed * OUTPUTS, n_cols] output dtype
    words,  # [n_packed, n_cols] int32
    scales,  # [n_groups, n_cols] float16
    zeros,  # [n_groups, n_zero_words] int32
    g_idx,  # [n_packed * OUTPUTS] int32
    n_cols,
    n_zero_words,
    OUTPUTS: tl.constexpr,  # outputs of a word, one below the other
    SIDE: tl.constexpr,  # columns that share a zero word and lie side by side
    LANES: tl.constexpr,  # columns of a program
) -> None:
    packed, first = _tile(LANES)
    col = tl.arange(0, LANES)
    mask = col < tl.minimum(n_cols - first, LANES)
    zero_word = first // OUTPUTS + tl.max_contiguous(tl.arange(0, LANES // SIDE), 1) * SIDE // OUTPUTS
    at = words + packed * n_cols + first + col
    word = tl.load(at, mask=mask, other=0, eviction_policy="evict_first")
    k = packed * OUTPUTS
    group = tl.load(g_idx + k).to(tl.int64)
    following = tl.load(g_idx + k + 1).to(tl.int64)
    scale = tl.load(scales + group * n_cols + first + col, mask=mask, other=0.0, eviction_policy="evict_last")
    at = zeros + group * n_zero_words + zero_word
    zero = tl.load(at, mask=zero_word < n_zero_words, other=0, eviction_policy="evict_last")
    for slot in tl.static_range(OUTPUTS):
        moved = _folded(word + spread(zero, SIDE)) + scale.to(tl.int16, bitcast=True).to(tl.int32) + slot
        # The next row's first, and the group after it, as the format's own kernel loads them.
        if slot + 1 < OUTPUTS:
            group = following
            if slot + 2 < OUTPUTS:
                following = tl.load(g_idx + k + slot + 2).to(tl.int64)
            at = scales + group * n_cols + first + col
            scale = tl.load(at, mask=mask, other=0.0, eviction_policy="evict_last")
            at = zeros + group * n_zero_words + zero_word
            zero = tl.load(at, mask=zero_word < n_zero_words, other=0, eviction_policy="evict_last")
        at = out + (k + slot) * n_cols + first + col
        tl.store(at, _as_output(moved, out), mask=mask, eviction_policy="evict_first")
