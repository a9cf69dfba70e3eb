"""gemm_fp8: an fp8 e4m3 matrix product (W8A8), codes to floats, scaled by tensor, line or block.

::

    part[m, n, kb] = sum over k in block kb of value(a[m, k]) * value(b[n, k])    kb = k // 128
    total[m, n]    = 0, then for each kb in order  fp32(total + s(part[m, n, kb]))
    y[m, n]        = t(total[m, n])
    out[m, n]      = round_out(fp32(y[m, n] + bias[n]))    or round_out(y[m, n]) without bias

s multiplies by the scales that are by block, t by those that are not; each product is rounded to float32.
Where both sides' scales belong to one of them, ``order`` says how:

======= ==================================================
a-w     fp32(fp32(x * a_scale) * w_scale)
w-a     fp32(fp32(x * w_scale) * a_scale)
product fp32(x * fp32(a_scale * w_scale))
======= ==================================================

======= =========================== ================================================================
field   dtype                       shape
======= =========================== ================================================================
a       float8_e4m3fn               [M, K]
b       float8_e4m3fn               [N, K], as a linear layer's weight
a_scale float32                     [1], [M] per token, or [M, ceil(K / 128)] per block of 1 x 128
w_scale float32                     [1], [N] per channel, or [ceil(N / 128), ceil(K / 128)] per block
                                    of 128 x 128
bias    None; float16, bfloat16,    [N]
        float32
======= =========================== ================================================================

The last block of K or N may be short; K may be 0. A code is ``seeeemmm``: (1 + m / 8) * 2**(e - 7), with
e = 0 m / 8 * 2**-6, and 0x7F, 0xFF are NaN; there is no infinity, and the largest number is 448.

**Sums.** No accumulator is prescribed. Where the products of an output are whole multiples of a power of two,
and few enough of it that any hardware holds their sum, the output is exact to the bit; else it is held
to the bound of ``docs/gemm-bounds.md``, which takes up what fp8 tensor cores cut off.

Source: OCP 8-bit Floating Point Specification 1.0 (E4M3); ``torch._scaled_mm``; DeepSeek-V3 technical report,
section 3.3 (scales by 1 x 128 and 128 x 128); SGLang's and vLLM's ``_w8a8_block_fp8_matmul`` (order a-w, each
block's sum scaled); vLLM's ``ScaledEpilogue`` (w-a); DeepGEMM (product).
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import torch
import triton

from kernels._fp8 import BLOCK, E4M3, blocks, expect_fp8_unit, expect_scale
from kernels._gemm import (
    ORDERS,
    expect_bias,
    expect_choice,
    expect_finite_fields,
    expect_matrix,
    expect_tiles,
)
from kernels._gemm_fp8_kernel import BLOCKS, LINE, TENSOR, _gemm_fp8_kernel
from kernels._launch import check_output, check_runnable, destination, is_interpreted
from kernels._packed import PackedWeight, expect_one_device

FP8_ORDERS = ("a-w", "w-a", "product")
_PER = {"tensor": TENSOR.value, "line": LINE.value, "block": BLOCKS.value}

Fp8Order = Literal["a-w", "w-a", "product"]


@dataclasses.dataclass(frozen=True)
class Fp8GemmInput(PackedWeight):
    """Quantized operands and what their product is scaled with, as in the module's table."""

    a: torch.Tensor
    b: torch.Tensor
    a_scale: torch.Tensor
    w_scale: torch.Tensor
    bias: torch.Tensor | None = None
    order: Fp8Order = "a-w"

    @property
    def output_shape(self) -> tuple[int, ...]:
        return (self.a.shape[0], self.b.shape[0])

    @property
    def per(self) -> tuple[str, str]:
        """How activations and weight are scaled: ``tensor``, ``line`` or ``block``."""
        (n_rows, n_inner), n_cols = self.a.shape, self.b.shape[0]
        return (
            expect_scale("a_scale", self.a_scale, n_rows, (n_rows, blocks(n_inner))),
            expect_scale("w_scale", self.w_scale, n_cols, (blocks(n_cols), blocks(n_inner))),
        )

    def validate(self, *, deep: bool = False) -> None:
        """Check the fields against each other.

        Raises:
            TypeError: a field of another type or dtype.
            ValueError: another shape, K that differs, an unknown order, tensors on different devices;
                with ``deep`` also a scale or a bias that is not finite.
        """
        a, b = expect_matrix("a", self.a, E4M3), expect_matrix("b", self.b, E4M3)
        if a.shape[1] != b.shape[1]:
            raise ValueError(
                f"a: expected {b.shape[1]} columns, as b has K = {b.shape[1]}, found {a.shape[1]}"
            )
        _ = self.per
        expect_bias(self.bias, b.shape[0])
        expect_choice("order", self.order, FP8_ORDERS)
        expect_one_device(self)
        if deep:
            expect_finite_fields(self, "a_scale", "w_scale", "bias")


