"""The Triton kernel of ``kernels/gptq.py``, which holds the format's specification."""

from __future__ import annotations

import triton
import triton.language as tl

# Where the scale and the zero of a row are loaded.
GROUP_PER_TILE = tl.constexpr(0)  # once: every row of the program's tile is of one group, or of none
GROUP_PER_WORD = tl.constexpr(1)  # once a packed row: its codes are of one group
GROUP_PER_ROW = tl.constexpr(2)  # for each row: activation order, or groups that split a word

ZEROS_V1 = tl.constexpr(0)
ZEROS_V2 = tl.constexpr(2)


@triton.jit
def _code(w0, w1, w2, SLOT: tl.constexpr, BITS: tl.constexpr):
    """Code ``SLOT`` of a packed row; w1 and w2 are its further words at 3 bit."""
    MAXQ: tl.constexpr = 2**BITS - 1
    # The words are signed: where a code straddles two of them (3 bit only), its parts are
    # masked before they are joined, else the first one's sign bits overwrite the second.
    if BITS * SLOT + BITS <= 32:
        code = (w0 >> (BITS * SLOT)) & MAXQ
    elif SLOT == 10:
        code = ((w0 >> 30) & 3) | ((w1 & 1) << 2)
    elif SLOT < 21:
        code = (w1 >> (BITS * SLOT - 32)) & MAXQ
    elif SLOT == 21:
        code = ((w1 >> 31) & 1) | ((w2 & 3) << 1)
    else:
        code = (w2 >> (BITS * SLOT - 64)) & MAXQ
    return code


@triton.jit
def _fields(word, BITS: tl.constexpr, COUNT: tl.constexpr):
    """The 4 or 8 lowest fields of each word, in order, side by side: [words * COUNT]. Not masked."""
    if COUNT == 8:
        even = tl.join(tl.join(word, word >> (4 * BITS)), tl.join(word >> (2 * BITS), word >> (6 * BITS)))
        odd = tl.join(
            tl.join(word >> BITS, word >> (5 * BITS)), tl.join(word >> (3 * BITS), word >> (7 * BITS))
        )
        fields = tl.join(even, odd)
    else:
        fields = tl.join(tl.join(word, word >> (2 * BITS)), tl.join(word >> BITS, word >> (3 * BITS)))
    return tl.reshape(fields, [fields.numel])


@triton.jit
def _load_group(
    scales, qzeros, group, n_groups, first, cols_left, n_cols, n_zero_words,
    BITS: tl.constexpr, COLS: tl.constexpr, SIDE: tl.constexpr,
):  # fmt: skip
    """Scales of one group as they are stored, for each column of the tile, and the words with its zeros.

    A lane has SIDE columns side by side and loads their zeros at once: a load for each column
    fetches every word eight times at 4 bit, and halves the speed in activation order. The second word
    is of columns whose zeros need two.
    """
    # Out of range would read past the scales: such a row becomes NaN instead.
    known = (group >= 0) & (group < n_groups)
    left = tl.where(known, cols_left, 0)
    row = tl.where(known, group, 0).to(tl.int64)
    col = tl.arange(0, COLS)
    # Scales and zeros are read again for other rows, words and outputs are not.
    scale = tl.load(
        scales + row * n_cols + first + col, mask=col < left, other=float("nan"), eviction_policy="evict_last"
    )
    lane, shift = _lane_and_shift(first, BITS, COLS, SIDE)
    # Position in the row's bit stream: words before the tile in 64 bits, the rest in 32.
    at = qzeros + row * n_zero_words + first * BITS // 32
    at += ((first * BITS % 32).to(tl.int32) + lane * BITS) >> 5
    there = tl.minimum(left - lane, SIDE)
    word = tl.load(at, mask=there > 0, other=0, eviction_policy="evict_last")
    high = word
    if SIDE * BITS > 32:
        high = tl.load(at + 1, mask=there > 4, other=0, eviction_policy="evict_last")
    elif BITS == 3:
        more = shift + there * BITS > 32
        high = tl.load(at + 1, mask=more, other=0, eviction_policy="evict_last")
    return scale, word, high


