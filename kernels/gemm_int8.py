"""gemm_int8: an int8 matrix product whose operands are quantized already, end to end.

::

    acc = sums of products of a and b           kernels/gemm_accumulate.py
    out = epilogue of acc, with sums[n] = wrap32(sum over k of b[n, k])     kernels/gemm_epilogue.py

======== ============================== =======================================
field    dtype                          shape
======== ============================== =======================================
a        int8, uint8                    [M, K]
b        int8                           [N, K] ("NK") or [K, N] ("KN")
a_scale  float32                        [M] per token, or [1]
w_scale  float32                        [N] per channel, or [1]
a_zero   None; int32                    [M] or [1]
bias     None; float16, bfloat16,       [N]
         float32
======== ============================== =======================================

K may be 0: the sums are 0, and the output is the bias. ``matmul(..., accumulators=...)`` also gives the
int32 sums before the zero point, so that the two steps of one launch can be told apart.

Source: as the two steps.
"""

from __future__ import annotations

import dataclasses

import torch
import triton

from kernels._gemm import (
    ORDERS,
    Layout,
    Order,
    expect_epilogue,
    expect_finite_fields,
    expect_operands,
    expect_tiles,
)
from kernels._gemm_kernel import _gemm_kernel
from kernels._launch import check_output, check_runnable, destination
from kernels._packed import PackedWeight, expect_one_device
from kernels.gemm_accumulate import expect_accumulators, expect_no_overflow


@dataclasses.dataclass(frozen=True)
class Int8GemmInput(PackedWeight):
    """Quantized operands and what their product is scaled with, as in the module's table.

    Attributes:
        a, b, b_layout: operands, as :class:`kernels.gemm_accumulate.Int8Operands`.
        a_scale, w_scale, a_zero, bias, order: as :class:`kernels.gemm_epilogue.EpilogueInput`.
    """

    a: torch.Tensor
    b: torch.Tensor
    a_scale: torch.Tensor
    w_scale: torch.Tensor
    a_zero: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    b_layout: Layout = "NK"
    order: Order = "a-w"

    @property
    def output_shape(self) -> tuple[int, ...]:
        return (self.a.shape[0], self.b.shape[0 if self.b_layout == "NK" else 1])

    def validate(self, *, deep: bool = False) -> None:
        """Check the fields against each other.

        Raises:
            TypeError: a field of another type or dtype.
            ValueError: another shape, K that differs, an unknown layout or order, tensors on different
                devices; with ``deep`` also a sum that leaves int32, and a scale or a bias that is not
                finite.
        """
        n_rows, n_cols, _ = expect_operands(self.a, self.b, self.b_layout)
        expect_epilogue(n_rows, n_cols, self.a_scale, self.w_scale, self.a_zero, self.bias, self.order)
        expect_one_device(self)
        if deep:
            expect_no_overflow(self.a, self.b, self.b_layout)
            expect_finite_fields(self, "a_scale", "w_scale", "bias")


def matmul(
    weight: Int8GemmInput,
    *,
    dtype: torch.dtype,
    out: torch.Tensor | None = None,
    accumulators: torch.Tensor | None = None,
    block_m: int = 64,
    block_n: int = 64,
    block_k: int = 64,
    num_warps: int = 4,
) -> torch.Tensor:
    """Multiply, scale, add the bias and round, exact to the bit.

    Args:
        weight: tensors on one GPU (or on the CPU under Triton's interpreter). Strided inputs are
            made contiguous first, which copies them.
        dtype: float16, bfloat16 or float32. Values beyond its range become inf.
        out: optional output [M, N]; may be strided.
        accumulators: optional contiguous int32 [M, N], filled with the sums of products before the
            zero point is taken off.
        block_m, block_n, block_k: tile sizes, powers of two of at least 16, 16 and 32.
        num_warps: warps a program uses.

    Returns:
        ``out``, or a new contiguous tensor [M, N].

    Raises:
        TypeError, ValueError: a field, ``dtype`` or ``out`` does not fit; names it.
    """
    if not isinstance(weight, Int8GemmInput):
        raise TypeError(f"weight: expected Int8GemmInput, found {type(weight).__name__}")
    expect_tiles(block_m, block_n, block_k, num_warps)
    weight.validate()
    check_output(weight, dtype, out)
    check_runnable(_gemm_kernel, weight.device)
    n_rows, n_cols = weight.output_shape
    if accumulators is not None:
        expect_accumulators(accumulators, n_rows, n_cols)
    with destination(weight, dtype, out) as target:
        if n_rows and n_cols:
            a = weight.a.contiguous().view(torch.int8)
            _gemm_kernel[(triton.cdiv(n_rows, block_m) * triton.cdiv(n_cols, block_n),)](
                target.buffer,
                # What is None is neither read nor written.
                a if accumulators is None else accumulators,
                a,
                weight.b.contiguous(),
                weight.a_scale.contiguous(),
                weight.w_scale.contiguous(),
                a if weight.a_zero is None else weight.a_zero.contiguous(),
                a if weight.bias is None else weight.bias.contiguous(),
                n_rows,
                n_cols,
                weight.a.shape[1],
                UNSIGNED=weight.a.dtype is torch.uint8,
                INNER_FIRST=weight.b_layout == "KN",
                KEEP=accumulators is not None,
                SCALED=True,
                ZERO=weight.a_zero is not None,
                ZERO_PER_TOKEN=weight.a_zero is not None and weight.a_zero.shape[0] == n_rows,
                PER_TOKEN=weight.a_scale.shape[0] == n_rows,
                PER_CHANNEL=weight.w_scale.shape[0] == n_cols,
                BIAS=weight.bias is not None,
                ORDER=ORDERS[weight.order],
                BLOCK_M=block_m,
                BLOCK_N=block_n,
                BLOCK_K=block_k,
                num_warps=num_warps,
                enable_fp_fusion=False,
            )
    return target.result