def _expect_block_k(block_k: int) -> None:
    if block_k > BLOCK:
        raise ValueError(f"block_k: expected at most {BLOCK}, the width of a block, found {block_k}")


def matmul(
    weight: Fp8GemmInput,
    *,
    dtype: torch.dtype,
    out: torch.Tensor | None = None,
    block_m: int = 64,
    block_n: int = 64,
    block_k: int = 64,
    num_warps: int = 4,
) -> torch.Tensor:
    """Multiply, scale, add the bias and round.

    Args:
        weight: tensors on one GPU (or on the CPU under Triton's interpreter). Strided inputs are
            made contiguous first, which copies them.
        dtype: float16, bfloat16 or float32. Values beyond its range become inf.
        out: optional output [M, N]; may be strided.
        block_m, block_n, block_k: tile sizes, powers of two of at least 16, 16 and 32; ``block_k`` at
            most 128.
        num_warps: warps a program uses.

    Returns:
        ``out``, or a new contiguous tensor [M, N].

    Raises:
        TypeError, ValueError: a field, ``dtype`` or ``out`` does not fit; names it.
        Unsupported: the GPU has no unit for e4m3fn (NVIDIA before compute capability 8.9).
    """
    if not isinstance(weight, Fp8GemmInput):
        raise TypeError(f"weight: expected Fp8GemmInput, found {type(weight).__name__}")
    expect_tiles(block_m, block_n, block_k, num_warps)
    _expect_block_k(block_k)
    weight.validate()
    check_output(weight, dtype, out)
    check_runnable(_gemm_fp8_kernel, weight.device)
    expect_fp8_unit(weight.device)
    a_per, w_per = weight.per
    n_rows, n_cols = weight.output_shape
    with destination(weight, dtype, out) as target:
        if n_rows and n_cols:
            a = _bytes(weight.a)
            _gemm_fp8_kernel[(triton.cdiv(n_rows, block_m) * triton.cdiv(n_cols, block_n),)](
                target.buffer,
                a,
                _bytes(weight.b),
                weight.a_scale.contiguous(),
                weight.w_scale.contiguous(),
                # What is None is not read.
                a if weight.bias is None else weight.bias.contiguous(),
                n_rows,
                n_cols,
                weight.a.shape[1],
                A_PER=_PER[a_per],
                W_PER=_PER[w_per],
                BIAS=weight.bias is not None,
                ORDER=ORDERS[weight.order],
                NATIVE=not is_interpreted(_gemm_fp8_kernel),
                BLOCK_M=block_m,
                BLOCK_N=block_n,
                BLOCK_K=block_k,
                num_warps=num_warps,
                enable_fp_fusion=False,
            )
    return target.result


def _bytes(codes: torch.Tensor) -> torch.Tensor:
    """Codes as dense bytes."""
    return codes.contiguous().view(torch.uint8)
