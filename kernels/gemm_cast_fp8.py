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
from kernels._gemm import check_by_row, expect_activations, expect_choice
from kernels._gemm_cast_fp8_kernel import _cast_kernel, _decode_kernel
from kernels._gemm_fp8_kernel import BLOCKS, LINE, TENSOR
from kernels._launch import check_output, check_runnable, destination, on_device
from kernels._packed import PackedWeight, expect_finite, expect_one_device, expect_tensor

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
        expect_activations(self.x)
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


def _cast(weight: CastInput, **tile: int) -> Cast:
    """As :func:`cast`, of a weight that is checked, on its device."""
    x = weight.x.contiguous()
    n_rows, n_cols = x.shape
    scale = weight.scale
    if scale is None:
        shape = (n_rows,) if weight.per == "token" else (n_rows, blocks(n_cols))
        scale = torch.empty(shape, dtype=torch.float32, device=x.device)
    made = Cast(torch.empty((n_rows, n_cols), dtype=E4M3, device=x.device), scale)
    if n_rows:
        _cast_kernel[(triton.cdiv(n_rows, tile["ROWS"]),)](
            made.codes.view(torch.uint8),
            scale,
            x,
            n_rows,
            n_cols,
            PER=_NUMBERS[weight.per],
            **tile,
            enable_fp_fusion=False,
        )
    return made


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
    check_by_row(CastInput, weight, rows=rows, cols=cols, num_warps=num_warps)
    check_runnable(_cast_kernel, weight.device)
    with on_device(weight.device):
        return _cast(weight, ROWS=rows, COLS=cols, num_warps=num_warps)


def round_trip(
    weight: CastInput,
    *,
    dtype: torch.dtype,
    out: torch.Tensor | None = None,
    rows: int = 1,
    cols: int = 1024,
    num_warps: int = 4,
) -> torch.Tensor:
    """Cast and decode the codes that were stored: what they stand for, in ``dtype``, exact to the bit.

    Args:
        weight, rows, cols, num_warps: as :func:`cast`.
        dtype: float16, bfloat16 or float32. Values beyond its range become inf.
        out: optional output [M, K]; may be strided.

    Returns:
        ``out``, or a new contiguous tensor [M, K].

    Raises:
        TypeError, ValueError: a field, ``dtype`` or ``out`` does not fit; names it.
    """
    check_by_row(CastInput, weight, rows=rows, cols=cols, num_warps=num_warps)
    check_output(weight, dtype, out)
    check_runnable(_cast_kernel, weight.device)
    tile = {"ROWS": rows, "COLS": cols, "num_warps": num_warps}
    with destination(weight, dtype, out) as target:
        made = _cast(weight, **tile)
        n_rows, n_cols = made.codes.shape
        if n_rows:
            _decode_kernel[(triton.cdiv(n_rows, rows) * triton.cdiv(n_cols, cols),)](
                target.buffer,
                made.codes.view(torch.uint8),
                made.scale,
                n_rows,
                n_cols,
                PER=_NUMBERS[weight.per],
                **tile,
                enable_fp_fusion=False,
            )
    return target.result
