"""The Triton kernel of ``kernels/int8_affine.py``, which holds the format's specification."""

from __future__ import annotations

import triton
import triton.language as tl

from kernels._lanes import spread

PER_TENSOR = tl.constexpr(0)
PER_ROW = tl.constexpr(1)
PER_COLUMN = tl.constexpr(2)
PER_GROUP = tl.constexpr(3)


@triton.jit
def int8_affine_kernel(
    out,  # [R, C] output dtype
    codes,  # [R, C] int8 or uint8
    scale,  # [1], [R], [C] or [R, n_groups]
    zero_point,  # the same, when ZERO
    n_rows,
    n_cols,
    n_groups,
    PER: tl.constexpr,
    ZERO: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    SIDE: tl.constexpr,  # columns a lane has side by side
    SHARED: tl.constexpr,  # of a group: columns that load one scale; 1, or SIDE where all are of one group
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
):
    # One grid axis: the second one ends at 65535, which is fewer than an embedding has rows.
    col_tiles = tl.cdiv(n_cols, COLS)
    first_row = (tl.program_id(0) // col_tiles) * ROWS
    first = (tl.program_id(0) % col_tiles).to(tl.int64) * COLS
    col = tl.arange(0, COLS)
    cols_left = tl.minimum(n_cols - first, COLS).to(tl.int32)
    # Codes are bytes: without the hint a lane loads 16, and 16-bit outputs take a way through
    # shared memory.
    code_col = tl.max_contiguous(col, SIDE)
    if PER == PER_TENSOR:
        s = tl.load(scale).to(tl.float32)
        z = 0
        if ZERO:
            z = tl.load(zero_point).to(tl.int32)
    elif PER == PER_COLUMN:
        inside = col < cols_left
        s = tl.load(scale + first + col, mask=inside, other=0.0, eviction_policy="evict_last").to(tl.float32)
        z = 0
        if ZERO:
            z = tl.load(zero_point + first + col, mask=inside, other=0, eviction_policy="evict_last")
            z = z.to(tl.int32)
    elif PER == PER_GROUP:
        # A tile may span many groups, and start inside one; its start is in 64 bits.
        lane = tl.max_contiguous(tl.arange(0, COLS // SHARED), 1) * SHARED
        place = first // GROUP_SIZE + ((first % GROUP_SIZE).to(tl.int32) + lane) // GROUP_SIZE
    for r in range(0, ROWS):
        row = (first_row + r).to(tl.int64)
        # One vector compare: a scalar and a vector i1 cannot be combined under the
        # interpreter of Triton 3.9.
        left = tl.where(row < n_rows, cols_left, 0)
        mask = col < left
        if PER == PER_ROW:
            s = tl.load(scale + row, mask=row < n_rows, other=0.0).to(tl.float32)
            z = 0
            if ZERO:
                z = tl.load(zero_point + row, mask=row < n_rows, other=0).to(tl.int32)
        elif PER == PER_GROUP:
            at = place + row * n_groups
            s = tl.load(scale + at, mask=lane < left, other=0.0, eviction_policy="evict_last")
            s = spread(s.to(tl.float32), SHARED)
            z = 0
            if ZERO:
                z = tl.load(zero_point + at, mask=lane < left, other=0, eviction_policy="evict_last")
                z = spread(z.to(tl.int32), SHARED)
        at = row * n_cols + first
        # Both in int32 before they are subtracted: 8-bit differences wrap.
        q = tl.load(codes + at + code_col, mask=mask, other=0, eviction_policy="evict_first").to(tl.int32)
        value = (q - z).to(tl.float32) * s
        tl.store(out + at + col, value.to(out.dtype.element_ty), mask=mask, eviction_policy="evict_first")
