"""gemm_epilogue: from int32 accumulators to the output of an int8 matrix product.

::

    t[m, n]   = wrap32(acc[m, n] - a_zero[m] * sums[n])
    y[m, n]   = the scaled t, by order:
                    a-w      fp32(fp32(fp32(t) * a_scale[m]) * w_scale[n])
                    w-a      fp32(fp32(fp32(t) * w_scale[n]) * a_scale[m])
                    product  fp32(fp32(t) * fp32(a_scale[m] * w_scale[n]))
                    absmax   fp32(fp32(fp32(t) * fp32(a_scale[m] * w_scale[n])) * fp32(1 / 127**2))
    out[m, n] = round_out(fp32(y[m, n] + bias[n]))      or round_out(y[m, n]) without bias

========= =============================================================================================
a-w     oneDNN (``torch.ops.onednn.qlinear_pointwise``); torchao's ``Int8Tensor``, into float32
w-a     vLLM's CUTLASS epilogues (``ScaledEpilogue``: scale_a * (scale_b * accum))
product TensorRT-LLM's and SGLang's CUTLASS epilogue (``accum * (scale_col * scale_row)``)
absmax  bitsandbytes' ``int8_mm_dequant``; the "scales" are the absmax of rows and channels
======= =============================================================================================

vLLM and bitsandbytes' CUDA code fuse the bias into the last product (one rounding less); torchao adds it
after the output's rounding. Those are other functions than this text and show as faults of it.
bitsandbytes' CPU code has 6.200124e-05 for 1 / 127**2, which is 6.200012e-05.

Source: bitsandbytes 0.50.2, ``backends/default/ops.py``; torchao 0.18.0, ``int8_tensor.py``; PyTorch 2.13,
``onednn::qlinear_pointwise``; vLLM, ``csrc/cutlass_extensions/epilogue/scaled_mm_epilogues_c3x.hpp``;
TensorRT-LLM, ``cutlass_extensions/epilogue/threadblock/epilogue_per_row_per_col_scale.h``.
"""

from __future__ import annotations

import dataclasses

import torch
import triton

from kernels._gemm import ORDERS, Order, expect_epilogue, expect_finite_fields, expect_matrix
from kernels._gemm_kernel import _epilogue_kernel
from kernels._launch import check_output, check_runnable, destination
from kernels._packed import (
    PackedWeight,
    expect_int,
    expect_one_device,
    expect_power_of_two,
    expect_tensor,
)


@dataclasses.dataclass(frozen=True)
class EpilogueInput(PackedWeight):
    """Accumulators and what they are scaled with, as in the module's table.

    Attributes:
        acc: accumulators.
        a_scale, w_scale: scales (or absmax) of activations and weight.
        a_zero, sums: zero points of the activations and sums of the weight's codes; both or none.
        bias: added to every row.
        order: which product is rounded first.
    """

    acc: torch.Tensor
    a_scale: torch.Tensor
    w_scale: torch.Tensor
    a_zero: torch.Tensor | None = None
    sums: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    order: Order = "a-w"

    @property
    def output_shape(self) -> tuple[int, ...]:
        return tuple(self.acc.shape)

    def validate(self, *, deep: bool = False) -> None:
        """Check the fields against each other.

        Raises:
            TypeError: a field of another type or dtype, or one of ``a_zero`` and ``sums`` alone.
            ValueError: another shape, an unknown order, tensors on different devices; with ``deep``
                also a scale or a bias that is not finite.
        """
        n_rows, n_cols = expect_matrix("acc", self.acc, torch.int32).shape
        expect_epilogue(n_rows, n_cols, self.a_scale, self.w_scale, self.a_zero, self.bias, self.order)
        if self.a_zero is not None:
            expect_tensor("sums", self.sums, dtype=torch.int32, shape=(n_cols,))
        elif self.sums is not None:
            raise TypeError("sums: expected None without a_zero, found a tensor")
        expect_one_device(self)
        if deep:
            expect_finite_fields(self, "a_scale", "w_scale", "bias")


def epilogue(
    weight: EpilogueInput,
    *,
    dtype: torch.dtype,
    out: torch.Tensor | None = None,
    block_m: int = 32,
    block_n: int = 64,
    num_warps: int = 4,
) -> torch.Tensor:
    """Scale accumulators, add the bias and round, exact to the bit.

    Args:
        weight: tensors on one GPU (or on the CPU under Triton's interpreter). Strided inputs are
            made contiguous first, which copies them.
        dtype: float16, bfloat16 or float32. Values beyond its range become inf.
        out: optional output [M, N]; may be strided.
        block_m, block_n: tile sizes, powers of two.
        num_warps: warps a program uses.

    Returns:
        ``out``, or a new contiguous tensor [M, N].

    Raises:
        TypeError, ValueError: a field, ``dtype`` or ``out`` does not fit; names it.
    """
    if not isinstance(weight, EpilogueInput):
        raise TypeError(f"weight: expected EpilogueInput, found {type(weight).__name__}")
    for field, value in (("block_m", block_m), ("block_n", block_n), ("num_warps", num_warps)):
        expect_int(field, value, minimum=1)
        expect_power_of_two(field, value)
    weight.validate()
    check_output(weight, dtype, out)
    check_runnable(_epilogue_kernel, weight.device)
    with destination(weight, dtype, out) as target:
        n_rows, n_cols = weight.acc.shape
        if n_rows and n_cols:
            acc = weight.acc.contiguous()
            _epilogue_kernel[(triton.cdiv(n_rows, block_m) * triton.cdiv(n_cols, block_n),)](
                target.buffer,
                acc,
                weight.a_scale.contiguous(),
                weight.w_scale.contiguous(),
                # What is None is never read.
                acc if weight.a_zero is None else weight.a_zero.contiguous(),
                acc if weight.sums is None else weight.sums.contiguous(),
                acc if weight.bias is None else weight.bias.contiguous(),
                n_rows,
                n_cols,
                ZERO=weight.a_zero is not None,
                ZERO_PER_TOKEN=weight.a_zero is not None and weight.a_zero.shape[0] == n_rows,
                PER_TOKEN=weight.a_scale.shape[0] == n_rows,
                PER_CHANNEL=weight.w_scale.shape[0] == n_cols,
                BIAS=weight.bias is not None,
                ORDER=ORDERS[weight.order],
                BLOCK_M=block_m,
                BLOCK_N=block_n,
                num_warps=num_warps,
                enable_fp_fusion=False,
            )
    return target.result