@triton.jit
def _lane_and_shift(first, BITS: tl.constexpr, COLS: tl.constexpr, SIDE: tl.constexpr):
    """First column of each lane, and the bit of its zero word at which its zeros begin."""
    # Without the hint a lane takes neighbouring words, which costs a way through shared memory.
    lane = tl.max_contiguous(tl.arange(0, COLS // SIDE), 1) * SIDE
    return lane, ((first * BITS % 32).to(tl.int32) + lane * BITS) & 31


@triton.jit
def _zeros_of(
    word, high, first, BITS: tl.constexpr, ZEROS: tl.constexpr, COLS: tl.constexpr, SIDE: tl.constexpr
):
    """int32 zeros, for each column of the tile, of the words that :func:`_load_group` found."""
    MAXQ: tl.constexpr = 2**BITS - 1
    if SIDE * BITS > 32:
        even = tl.join(tl.join(word, high), tl.join(word >> 16, high >> 16))
        odd = tl.join(tl.join(word >> 8, high >> 8), tl.join(word >> 24, high >> 24))
        fields = tl.join(even, odd)
        stored = tl.reshape(fields, [fields.numel])
    else:
        _, shift = _lane_and_shift(first, BITS, COLS, SIDE)
        bits = word.to(tl.uint32, bitcast=True) >> shift.to(tl.uint32)
        if BITS == 3:
            # Where it does not straddle ``high`` is 0, and the shift only has to stay below 32.
            bits = bits | (high.to(tl.uint32, bitcast=True) << ((32 - shift) & 31).to(tl.uint32))
        stored = _fields(bits.to(tl.int32, bitcast=True), BITS, SIDE)
    zero = stored & MAXQ
    if ZEROS != ZEROS_V2:
        zero = zero + 1
    if ZEROS == ZEROS_V1:
        # Without this mask the stored value maxq reads as maxq + 1:
        # https://github.com/AutoGPTQ/AutoGPTQ/pull/484
        zero = zero & MAXQ
    return zero


@triton.jit
def _group_of(g_idx, row, rows_left, i, group_rows, ACT_ORDER: tl.constexpr):
    """Group of row ``row + i``."""
    if ACT_ORDER:
        group = tl.load(g_idx + row + i, mask=i < rows_left, other=0)
    else:
        group = (row + i) // group_rows
    return group


@triton.jit
def _groupless(g_idx, row, rows_left, CODES: tl.constexpr):
    """A bit for each row of a packed one: whether it names another group than the first, which is all."""
    slot = tl.arange(0, CODES)
    group = tl.load(g_idx + row + slot, mask=slot < rows_left, other=0)
    return tl.sum(tl.where(group == 0, 0, 1 << slot))


@triton.jit
def gptq_kernel(
    out,  # [K, N] output dtype
    qweight,  # [ceil(K * BITS / 32), N] int32
    qzeros,  # [G, n_zero_words] int32
    scales,  # [G, N] float16, bfloat16 or float32
    g_idx,  # [K] int32 when ACT_ORDER
    n_rows,  # K
    n_cols,  # N
    n_zero_words,  # ceil(N * BITS / 32)
    n_groups,  # G
    group_rows,  # rows a sequential group has, at least 1
    BITS: tl.constexpr,
    ZEROS: tl.constexpr,
    ACT_ORDER: tl.constexpr,
    GROUP_PER: tl.constexpr,
    PACKED_ROWS: tl.constexpr,
    COLS: tl.constexpr,
    SIDE: tl.constexpr,
):
    CODES: tl.constexpr = 32 if BITS == 3 else 32 // BITS
    WORDS: tl.constexpr = 3 if BITS == 3 else 1
    # The grid is described in kernels/_grid.py.
    first_packed = (tl.program_id(2) * tl.num_programs(1) + tl.program_id(1)) * PACKED_ROWS
    first = tl.program_id(0).to(tl.int64) * COLS
    col = tl.arange(0, COLS)
    cols_left = tl.minimum(n_cols - first, COLS).to(tl.int32)

    if GROUP_PER == GROUP_PER_TILE:
        group = tl.program_id(2)
        scale, word, high = _load_group(
            scales, qzeros, group, n_groups, first, cols_left, n_cols, n_zero_words, BITS, COLS, SIDE
        )
        scale = scale.to(tl.float32)
        zero = _zeros_of(word, high, first, BITS, ZEROS, COLS, SIDE)
    for r in range(0, PACKED_ROWS):
        packed = first_packed + r
        row = packed * CODES
        # One vector compare: a scalar and a vector i1 cannot be combined under the
        # interpreter of Triton 3.9.
        rows_left = n_rows - row
        mask = col < tl.where(rows_left > 0, cols_left, 0)
        words = qweight + packed.to(tl.int64) * WORDS * n_cols + first + col
        w0 = tl.load(words, mask=mask, other=0, eviction_policy="evict_first")
        w1 = w0
        w2 = w0
        if BITS == 3:
            w1 = tl.load(words + n_cols, mask=mask, other=0, eviction_policy="evict_first")
            w2 = tl.load(words + 2 * n_cols, mask=mask, other=0, eviction_policy="evict_first")
        if GROUP_PER != GROUP_PER_TILE:
            group = _group_of(g_idx, row, rows_left, 0, group_rows, ACT_ORDER)
            ahead, word, high = _load_group(
                scales, qzeros, group, n_groups, first, cols_left, n_cols, n_zero_words, BITS, COLS, SIDE
            )
        if GROUP_PER == GROUP_PER_WORD:
            scale = ahead.to(tl.float32)
            zero = _zeros_of(word, high, first, BITS, ZEROS, COLS, SIDE)
        if GROUP_PER == GROUP_PER_ROW:
            group = _group_of(g_idx, row, rows_left, 1, group_rows, ACT_ORDER)
        elif ACT_ORDER:
            groupless = _groupless(g_idx, row, rows_left, CODES)
        for i in tl.static_range(CODES):
            if GROUP_PER == GROUP_PER_ROW:
                scale = ahead.to(tl.float32)
                zero = _zeros_of(word, high, first, BITS, ZEROS, COLS, SIDE)
                # The next row's, and the group of the one after it, before this one is stored: a load that
                # comes after a store waits for it, since the two might overlap for all that the compiler
                # knows.
                if i + 1 < CODES:
                    ahead, word, high = _load_group(
                        scales, qzeros, group, n_groups, first, cols_left, n_cols, n_zero_words,
                        BITS, COLS, SIDE,
                    )  # fmt: skip
                    if i + 2 < CODES:
                        group = _group_of(g_idx, row, rows_left, i + 2, group_rows, ACT_ORDER)
            # Integers are subtracted first. q * s - z * s overflows where the zero times
            # the scale does: https://github.com/vllm-project/vllm/pull/55532
            value = (_code(w0, w1, w2, i, BITS) - zero).to(tl.float32) * scale
            at = out + (row + i).to(tl.int64) * n_cols + first + col
            here = i < rows_left
            if ACT_ORDER and GROUP_PER != GROUP_PER_ROW:
                here = here & ((groupless >> i) & 1 == 0)
            inside = col < tl.where(here, cols_left, 0)
            tl.store(at, value.to(out.dtype.element_ty), mask=inside, eviction_policy="evict_first")
        if ACT_ORDER and GROUP_PER != GROUP_PER_ROW:
            if groupless != 0:
                for slot in range(0, CODES):
                    at = out + (row + slot).to(tl.int64) * n_cols + first + col
                    inside = col < tl.where((groupless >> slot) & 1 == 0, 0, cols_left)
                    tl.store(at, tl.full([COLS], float("nan"), out.dtype.element_ty), mask=inside)
