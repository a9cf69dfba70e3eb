"""int8_affine: 8-bit integers with a scale and perhaps a zero point, per tensor, channel or group.

::

    value[r, c] = round_out(fp32((code[r, c] - zero[p]) * scale[p])),  p the element's place:

=============== ==== ========== ================== =====================================
``granularity`` axis group_size shape of ``scale`` p of element (r, c)
=============== ==== ========== ================== =====================================
``tensor``      None None       [1]                0
``channel``     0    None       [R]                r
``channel``     1    None       [C]                c
``group``       1    1 or more  [R, G]             r, c // group_size
=============== ==== ========== ================== =====================================

========== =========================== ========================================================
field      dtype                       shape
========== =========================== ========================================================
codes      int8, uint8                 [R, C]; the dtype alone says signed or unsigned
scale      float16, bfloat16, float32  as above; G = ceil(C / group_size), the last group may be
                                       short
zero_point None; dtype of codes; int32 the shape of ``scale``; None: symmetric, zero is 0
========== =========================== ========================================================

**Axis** is always given: on a square weight no shape tells 0 from 1. Negative axes are refused
(https://github.com/apple/coreai-torch/pull/24 is what becomes of them).

**Signedness.** An 8-bit zero point has the dtype of the codes, so that both are signed or both
are not: a zero of 200 read as -56, and the reverse, was a real fault
(https://github.com/intel/auto-round/pull/2273). An int32 zero point holds a number of the
codes' range, -128..127 or 0..255; ``validate(deep=True)`` checks it. Codes and zeros become
int32 before they are subtracted: int8 - int8 wraps.

**-128** decodes like every code, to (-128 - zero) * scale. ``narrow_range`` names the convention
of quantizers that use -127..127 only, so that a symmetric range has no odd end; it changes no
value, and ``validate(deep=True)`` then refuses -128.

**Rounding.** The difference has 9 bits, so its product with a float16 or bfloat16 scale is exact
in float32: those weights are rounded once, at the output. The product with a float32 scale is
rounded to float32 first, as PyTorch's quantized tensors and torchao do it. ``code * scale -
zero * scale`` is another number: https://github.com/vllm-project/vllm/pull/55532.

Not this format: bitsandbytes' rows, ``(code * absmax) * (1 / 127)`` with a rounding between, are
``kernels/llm_int8.py``; float zero points (HQQ) are another arithmetic.

Source: PyTorch 2.13, ``torch.quantize_per_tensor`` and ``torch.quantize_per_channel``; torchao
0.18.0, ``quant_primitives.dequantize_affine``; compressed-tensors 0.20.1, naive-quantized.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import torch
import triton

from kernels._int8_affine_kernel import PER_COLUMN, PER_GROUP, PER_ROW, PER_TENSOR, int8_affine_kernel
from kernels._lanes import side_by_side
from kernels._launch import check_output, check_runnable, chosen, destination
from kernels._packed import (
    PackedWeight,
    describe,
    expect_finite,
    expect_int,
    expect_one_device,
    expect_power_of_two,
    expect_tensor,
)

CODE_DTYPES = (torch.int8, torch.uint8)
SCALE_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
GRANULARITIES = ("tensor", "channel", "group")

Granularity = Literal["tensor", "channel", "group"]


@dataclasses.dataclass(frozen=True)
class Int8AffineWeight(PackedWeight):
    """An 8-bit affine weight. Tensors as in the module's tables.

    Attributes:
        codes: signed or unsigned codes.
        scale: one a tensor, channel or group.
        zero_point: the code that means 0, or None for symmetric.
        granularity: what shares a scale.
        axis: ``channel``: the axis whose every index has its own scale; ``group``: the axis that
            groups lie along, which is 1; ``tensor``: None.
        group_size: columns a group has; None but for ``group``.
        narrow_range: signed codes keep to -127..127.
    """

    codes: torch.Tensor
    scale: torch.Tensor
    zero_point: torch.Tensor | None
    granularity: Granularity
    axis: int | None = None
    group_size: int | None = None
    narrow_range: bool = False

    @property
    def output_shape(self) -> tuple[int, ...]:
        return tuple(self.codes.shape)

    @property
    def scale_shape(self) -> tuple[int, ...]:
        """Shape that ``scale`` and ``zero_point`` have."""
        n_rows, n_cols = self.codes.shape
        if self.granularity == "tensor":
            return (1,)
        if self.granularity == "channel":
            return (n_rows,) if self.axis == 0 else (n_cols,)
        assert self.group_size is not None
        return (n_rows, -(-n_cols // self.group_size))

    @property
    def code_range(self) -> tuple[int, int]:
        """Smallest and largest number a code or a zero point can be."""
        return (-128, 127) if self.codes.dtype is torch.int8 else (0, 255)

    def validate(self, *, deep: bool = False) -> None:
        """Check the fields against each other.

        Raises:
            TypeError: a field of another type or dtype; an 8-bit zero point of other signedness
                than the codes.
            ValueError: an unknown granularity, an axis or a group size that does not belong to it,
                a wrong shape, ``narrow_range`` with unsigned codes, tensors on different devices;
                with ``deep`` also a zero point out of the codes' range, a code of -128 in a narrow
                range and a scale that is not finite.
        """
        codes = expect_tensor("codes", self.codes, dtype=CODE_DTYPES)
        if codes.dim() != 2:
            raise ValueError(f"codes: expected 2 dimensions [R, C], found shape {list(codes.shape)}")
        self._validate_granularity()
        expect_tensor("scale", self.scale, dtype=SCALE_DTYPES, shape=self.scale_shape)
        if self.zero_point is not None:
            zero = expect_tensor("zero_point", self.zero_point, dtype=(*CODE_DTYPES, torch.int32))
            if zero.dtype not in (codes.dtype, torch.int32):
                own, found = describe(codes.dtype), describe(zero.dtype)
                raise TypeError(f"zero_point: expected {own} or int32, as the codes are {own}, found {found}")
            expect_tensor("zero_point", zero, dtype=zero.dtype, shape=self.scale_shape)
        if not isinstance(self.narrow_range, bool):
            raise TypeError(f"narrow_range: expected a bool, found {type(self.narrow_range).__name__}")
        if self.narrow_range and codes.dtype is torch.uint8:
            raise ValueError("narrow_range: expected False with uint8 codes, found True")
        expect_one_device(self)
        if deep:
            self._validate_values()

    def _validate_granularity(self) -> None:
        if self.granularity not in GRANULARITIES:
            raise ValueError(
                f"granularity: expected one of {', '.join(GRANULARITIES)}, found {self.granularity!r}"
            )
        if self.granularity == "tensor":
            if self.axis is not None:
                raise ValueError(f"axis: expected None per tensor, found {self.axis!r}")
        elif expect_int("axis", self.axis, minimum=-2) not in (0, 1):
            raise ValueError(f"axis: expected 0 or 1, found {self.axis}")
        elif self.granularity == "group" and self.axis != 1:
            raise ValueError(f"axis: expected 1, which groups lie along, found {self.axis}")
        if self.granularity == "group":
            expect_int("group_size", self.group_size, minimum=1)
        elif self.group_size is not None:
            raise ValueError(f"group_size: expected None per {self.granularity}, found {self.group_size!r}")

    def _validate_values(self) -> None:
        expect_finite("scale", self.scale)
        low, high = self.code_range
        if self.zero_point is not None:
            zero = self.zero_point.reshape(-1)
            bad = (zero < low) | (zero > high)
            if bool(bad.any()):
                at = int(bad.nonzero()[0].item())
                raise ValueError(
                    f"zero_point: expected {low} <= zero <= {high}, found {int(zero[at])} at flat index {at}"
                )
        if self.narrow_range:
            lowest = self.codes.reshape(-1) == -128
            if bool(lowest.any()):
                at = int(lowest.nonzero()[0].item())
                raise ValueError(
                    f"codes: expected -127 <= code <= 127 in a narrow range, found -128 at flat index {at}"
                )


def launch(weight: Int8AffineWeight, dtype: torch.dtype) -> dict[str, int]:
    """Launch parameters that ``dequantize`` takes where none are given."""
    if dtype is not torch.float32:
        return {"rows": 1, "cols": 1024, "num_warps": 1}
    if weight.granularity == "channel" and weight.axis == 0:
        return {"rows": 1, "cols": 1024, "num_warps": 4}
    return {"rows": 4, "cols": 512, "num_warps": 4}


def dequantize(
    weight: Int8AffineWeight,
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

    Where the weight is multiplied at once, an int8 matrix product that scales its result
    (``torch._int_mm``, torchao's ``int_scaled_mm``) or a weight-only kernel
    (``torch._weight_int8pack_mm``) reads half the bytes and needs no such tensor.
    """
    if not isinstance(weight, Int8AffineWeight):
        raise TypeError(f"weight: expected Int8AffineWeight, found {type(weight).__name__}")
    weight.validate()
    check_output(weight, dtype, out)
    set_to = chosen(launch(weight, dtype), rows=rows, cols=cols, num_warps=num_warps)
    rows = expect_int("rows", set_to["rows"], minimum=1)
    cols = expect_power_of_two("cols", set_to["cols"])
    warps = expect_power_of_two("num_warps", set_to["num_warps"])
    check_runnable(int8_affine_kernel, weight.device)
    with destination(weight, dtype, out) as target:
        n_rows, n_cols = weight.codes.shape
        if n_rows and n_cols:
            per = {
                "tensor": PER_TENSOR,
                "channel": PER_ROW if weight.axis == 0 else PER_COLUMN,
                "group": PER_GROUP,
            }[weight.granularity]
            scale = weight.scale.contiguous()
            n_groups, group_size = 1, 1
            if weight.granularity == "group":
                assert weight.group_size is not None
                n_groups, group_size = scale.shape[1], weight.group_size
                if n_groups == 1:
                    per, group_size = PER_ROW, 1
            side = min(side_by_side(dtype), cols)
            int8_affine_kernel[(triton.cdiv(n_cols, cols) * triton.cdiv(n_rows, rows),)](
                target.buffer,
                weight.codes.contiguous(),
                scale,
                # Without zero points the pointer is never read.
                scale if weight.zero_point is None else weight.zero_point.contiguous(),
                n_rows,
                n_cols,
                n_groups,
                PER=per.value,
                ZERO=weight.zero_point is not None,
                GROUP_SIZE=group_size,
                SIDE=side,
                SHARED=side if group_size % side == 0 else 1,
                ROWS=rows,
                COLS=cols,
                num_warps=warps,
                enable_fp_fusion=False,
            )
    return target.result
