"""Triton code of the fp8 e4m3 matrix product (text: ``kernels/gemm_fp8.py``)."""

from __future__ import annotations

import triton
import triton.language as tl

from kernels._gemm_kernel import A_W, W_A

# Rows of K that share a scale by block, and rows of N.
BLOCK = tl.constexpr(128)
# How a side is scaled.
TENSOR = tl.constexpr(0)
LINE = tl.constexpr(1)  # per token or channel
BLOCKS = tl.constexpr(2)


@triton.jit
def decoded(code):
    """float32 of e4m3fn bytes, exact and with the sign of a zero, in integer arithmetic."""
    code = code.to(tl.int32)
    size = code & 127
    small = (size.to(tl.float32) * 0.001953125).to(tl.int32, bitcast=True)
    # Exponents of e4m3 have bias 7, those of float32 127.
    bits = tl.where(size < 8, small, (size << 20) + (120 << 23))
    bits = tl.where(size == 127, 0x7FC00000, bits)
    # A negation would make +0 of -0 (0 - x).
    return (bits | ((code >> 7) << 31)).to(tl.float32, bitcast=True)


@triton.jit
def _in_order(value, s_a, s_w, ORDER: tl.constexpr):
    """``value`` times two scales, each product rounded."""
    if ORDER == A_W:
        return value * s_a * s_w
    elif ORDER == W_A:
        return value * s_w * s_a
    else:
        return value * (s_a * s_w)


@triton.jit
def _gemm_fp8_kernel(
    out,  # [M, N] output dtype
    a,  # [M, K] bytes of e4m3fn
    b,  # [N, K] bytes of e4m3fn
    a_scale,  # float32 [1], [M] or [M, KB]
    w_scale,  # float32 [1], [N] or [NB, KB]
    bias,  # [N], when BIAS
    n_rows,
    n_cols,
    n_inner,
    A_PER: tl.constexpr,
    W_PER: tl.constexpr,
    BIAS: tl.constexpr,
    ORDER: tl.constexpr,
    NATIVE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    # One grid axis: the second one ends at 65535.
    col_tiles = tl.cdiv(n_cols, BLOCK_N)
    row = (tl.program_id(0) // col_tiles).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    col = (tl.program_id(0) % col_tiles).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    in_rows = row < n_rows
    in_cols = col < n_cols
    inner = tl.arange(0, BLOCK_K)
    k_blocks = tl.cdiv(n_inner, BLOCK)

    total = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
    for block in range(0, k_blocks):
        part = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
        for step in range(0, BLOCK // BLOCK_K):
            k = (inner + (block * BLOCK + step * BLOCK_K)).to(tl.int64)
            inside = k < n_inner
            x = tl.load(
                a + row[:, None] * n_inner + k[None, :], mask=in_rows[:, None] & inside[None, :], other=0
            )
            y = tl.load(
                b + k[:, None] + col[None, :] * n_inner, mask=inside[:, None] & in_cols[None, :], other=0
            )
            if NATIVE:
                # Hopper's fp8 tensor cores keep about 14 bits of a sum. 32 lets one instruction of 32
                # products stay in them and adds its result in float32; with less the compiler takes
                # float16 tensor cores instead
                # (https://github.com/triton-lang/triton/blob/main/lib/Analysis/Utility.cpp, supportMMA).
                part = tl.dot(
                    x.to(tl.float8e4nv, bitcast=True),
                    y.to(tl.float8e4nv, bitcast=True),
                    part,
                    max_num_imprecise_acc=32,
                )
            else:
                # The interpreter reads NaN codes as 480 (releases up to 3.9).
                part = tl.dot(decoded(x), decoded(y), part, input_precision="ieee")
        if A_PER == BLOCKS:
            s_a = tl.load(a_scale + row * k_blocks + block, mask=in_rows, other=0.0)[:, None]
        if W_PER == BLOCKS:
            s_w = tl.load(w_scale + (col // BLOCK) * k_blocks + block, mask=in_cols, other=0.0)[None, :]
        if A_PER == BLOCKS and W_PER == BLOCKS:
            part = _in_order(part, s_a, s_w, ORDER)
        elif A_PER == BLOCKS:
            part = part * s_a
        elif W_PER == BLOCKS:
            part = part * s_w
        total += part

    if A_PER == LINE:
        t_a = tl.load(a_scale + row, mask=in_rows, other=0.0)[:, None]
    elif A_PER == TENSOR:
        t_a = tl.load(a_scale + row * 0)[:, None]
    if W_PER == LINE:
        t_w = tl.load(w_scale + col, mask=in_cols, other=0.0)[None, :]
    elif W_PER == TENSOR:
        t_w = tl.load(w_scale + col * 0)[None, :]
    if A_PER != BLOCKS and W_PER != BLOCKS:
        total = _in_order(total, t_a, t_w, ORDER)
    elif A_PER != BLOCKS:
        total = total * t_a
    elif W_PER != BLOCKS:
        total = total * t_w
    if BIAS:
        total = total + tl.load(bias + col, mask=in_cols, other=0.0).to(tl.float32)[None, :]
    mask = in_rows[:, None] & in_cols[None, :]
    tl.store(out + row[:, None] * n_cols + col[None, :], total.to(out.dtype.element_ty), mask=mask)
