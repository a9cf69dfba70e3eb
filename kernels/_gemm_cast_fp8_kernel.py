"""Triton code of the cast of activations to fp8 e4m3 (text: ``kernels/gemm_cast_fp8.py``).

No value is converted to or from an fp8 type: the interpreter (releases up to 3.9) makes 1.0 of 1.9487 and
NaN of 465, and reads NaN codes as 480. Integers give the same bits everywhere.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels._gemm_fp8_kernel import BLOCK, BLOCKS, TENSOR, decoded


@triton.jit
def encoded(value):
    """e4m3fn bytes, as int32, of float32: to nearest, ties to even, saturating; NaN is NaN."""
    bits = value.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    held = tl.minimum(size, 0x43E00000)  # 448
    # Of a normal number 20 bits go; a carry moves on to the exponent, whose bias becomes 7.
    normal = ((held + 0x7FFFF + ((held >> 20) & 1)) >> 20) - (120 << 3)
    # 2**14 has steps of 2**-9, as subnormal codes do: the sum rounds to them.
    small = (held.to(tl.float32, bitcast=True) + 16384.0).to(tl.int32, bitcast=True) - 0x46800000
    code = tl.where(held < 0x3C800000, small, normal)  # 2**-6
    code = tl.where(size > 0x7F800000, 127, code)
    return code | ((bits >> 24) & 128)


@triton.jit
def _largest(x, row, n_rows, n_cols, first, last, ROWS: tl.constexpr, COLS: tl.constexpr):
    """Largest magnitude of each row from column ``first`` to ``last``; NaN counts as an infinity."""
    high = tl.zeros([ROWS], dtype=tl.float32)
    for start in range(first, last, COLS):
        col = (tl.arange(0, COLS) + start).to(tl.int64)
        mask = (row < n_rows)[:, None] & (col < last)[None, :]
        value = tl.load(x + row[:, None] * n_cols + col[None, :], mask=mask, other=0.0).to(tl.float32)
        value = tl.abs(value)
        # Reductions may drop a NaN; an infinity they cannot.
        value = tl.where(value == value, value, float("inf"))
        high = tl.maximum(high, tl.max(value, axis=1))
    return high


@triton.jit
def _cast_kernel(
    codes,  # [M, K] bytes
    scales,  # float32: [1], which is read, or [M] or [M, KB], which are written
    x,  # [M, K]
    n_rows,
    n_cols,
    PER: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    in_rows = row < n_rows
    # Rows, or their blocks, one after the other; program_id(1) would end at 65535.
    if PER == BLOCKS:
        width = BLOCK
    else:
        width = n_cols
    n_blocks = tl.cdiv(n_cols, width)
    for block in range(0, n_blocks):
        first = block * width
        last = tl.minimum(first + width, n_cols)
        if PER != TENSOR:
            high = _largest(x, row, n_rows, n_cols, first, last, ROWS, COLS)
            # The plain division of Triton is not correctly rounded when it is compiled.
            scale = tl.div_rn(high, tl.full([ROWS], 448.0, tl.float32))
            tl.store(scales + row * n_blocks + block, scale, mask=in_rows)
        else:
            scale = tl.load(scales + row * 0)
        for start in range(first, last, COLS):
            col = (tl.arange(0, COLS) + start).to(tl.int64)
            mask = in_rows[:, None] & (col < last)[None, :]
            at = row[:, None] * n_cols + col[None, :]
            value = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
            spread = tl.broadcast_to(scale[:, None], [ROWS, COLS])
            # 0 / 0 is NaN.
            nothing = (value == 0.0) & (spread == 0.0)
            code = encoded(tl.where(nothing, value, tl.div_rn(value, spread)))
            tl.store(codes + at, code.to(tl.uint8), mask=mask)


@triton.jit
def _decode_kernel(
    out,  # [M, K] output dtype
    codes,  # [M, K] bytes
    scales,  # float32 [1], [M] or [M, KB]
    n_rows,
    n_cols,
    PER: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
):
    # One grid axis: the second one ends at 65535.
    col_tiles = tl.cdiv(n_cols, COLS)
    row = (tl.program_id(0) // col_tiles).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    col = (tl.program_id(0) % col_tiles).to(tl.int64) * COLS + tl.arange(0, COLS)
    in_rows = row < n_rows
    mask = in_rows[:, None] & (col < n_cols)[None, :]
    at = row[:, None] * n_cols + col[None, :]
    value = decoded(tl.load(codes + at, mask=mask, other=0))
    if PER == TENSOR:
        value = value * tl.load(scales)
    elif PER == BLOCKS:
        near = row[:, None] * tl.cdiv(n_cols, BLOCK) + (col // BLOCK)[None, :]
        value = value * tl.load(scales + near, mask=mask, other=0.0)
    else:
        value = value * tl.load(scales + row, mask=in_rows, other=0.0)[:, None]
    tl.store(out + at, value.to(out.dtype.element_ty), mask=mask)
