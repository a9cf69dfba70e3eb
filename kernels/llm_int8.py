"""llm_int8: bitsandbytes LLM.int8() row-wise int8 weights.

::

    value[r, c] = fp32(fp32(q[r, c] * absmax[r]) * INV_127), rounded once to the output dtype

======== ========= ========================================================
field    dtype     shape
======== ========= ========================================================
codes    int8      [R, C]; -127..127 from the quantizer, -128 decodes too
absmax   float32   [R], the row's largest magnitude ("SCB" in checkpoints)
======== ========= ========================================================

The two products are rounded one after the other, left to right: ``q * (absmax / 127)``
differs in a fifth of the elements.
Source: bitsandbytes 0.50.2, ``functional.int8_vectorwise_dequant``;
https://arxiv.org/abs/2208.07339.
"""

from __future__ import annotations

import dataclasses

import torch
import triton
import triton.language as tl

from kernels._lanes import side_by_side
from kernels._launch import check_output, check_runnable, chosen, destination
from kernels._packed import (
    PackedWeight,
    expect_finite,
    expect_int,
    expect_one_device,
    expect_power_of_two,
    expect_tensor,
)

INV_127 = tl.constexpr(7.874015718698502e-3)


@dataclasses.dataclass(frozen=True)
class LLMInt8Weight(PackedWeight):
    """A weight in LLM.int8() row-wise form. Fields as in the module's table."""

    codes: torch.Tensor
    absmax: torch.Tensor

    @property
    def output_shape(self) -> tuple[int, ...]:
        return tuple(self.codes.shape)

    def validate(self, *, deep: bool = False) -> None:
        """Check the fields against each other.

        Raises:
            TypeError: a field of another dtype.
            ValueError: ``codes`` is not 2-D, ``absmax`` has not one value a row, tensors on
                different devices; with ``deep`` also a non-finite ``absmax``.
        """
        codes = expect_tensor("codes", self.codes, dtype=torch.int8)
        if codes.dim() != 2:
            raise ValueError(f"codes: expected 2 dimensions [R, C], found shape {list(codes.shape)}")
        expect_tensor("absmax", self.absmax, dtype=torch.float32, shape=(codes.shape[0],))
        expect_one_device(self)
        if deep:
            expect_finite("absmax", self.absmax)


@triton.jit(do_not_specialize=["n_rows"], do_not_specialize_on_alignment=["absmax"])
def _llm_int8_kernel(
    out,  # [R, C] output dtype
    codes,  # [R, C] int8
    absmax,  # [R] float32
    n_rows,
    n_cols,
    SIDE: tl.constexpr,  # columns a lane has side by side
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
    for r in range(0, ROWS):
        row = first_row + r
        # One vector compare: a scalar and a vector i1 cannot be combined under the
        # interpreter of Triton 3.9.
        mask = col < tl.where(row < n_rows, cols_left, 0)
        at = row.to(tl.int64) * n_cols + first
        q = tl.load(codes + at + code_col, mask=mask, other=0, eviction_policy="evict_first")
        scale = tl.load(absmax + row, mask=row < n_rows, other=0.0)
        value = q.to(tl.float32) * scale * INV_127
        tl.store(out + at + col, value.to(out.dtype.element_ty), mask=mask, eviction_policy="evict_first")


def launch(weight: LLMInt8Weight, dtype: torch.dtype) -> dict[str, int]:
    """Launch parameters that ``dequantize`` takes where none are given."""
    return {"rows": 1, "cols": 1024, "num_warps": 4 if dtype is torch.float32 else 1}


def dequantize(
    weight: LLMInt8Weight,
    *,
    dtype: torch.dtype,
    out: torch.Tensor | None = None,
    rows: int | None = None,
    cols: int | None = None,
    num_warps: int | None = None,
) -> torch.Tensor:
    """Dequantize ``weight`` to ``dtype``, exact to the bit.

    Args:
        weight: tensors on one GPU (or on the CPU under Triton's interpreter). Strided
            inputs are made contiguous first, which copies them.
        dtype: float16, bfloat16 or float32. Values beyond float16's range become inf.
        out: optional output [R, C]; may be strided.
        rows: rows a program decodes, one after the other.
        cols: columns a program decodes at once (a power of two).
        num_warps: warps a program uses.

        Those that are None are as :func:`launch` says.

    Returns:
        ``out``, or a new contiguous tensor [R, C].

    Raises:
        TypeError, ValueError: a field, ``dtype`` or ``out`` does not fit; names it.

    Where the weight is multiplied at once, the int8 matrix product with its own epilogue
    (bitsandbytes ``int8_scaled_mm``) reads half the bytes and needs no such tensor.
    """
    if not isinstance(weight, LLMInt8Weight):
        raise TypeError(f"weight: expected LLMInt8Weight, found {type(weight).__name__}")
    weight.validate()
    check_output(weight, dtype, out)
    set_to = chosen(launch(weight, dtype), rows=rows, cols=cols, num_warps=num_warps)
    rows = expect_int("rows", set_to["rows"], minimum=1)
    cols = expect_power_of_two("cols", set_to["cols"])
    warps = expect_power_of_two("num_warps", set_to["num_warps"])
    check_runnable(_llm_int8_kernel, weight.device)
    with destination(weight, dtype, out) as target:
        n_rows, n_cols = weight.codes.shape
        if n_rows and n_cols:
            _llm_int8_kernel[(triton.cdiv(n_cols, cols) * triton.cdiv(n_rows, rows),)](
                target.buffer,
                weight.codes.contiguous(),
                weight.absmax.contiguous(),
                n_rows,
                n_cols,
                SIDE=min(side_by_side(dtype), cols),
                ROWS=rows,
                COLS=cols,
                num_warps=warps,
                enable_fp_fusion=False,
            )
    return target.result
