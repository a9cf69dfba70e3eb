"""The Triton kernels of ``kernels/squeezellm.py``, which holds the format's specification.

The first decodes every element without its outlier, one of two kernels: with full rows, or where
Triton has no gather, it loads each table entry. The second launch goes over the outliers, decodes
those elements again, sums in float32 and rounds once. No two programs of one launch write the
same element, so the result does not depend on their order and nothing is added atomically; and
no float32 copy of the weight is needed between the two.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels._gather import take
from kernels._gptq_kernel import _code


@triton.jit
def dense_kernel(
    out,  # [K, N] output dtype
    qweight,  # [K * BITS / 32, N] int32
    lookup_table,  # [N, 2**BITS] float32, float16, or output dtype
    full_of,  # [N] int32 when FULL: a channel's column of full_rows, or -1
    full_rows,  # [K, n_full] float32 when FULL
    n_packed,  # packed rows: K / 8 at 4 bit, K / 32 at 3 bit
    n_cols,  # N
    n_full,  # topX
    BITS: tl.constexpr,
    FULL: tl.constexpr,
    DOWN: tl.constexpr,  # neighbouring programs decode neighbouring rows, with the same tables
    PACKED_ROWS: tl.constexpr,
    COLS: tl.constexpr,
):
    CODES: tl.constexpr = 32 if BITS == 3 else 32 // BITS
    WORDS: tl.constexpr = 3 if BITS == 3 else 1
    # One grid axis: the second one ends at 65535.
    if DOWN:
        row_tiles = tl.cdiv(n_packed, PACKED_ROWS)
        first_packed = (tl.program_id(0) % row_tiles) * PACKED_ROWS
        first = (tl.program_id(0) // row_tiles).to(tl.int64) * COLS
    else:
        col_tiles = tl.cdiv(n_cols, COLS)
        first_packed = (tl.program_id(0) // col_tiles) * PACKED_ROWS
        first = (tl.program_id(0) % col_tiles).to(tl.int64) * COLS
    col = tl.arange(0, COLS)
    cols_left = tl.minimum(n_cols - first, COLS).to(tl.int32)
    table = lookup_table + first * 2**BITS + col * 2**BITS
    if FULL:
        place = tl.load(full_of + first + col, mask=col < cols_left, other=-1)
    for r in range(0, PACKED_ROWS):
        packed = first_packed + r
        # One vector compare: a scalar and a vector i1 cannot be combined under the
        # interpreter of Triton 3.9.
        mask = col < tl.where(packed < n_packed, cols_left, 0)
        words = qweight + packed.to(tl.int64) * WORDS * n_cols + first + col
        w0 = tl.load(words, mask=mask, other=0, eviction_policy="evict_first")
        w1 = w0
        w2 = w0
        if BITS == 3:
            w1 = tl.load(words + n_cols, mask=mask, other=0, eviction_policy="evict_first")
            w2 = tl.load(words + 2 * n_cols, mask=mask, other=0, eviction_policy="evict_first")
        for i in tl.static_range(CODES):
            k = packed.to(tl.int64) * CODES + i
            # A pointer to the table of the lane's own channel: a select tree costs twice the
            # instructions.
            entry = table + _code(w0, w1, w2, i, BITS)
            value = tl.load(entry, mask=mask, other=0.0, eviction_policy="evict_last")
            if FULL:
                value = value.to(tl.float32)
                has = tl.where(mask, place, -1) >= 0
                full = tl.load(full_rows + k * n_full + place, mask=has, other=0.0)
                # Not ``value + 0``: that would turn -0 into +0.
                value = tl.where(has, value + full, value)
            at = out + k * n_cols + first + col
            tl.store(at, value.to(out.dtype.element_ty), mask=mask, eviction_policy="evict_first")


@triton.jit
def gather_kernel(
    out,  # [K, N] output dtype
    qweight,  # [K * BITS / 32, N] int32
    lookup_table,  # [N, 2**BITS] float32, float16, or output dtype
    n_packed,  # packed rows, as above
    n_cols,  # N
    BITS: tl.constexpr,
    PACKED_ROWS: tl.constexpr,
    COLS: tl.constexpr,
):
    CODES: tl.constexpr = 32 if BITS == 3 else 32 // BITS
    WORDS: tl.constexpr = 3 if BITS == 3 else 1
    # The grid is described in kernels/_grid.py.
    first_packed = (tl.program_id(2) * tl.num_programs(1) + tl.program_id(1)) * PACKED_ROWS
    first = tl.program_id(0).to(tl.int64) * COLS
    col = tl.arange(0, COLS)[None, :]
    cols_left = tl.minimum(n_cols - first, COLS).to(tl.int32)
    packed_left = n_packed - first_packed
    entry = tl.arange(0, 2**BITS)[:, None]
    table = tl.load(lookup_table + (first + col) * 2**BITS + entry, mask=col < cols_left, other=0.0)
    # Rounded before it is spread over the program's threads, which is half the bytes. What is looked up
    # has 32 bits all the same: one bank of shared memory an entry, which lanes of neighbouring columns
    # never share.
    table = table.to(out.dtype.element_ty).to(tl.float32)
    packed = tl.arange(0, PACKED_ROWS)[:, None]
    mask = (packed < packed_left) & (col < cols_left)
    words = qweight + (first_packed.to(tl.int64) + packed) * WORDS * n_cols + first + col
    # Unsigned, so that a shift brings in zeros. [packed row, slot, column] from here on.
    word = tl.load(words, mask=mask, other=0, eviction_policy="evict_first").to(tl.uint32, bitcast=True)
    slot = tl.arange(0, CODES)[None, :, None]
    if BITS == 3:
        w1 = tl.load(words + n_cols, mask=mask, other=0, eviction_policy="evict_first")
        w1 = w1.to(tl.uint32, bitcast=True)
        w2 = tl.load(words + 2 * n_cols, mask=mask, other=0, eviction_policy="evict_first")
        w2 = w2.to(tl.uint32, bitcast=True)
        # Eight codes are three bytes: four words of eight codes each, so that none straddles two.
        second = (word >> 24) | (w1 << 8)
        third = (w1 >> 16) | (w2 << 16)
        low = tl.where(slot < 8, word[:, None, :], second[:, None, :])
        high = tl.where(slot < 24, third[:, None, :], (w2 >> 8)[:, None, :])
        code = tl.where(slot < 16, low, high) >> (slot % 8 * 3).to(tl.uint32)
    else:
        code = word[:, None, :] >> (slot * BITS).to(tl.uint32)
    code = tl.reshape((code & (2**BITS - 1)).to(tl.int32), [PACKED_ROWS * CODES, COLS])
    value = take(table, code)
    row = tl.arange(0, PACKED_ROWS * CODES)[:, None]
    mask = (row < packed_left * CODES) & (col < cols_left)
    at = out + (first_packed.to(tl.int64) * CODES + row) * n_cols + first + col
    tl.store(at, value.to(out.dtype.element_ty), mask=mask, eviction_policy="evict_first")


@triton.jit
def outlier_kernel(
    out,  # [K, N] output dtype
    qweight,  # [K * BITS / 32, N] int32
    lookup_table,  # [N, 2**BITS] float32 or float16
    rows,  # [N + 1] int32
    cols,  # [nnz] int32
    vals,  # [nnz] float32
    full_of,  # as above
    full_rows,
    n_rows,  # K
    n_cols,  # N
    nnz,
    n_full,  # topX
    BITS: tl.constexpr,
    FULL: tl.constexpr,
    STEPS: tl.constexpr,  # halvings that take N + 1 pointers to one
    ENTRIES: tl.constexpr,
):
    MAXQ: tl.constexpr = 2**BITS - 1
    entry = tl.program_id(0) * ENTRIES + tl.arange(0, ENTRIES)
    known = entry < nnz
    # First pointer beyond the entry: the channel is the one before it. Whatever the pointers
    # are, low stays within 0 .. N + 1.
    low = tl.zeros((ENTRIES,), dtype=tl.int32)
    high = low + (n_cols + 1)
    for _ in range(0, STEPS):
        searching = low < high
        middle = (low + high) >> 1
        pointer = tl.load(rows + middle, mask=known & searching, other=0)
        above = pointer > entry
        high = tl.where(searching & above, middle, high)
        low = tl.where(searching, tl.where(above, low, middle + 1), low)
    channel = low - 1
    k = tl.load(cols + entry, mask=known, other=-1)
    # Compared before any address is formed: an index from a damaged file must not be followed.
    inside = known & (channel >= 0) & (channel < n_cols) & (k >= 0) & (k < n_rows)

    # 32 codes take BITS words at either width.
    bit = (k & 31) * BITS
    shift = bit & 31
    word_row = (k >> 5) * BITS + (bit >> 5)
    words = qweight + word_row.to(tl.int64) * n_cols + channel
    # Unsigned, so that a shift brings in zeros.
    code = tl.load(words, mask=inside, other=0).to(tl.uint32, bitcast=True) >> shift.to(tl.uint32)
    if BITS == 3:
        straddles = inside & (shift > 29)
        upper = tl.load(words + n_cols, mask=straddles, other=0).to(tl.uint32, bitcast=True)
        # Where it does not straddle ``upper`` is 0, and the shift only has to stay below 32.
        code = code | (upper << ((32 - shift) & 31).to(tl.uint32))
    code = (code & MAXQ).to(tl.int32)

    entry_of_table = lookup_table + channel.to(tl.int64) * 2**BITS + code
    value = tl.load(entry_of_table, mask=inside, other=0.0).to(tl.float32)
    value = value + tl.load(vals + entry, mask=inside, other=0.0)
    if FULL:
        place = tl.load(full_of + channel, mask=inside, other=-1)
        has = inside & (place >= 0)
        full = tl.load(full_rows + k.to(tl.int64) * n_full + place, mask=has, other=0.0)
        value = tl.where(has, value + full, value)
    at = out + k.to(tl.int64) * n_cols + channel
    tl.store(at, value.to(out.dtype.element_ty), mask=inside)
