"""Triton code of the int8 matrix product: integer sums of a tile, and what is done to them afterwards.

The pieces are shared by the kernels that stop after one step and by the one that does all, so that a
step which is right alone is the same code in the whole.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Order of the scales: see kernels/gemm_epilogue.py.
A_W = tl.constexpr(0)
W_A = tl.constexpr(1)
PRODUCT = tl.constexpr(2)
ABSMAX = tl.constexpr(3)

# The float32 next to 1 / 127**2; the literal is that of bitsandbytes' CUDA code.
INV_127_SQUARED = tl.constexpr(6.200012e-05)


@triton.jit
def products(
    a,  # [M, K] int8; bytes of uint8 when UNSIGNED
    b,  # [N, K] int8, or [K, N] when INNER_FIRST
    row,  # [BLOCK_M] int64
    col,  # [BLOCK_N] int64
    n_rows,
    n_cols,
    n_inner,
    UNSIGNED: tl.constexpr,
    INNER_FIRST: tl.constexpr,
    SUMS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Sums of a[m, k] * b[n, k] over k, and of b[n, k] over k (0 unless they are needed): int32."""
    acc = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.int32)
    sums = tl.zeros([BLOCK_N], dtype=tl.int32)
    inner = tl.arange(0, BLOCK_K)
    in_rows = (row < n_rows)[:, None]
    in_cols = (col < n_cols)[None, :]
    for first in range(0, n_inner, BLOCK_K):
        k = (inner + first).to(tl.int64)
        inside = k < n_inner
        x = tl.load(a + row[:, None] * n_inner + k[None, :], mask=in_rows & inside[None, :], other=0)
        if INNER_FIRST:
            at = k[:, None] * n_cols + col[None, :]
        else:
            at = k[:, None] + col[None, :] * n_inner
        y = tl.load(b + at, mask=inside[:, None] & in_cols, other=0)
        if UNSIGNED:
            # The product takes operands of one dtype: a - 128 here, 128 * sums below. Where a is
            # masked this is -128 and not 0, but there b is 0.
            x = x ^ -128
        acc = tl.dot(x, y, acc, out_dtype=tl.int32)
        if SUMS or UNSIGNED:
            # A tile's sum is exact in float32. Integer sums have 64 bits in the interpreter of
            # Triton 3.2, and would be stored with them.
            sums += tl.sum(y.to(tl.float32), axis=0).to(tl.int32)
    if UNSIGNED:
        acc += sums[None, :] * 128
    return acc, sums


@triton.jit
def without_zero(acc, sums, row, n_rows, a_zero, ZERO_PER_TOKEN: tl.constexpr):
    """acc[m, n] - a_zero[m] * sums[n], modulo 2**32."""
    if ZERO_PER_TOKEN:
        zero = tl.load(a_zero + row, mask=row < n_rows, other=0)
    else:
        zero = tl.load(a_zero + row * 0)
    return acc - zero[:, None] * sums[None, :]


@triton.jit
def scaled(
    acc,  # [BLOCK_M, BLOCK_N] int32
    row,
    col,
    n_rows,
    n_cols,
    a_scale,  # [1] or [M] float32
    w_scale,  # [1] or [N] float32
    bias,  # [N], when BIAS
    PER_TOKEN: tl.constexpr,
    PER_CHANNEL: tl.constexpr,
    BIAS: tl.constexpr,
    ORDER: tl.constexpr,
):
    """float32 values of accumulators: every operation is rounded, and none is fused with the next."""
    if PER_TOKEN:
        s_a = tl.load(a_scale + row, mask=row < n_rows, other=0.0)[:, None]
    else:
        s_a = tl.load(a_scale + row * 0)[:, None]
    if PER_CHANNEL:
        s_w = tl.load(w_scale + col, mask=col < n_cols, other=0.0)[None, :]
    else:
        s_w = tl.load(w_scale + col * 0)[None, :]
    value = acc.to(tl.float32)
    if ORDER == A_W:
        value = value * s_a * s_w
    elif ORDER == W_A:
        value = value * s_w * s_a
    else:
        value = value * (s_a * s_w)
        if ORDER == ABSMAX:
            value = value * INV_127_SQUARED
    if BIAS:
        value = value + tl.load(bias + col, mask=col < n_cols, other=0.0).to(tl.float32)[None, :]
    return value


@triton.jit
def _epilogue_kernel(
    out,  # [M, N] output dtype
    acc,  # [M, N] int32
    a_scale,
    w_scale,
    a_zero,  # [1] or [M] int32, when ZERO
    sums,  # [N] int32, when ZERO
    bias,
    n_rows,
    n_cols,
    ZERO: tl.constexpr,
    ZERO_PER_TOKEN: tl.constexpr,
    PER_TOKEN: tl.constexpr,
    PER_CHANNEL: tl.constexpr,
    BIAS: tl.constexpr,
    ORDER: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    # One grid axis: the second one ends at 65535.
    col_tiles = tl.cdiv(n_cols, BLOCK_N)
    row = (tl.program_id(0) // col_tiles).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    col = (tl.program_id(0) % col_tiles).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    mask = (row < n_rows)[:, None] & (col < n_cols)[None, :]
    at = row[:, None] * n_cols + col[None, :]
    total = tl.load(acc + at, mask=mask, other=0)
    if ZERO:
        below = tl.load(sums + col, mask=col < n_cols, other=0)
        total = without_zero(total, below, row, n_rows, a_zero, ZERO_PER_TOKEN)
    value = scaled(
        total, row, col, n_rows, n_cols, a_scale, w_scale, bias, PER_TOKEN, PER_CHANNEL, BIAS, ORDER
    )
    tl.store(out + at, value.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _gemm_kernel(
    out,  # [M, N] output dtype, when SCALED
    accumulators,  # [M, N] int32, when KEEP
    a,
    b,
    a_scale,
    w_scale,
    a_zero,
    bias,
    n_rows,
    n_cols,
    n_inner,
    UNSIGNED: tl.constexpr,
    INNER_FIRST: tl.constexpr,
    KEEP: tl.constexpr,
    SCALED: tl.constexpr,
    ZERO: tl.constexpr,
    ZERO_PER_TOKEN: tl.constexpr,
    PER_TOKEN: tl.constexpr,
    PER_CHANNEL: tl.constexpr,
    BIAS: tl.constexpr,
    ORDER: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    col_tiles = tl.cdiv(n_cols, BLOCK_N)
    row = (tl.program_id(0) // col_tiles).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    col = (tl.program_id(0) % col_tiles).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    mask = (row < n_rows)[:, None] & (col < n_cols)[None, :]
    at = row[:, None] * n_cols + col[None, :]
    total, sums = products(
        a, b, row, col, n_rows, n_cols, n_inner, UNSIGNED, INNER_FIRST, ZERO, BLOCK_M, BLOCK_N, BLOCK_K
    )
    if KEEP:
        tl.store(accumulators + at, total, mask=mask)
    if SCALED:
        if ZERO:
            total = without_zero(total, sums, row, n_rows, a_zero, ZERO_PER_TOKEN)
        value = scaled(
            total, row, col, n_rows, n_cols, a_scale, w_scale, bias, PER_TOKEN, PER_CHANNEL, BIAS, ORDER
        )
        tl.store(out + at, value.to(out.dtype.element_ty), mask=mask)
