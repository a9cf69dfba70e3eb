"""gemm_cast_fp8: activations to fp8 e4m3 codes, with a scale by tensor, token or block, and back.

======= ================================= ======================
per     scale                             shape
======= ================================= ======================
tensor  given                             [1]
token   fp32(absmax of the row / 448)     [M]
block   fp32(absmax of 1 x 128 / 448)     [M, ceil(K / 128)]
======= ================================= ======================

::

    v     = x where x and scale are 0, else fp32(x / scale)    x widened to float32
    code  = e4m3fn(v), to nearest, ties to even; beyond 448 in size it is 448
    value = round_out(fp32(e4m3(code) * scale))

Divisions and products are rounded once to float32, and subnormal numbers are kept, in float32 and in e4m3
(multiples of 2**-9 below 2**-6). The last block of a row may be short.

**Corners.** Rows of zeros have scale 0 and codes of 0, each with its sign. An absmax below 448 * 2**-150
has scale 0 too: what is not 0 there has code 448 (of its sign), and value 0. A row or block with an
infinity or NaN has scale inf and values NaN; ``validate(deep=True)`` refuses it. With a given scale an
infinity is 448 * scale and NaN is NaN.

**Error.** Where no code is cut and the scale is a normal number, a value is, before the output rounding, at
most half a step of its code and 2**-22 of itself from x: a step is scale * 2**(e - 3), or scale * 2**-9 for
subnormal codes.

====== =========================== ==========================================
field  dtype                       shape
====== =========================== ==========================================
x      float16, bfloat16, float32  [M, K], K of at least 1 where M is not 0
scale  None; float32               [1]; with ``per`` tensor, and only there
per    str                         as above
====== =========================== ==========================================

Source: torchao 0.18.0, ``quant_primitives`` (``_choose_scale_float8``, ``_quantize_affine_float8``;
rows of zeros are NaN there); DeepSeek-V3's ``act_quant`` (block); OCP 8-bit Floating Point
Specification 1.0 (saturating conversion). vLLM and FBGEMM multiply by the reciprocal of a given scale.
"""

from __future__ import annotations

import dataclasses
from typing import Literal, NamedTuple

import torch
import triton

from kernels._fp8 import E4M3, blocks
from kernels._gemm import expect_choice, expect_matrix
from kernels._gemm_cast_fp8_kernel import _cast_kernel
from kernels._gemm_fp8_kernel import BLOCKS, LINE, TENSOR
from kernels._launch import check_output, check_runnable, destination, on_device
from kernels._packed import (
    PackedWeight,
    expect_finite,
    expect_int,
    expect_one_device,
    expect_power_of_two,
    expect_tensor,
)

INPUT_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
PERS = ("tensor", "token", "block")

Per = Literal["tensor", "token", "block"]

_NUMBERS = {"tensor": TENSOR.value, "token": LINE.value, "block": BLOCKS.value}


@dataclasses.dataclass(frozen=True)
class CastInput(PackedWeight):
    """Activations and what shares a scale, as in the module's table."""

    x: torch.Tensor
    scale: torch.Tensor | None = None
    per: Per = "token"

    @property
    def output_shape(self) -> tuple[int, ...]:
        return tuple(self.x.shape)

    def validate(self, *, deep: bool = False) -> None:
        """Check the fields.

        Raises:
            TypeError: a field of another type or dtype, no scale with ``per`` tensor.
            ValueError: another shape, rows without elements, an unknown ``per``, a scale with another
                ``per`` than tensor; with ``deep`` also a number that is not finite.
        """
        shape = expect_matrix("x", self.x, INPUT_DTYPES).shape
        if shape[0] and not shape[1]:
            raise ValueError(f"x: expected at least one element a row, found shape {list(shape)}")
        expect_choice("per", self.per, PERS)
        if self.per == "tensor":
            expect_tensor("scale", self.scale, dtype=torch.float32, shape=(1,))
        elif self.scale is not None:
            raise ValueError(f"scale: expected None with per {self.per}, found a tensor")
        expect_one_device(self)
        if deep:
            expect_finite("x", self.x)
            if self.scale is not None:
                expect_finite("scale", self.scale)


class Cast(NamedTuple):
    """Codes float8_e4m3fn [M, K] and scales float32 of the module's table."""

    codes: torch.Tensor
    scale: torch.Tensor


def _launch(
    weight: CastInput,
    out: torch.Tensor | None,
    made: Cast | None,
    rows: int,
    cols: int,
    num_warps: int,
) -> None:
    x = weight.x.contiguous()
    n_rows, n_cols = x.shape
    if not n_rows:
        return
    scales = weight.scale if made is None else made.scale
    _cast_kernel[(triton.cdiv(n_rows, rows),)](
        # What is None is not written.
        x if out is None else out,
        x if made is None else made.codes.view(torch.uint8),
        x if scales is None else scales,
        x,
        n_rows,
        n_cols,
        PER=_NUMBERS[weight.per],
        BACK=out is not None,
        CODES=made is not None,
        ROWS=rows,
        COLS=cols,
        num_warps=num_warps,
        enable_fp_fusion=False,
    )


def _check(weight: CastInput, rows: int, cols: int, num_warps: int) -> None:
    if not isinstance(weight, CastInput):
        raise TypeError(f"weight: expected CastInput, found {type(weight).__name__}")
    for field, value in (("rows", rows), ("cols", cols), ("num_warps", num_warps)):
        expect_int(field, value, minimum=1)
        expect_power_of_two(field, value)
    weight.validate()


def cast(weight: CastInput, *, rows: int = 1, cols: int = 1024, num_warps: int = 4) -> Cast:
    """Codes and scales of activations, exact to the bit.

    Args:
        weight: activations on one GPU (or on the CPU under Triton's interpreter). Strided ones are
            made contiguous first, which copies them.
        rows, cols: rows a program has, and how much of a row or block it holds at once; powers of two.
        num_warps: warps a program uses.

    Returns:
        New contiguous tensors; a given scale itself.

    Raises:
        TypeError, ValueError: a field does not fit; names it.
    """
    _check(weight, rows, cols, num_warps)
    check_runnable(_cast_kernel, weight.device)
    device, (n_rows, n_cols) = weight.device, weight.x.shape
    with on_device(device):
        shape = (n_rows,) if weight.per == "token" else (n_rows, blocks(n_cols))
        scale = weight.scale
        if scale is None:
            scale = torch.empty(shape, dtype=torch.float32, device=device)
        made = Cast(torch.empty((n_rows, n_cols), dtype=E4M3, device=device), scale)
        _launch(weight, None, made, rows, cols, num_warps)
    return made


def round_trip(
    weight: CastInput,
    *,
    dtype: torch.dtype,
    out: torch.Tensor | None = None,
    rows: int = 1,
    cols: int = 1024,
    num_warps: int = 4,
) -> torch.Tensor:
    """Cast and decode again: what the codes stand for, in ``dtype``, exact to the bit.

    Args:
        weight, rows, cols, num_warps: as :func:`cast`.
        dtype: float16, bfloat16 or float32. Values beyond its range become inf.
        out: optional output [M, K]; may be strided.

    Returns:
        ``out``, or a new contiguous tensor [M, K].

    Raises:
        TypeError, ValueError: a field, ``dtype`` or ``out`` does not fit; names it.
    """
    _check(weight, rows, cols, num_warps)
    check_output(weight, dtype, out)
    check_runnable(_cast_kernel, weight.device)
    with destination(weight, dtype, out) as target:
        _launch(weight, target.buffer, None, rows, cols, num_warps)
    return target.result
