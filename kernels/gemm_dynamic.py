"""gemm_dynamic: float activations, quantized by token, times an int8 weight.

::

    codes, a_scale, a_zero = x by its rule                              kernels/gemm_quantize.py
    out = the product of codes and b, scaled, with bias                 kernels/gemm_int8.py

======== =========================== ====================================================
field    dtype                       shape
======== =========================== ====================================================
x        float16, bfloat16, float32  [M, K], K of at least 1 where M is not 0
b        int8                        [N, K] ("NK") or [K, N] ("KN")
w_scale  float32                     [N] per channel, or [1]; absmax with rule ``absmax``
bias     None; float16, bfloat16,    [N]
         float32
rule     str                         of the quantization
signed   bool                        of ``minmax``
order    str                         of the scales
======== =========================== ====================================================

Rule ``absmax`` goes with order ``absmax``, which has the factor 1 / 127**2, and with a ``w_scale`` that is
the channels' absmax; another order takes that factor to be in ``w_scale``. A row with an infinity or NaN
is NaN in the output: its codes mean 0, and its scale is inf.

Source: as the two steps; bitsandbytes' ``int8_scaled_mm`` after ``int8_vectorwise_quant``.
"""

from __future__ import annotations

import dataclasses

import torch

from kernels._gemm import (
    ORDERS,
    Layout,
    Order,
    expect_bias,
    expect_choice,
    expect_finite_fields,
    expect_one_or,
    outputs_and_inner,
)
from kernels._launch import check_output
from kernels._packed import PackedWeight, expect_one_device
from kernels.gemm_int8 import Int8GemmInput, matmul
from kernels.gemm_quantize import QuantizeInput, Rule, expect_quantizable, quantize


@dataclasses.dataclass(frozen=True)
class DynamicGemmInput(PackedWeight):
    """Float activations and a quantized weight, as in the module's table."""

    x: torch.Tensor
    b: torch.Tensor
    w_scale: torch.Tensor
    bias: torch.Tensor | None = None
    b_layout: Layout = "NK"
    order: Order = "a-w"
    rule: Rule = "scale"
    signed: bool = True

    @property
    def output_shape(self) -> tuple[int, ...]:
        return (self.x.shape[0], self.b.shape[0 if self.b_layout == "NK" else 1])

    @property
    def activations(self) -> QuantizeInput:
        return QuantizeInput(self.x, self.rule, self.signed)

    def quantized(self, codes: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor | None) -> Int8GemmInput:
        """The product that is left once the activations are quantized."""
        return Int8GemmInput(
            codes, self.b, scale, self.w_scale, zero, self.bias, b_layout=self.b_layout, order=self.order
        )

    def validate(self, *, deep: bool = False) -> None:
        """Check the fields against each other.

        Raises:
            TypeError: a field of another type or dtype.
            ValueError: another shape, K that differs, an unknown layout, rule or order, tensors on
                different devices; with ``deep`` also an activation, a scale or a bias that is not
                finite.
        """
        expect_quantizable(self.x, self.rule, self.signed)
        n_cols, n_inner = outputs_and_inner(self.b, self.b_layout)
        if self.x.shape[1] != n_inner:
            raise ValueError(
                f"x: expected {n_inner} columns, as b has K = {n_inner}, found {self.x.shape[1]}"
            )
        expect_one_or("w_scale", self.w_scale, n_cols, torch.float32)
        expect_bias(self.bias, n_cols)
        expect_choice("order", self.order, tuple(ORDERS))
        expect_one_device(self)
        if deep:
            expect_finite_fields(self, "x", "w_scale", "bias")


def matmul_dynamic(
    weight: DynamicGemmInput,
    *,
    dtype: torch.dtype,
    out: torch.Tensor | None = None,
    rows: int = 1,
    cols: int = 1024,
    block_m: int = 64,
    block_n: int = 64,
    block_k: int = 64,
    num_warps: int = 4,
) -> torch.Tensor:
    """Quantize, multiply, scale, add the bias and round, exact to the bit.

    Args:
        weight: tensors on one GPU (or on the CPU under Triton's interpreter).
        dtype: float16, bfloat16 or float32. Values beyond its range become inf.
        out: optional output [M, N]; may be strided.
        rows, cols: tile of the quantization (:func:`kernels.gemm_quantize.quantize`).
        block_m, block_n, block_k: tile of the product (:func:`kernels.gemm_int8.matmul`).
        num_warps: warps a program uses.

    Returns:
        ``out``, or a new contiguous tensor [M, N].

    Raises:
        TypeError, ValueError: a field, ``dtype`` or ``out`` does not fit; names it.
    """
    if not isinstance(weight, DynamicGemmInput):
        raise TypeError(f"weight: expected DynamicGemmInput, found {type(weight).__name__}")
    weight.validate()
    check_output(weight, dtype, out)
    made = quantize(weight.activations, rows=rows, cols=cols, num_warps=num_warps)
    product = weight.quantized(made.codes, made.scale, made.zero)
    return matmul(
        product,
        dtype=dtype,
        out=out,
        block_m=block_m,
        block_n=block_n,
        block_k=block_k,
        num_warps=num_warps,
    )
