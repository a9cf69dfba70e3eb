"""Triton code of the quantization of activations by row (text: ``kernels/gemm_quantize.py``)."""

from __future__ import annotations

import triton
import triton.language as tl

SCALE = tl.constexpr(0)
FULL = tl.constexpr(1)
ABSMAX = tl.constexpr(2)
MINMAX = tl.constexpr(3)
# As bitsandbytes has it in its dequantize; kernels/llm_int8.py.
INV_127 = tl.constexpr(7.874015718698502e-3)
# 1.5 * 2**23: numbers of up to 22 bits lose their fraction, to nearest even, when it is added.
ROUNDER = tl.constexpr(12582912.0)


@triton.jit
def _nearest(x):
    """Nearest whole number of float32 within 2**22, ties to even; NaN gives 0."""
    x = tl.where(x == x, x, 0.0)
    x = tl.minimum(tl.maximum(x, -1024.0), 1024.0)
    return ((x + ROUNDER) - ROUNDER).to(tl.int32)


@triton.jit
def _quantize_kernel(
    out,  # [M, K] output dtype, when BACK
    codes,  # [M, K] int8 or uint8, when CODES
    scales,  # [M] float32, when CODES
    zeros,  # [M] int32, when CODES and MINMAX
    x,  # [M, K]
    n_rows,
    n_cols,
    RULE: tl.constexpr,
    LEAST: tl.constexpr,
    MOST: tl.constexpr,
    BACK: tl.constexpr,
    CODES: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    in_rows = row < n_rows
    lane = tl.arange(0, COLS)
    high = tl.zeros([ROWS], dtype=tl.float32)
    low = tl.zeros([ROWS], dtype=tl.float32)
    for first in range(0, n_cols, COLS):
        col = (lane + first).to(tl.int64)
        mask = in_rows[:, None] & (col < n_cols)[None, :]
        value = tl.load(x + row[:, None] * n_cols + col[None, :], mask=mask, other=0.0).to(tl.float32)
        if RULE != MINMAX:
            value = tl.abs(value)
        # Reductions may drop a NaN; an infinity they cannot.
        value = tl.where(value == value, value, float("inf"))
        high = tl.maximum(high, tl.max(value, axis=1))
        if RULE == MINMAX:
            low = tl.minimum(low, tl.min(value, axis=1))
    zero = tl.zeros([ROWS], dtype=tl.int32)
    # The plain division of Triton is not correctly rounded when it is compiled.
    if RULE == ABSMAX:
        scale = high
        inverse = tl.div_rn(tl.full([ROWS], 1.0, tl.float32), high) * 127.0
    else:
        if RULE == SCALE:
            scale = tl.div_rn(high, tl.full([ROWS], 127.0, tl.float32))
        elif RULE == FULL:
            scale = tl.div_rn(high, tl.full([ROWS], 127.5, tl.float32))
        else:
            scale = tl.div_rn(high - low, tl.full([ROWS], 255.0, tl.float32))
            zero = LEAST - _nearest(tl.div_rn(low, scale))
            # It is not below LEAST: low is at most 0.
            zero = tl.minimum(zero, MOST)
        inverse = tl.div_rn(tl.full([ROWS], 1.0, tl.float32), scale)
    if CODES:
        tl.store(scales + row, scale, mask=in_rows)
        if RULE == MINMAX:
            tl.store(zeros + row, zero, mask=in_rows)
    for first in range(0, n_cols, COLS):
        col = (lane + first).to(tl.int64)
        mask = in_rows[:, None] & (col < n_cols)[None, :]
        at = row[:, None] * n_cols + col[None, :]
        value = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
        code = _nearest(value * inverse[:, None]) + zero[:, None]
        code = tl.minimum(tl.maximum(code, LEAST), MOST)
        if CODES:
            tl.store(codes + at, code.to(codes.dtype.element_ty), mask=mask)
        if BACK:
            back = (code - zero[:, None]).to(tl.float32) * scale[:, None]
            if RULE == ABSMAX:
                back = back * INV_127
            tl.store(out + at, back.to(out.dtype.element_ty), mask=mask)
