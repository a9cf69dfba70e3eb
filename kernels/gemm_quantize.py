"""gemm_quantize: activations to 8-bit codes, each row (token) with its own scale, and back.

Of a row x[0..K), widened to float32:

========== =========================== ==================== ==================================
``rule``   scale                       inverse              zero
========== =========================== ==================== ==================================
``scale``  fp32(absmax / 127)          fp32(1 / scale)      0
``full``   fp32(absmax / 127.5)        fp32(1 / scale)      0
``absmax`` absmax                      fp32(fp32(1 /        0
                                       absmax) * 127)
``minmax`` fp32(fp32(high - low) /     fp32(1 / scale)      clamp(least - rint(fp32(low /
           255)                                             scale)))
========== =========================== ==================== ==================================

::

    code  = clamp(rint(fp32(x * inverse)) + zero)
    value = round_out(fp32((code - zero) * scale))                      scale, full, minmax
            round_out(fp32(fp32(code * scale) * fp32(1 / 127)))         absmax

absmax is the largest \\|x\\|; low and high are the extremes of the row and of 0. clamp is to least..most:
-127..127 for ``scale`` and ``absmax``, -128..127 for ``full`` and ``minmax``, 0..255 for ``minmax`` when
``signed`` is False. ``rint`` rounds to nearest, ties to even; every division, product and difference is
rounded once to float32, and subnormal numbers are kept.

**Corners.** A product x * inverse that is NaN gives what 0 gives: rows of zeros, whose inverse is
infinite, decode to 0. A row with an infinity or NaN has scale inf, and all of its values are NaN;
``validate(deep=True)`` refuses it. A scale below 2**-128 has an infinite inverse: what is not 0 there
has the outermost codes.

**Error.** Where the scale is a normal number and 128 of it are finite, a value is, before the output
rounding, at most half a step and 2**-14 of a step from x, a step being scale (absmax / 127): inverse,
product and decoding round numbers of at most 256 steps, each by 2**-24 of them. With ``full`` the largest
\\|x\\| is at 127.5 steps, which is half a step from either code beside it.

====== =========================== =======================================
field  dtype                       shape
====== =========================== =======================================
x      float16, bfloat16, float32  [M, K], K of at least 1 where M is not 0
rule   str                         as above
signed bool                        of ``minmax``; True with the other rules
====== =========================== =======================================

Source: torchao 0.18.0, ``quant_primitives`` (``scale`` with its range set to -127..127, ``full``,
``minmax``; in float32 and without its least scale; of a 16-bit x it computes the scale in 16 bits);
bitsandbytes 0.50.2, ``int8_vectorwise_quant`` and ``int8_vectorwise_dequant`` on the CPU (``absmax``: PyTorch
computes ``127.0 / t`` as ``t.reciprocal() * 127.0``). bitsandbytes' CUDA code divides approximately; vLLM's
``scaled_int8_quant`` stores the scale of ``scale`` and multiplies by fp32(127 / absmax); SGLang's rounds
ties away from zero.
"""

from __future__ import annotations

import dataclasses
from typing import Literal, NamedTuple

import torch
import triton

from kernels._gemm import check_by_row, expect_activations, expect_choice
from kernels._gemm_quantize_kernel import ABSMAX, FULL, MINMAX, SCALE, _quantize_kernel
from kernels._launch import check_output, check_runnable, destination, on_device
from kernels._packed import PackedWeight, expect_finite

RULES = ("scale", "full", "absmax", "minmax")

Rule = Literal["scale", "full", "absmax", "minmax"]


@dataclasses.dataclass(frozen=True)
class QuantizeInput(PackedWeight):
    """Activations and the rule they are quantized by, as in the module's table."""

    x: torch.Tensor
    rule: Rule = "scale"
    signed: bool = True

    @property
    def output_shape(self) -> tuple[int, ...]:
        return tuple(self.x.shape)

    def validate(self, *, deep: bool = False) -> None:
        """Check the fields.

        Raises:
            TypeError: a field of another type or dtype.
            ValueError: another number of dimensions, rows without elements, an unknown rule, unsigned
                codes of another rule than ``minmax``; with ``deep`` also a number that is not finite.
        """
        expect_quantizable(self.x, self.rule, self.signed)
        if deep:
            expect_finite("x", self.x)


def expect_quantizable(x: object, rule: object, signed: object) -> None:
    """Check the fields of activations that are to be quantized."""
    expect_activations(x)
    expect_choice("rule", rule, RULES)
    if not isinstance(signed, bool):
        raise TypeError(f"signed: expected a bool, found {type(signed).__name__}")
    if not signed and rule != "minmax":
        raise ValueError(f"signed: expected True with rule {rule}, found False")


class Quantized(NamedTuple):
    """Codes int8 or uint8 [M, K], scales float32 [M], zero points int32 [M] (None: symmetric)."""

    codes: torch.Tensor
    scale: torch.Tensor
    zero: torch.Tensor | None


_RULE_NUMBERS = {"scale": SCALE.value, "full": FULL.value, "absmax": ABSMAX.value, "minmax": MINMAX.value}


def code_range(rule: str, signed: bool) -> tuple[int, int]:
    """Smallest and largest code of a rule."""
    if rule in ("scale", "absmax"):
        return (-127, 127)
    return (-128, 127) if signed else (0, 255)


def _launch(
    weight: QuantizeInput,
    out: torch.Tensor | None,
    made: Quantized | None,
    rows: int,
    cols: int,
    num_warps: int,
) -> None:
    x = weight.x.contiguous()
    n_rows, n_cols = x.shape
    if not n_rows:
        return
    least, most = code_range(weight.rule, weight.signed)
    _quantize_kernel[(triton.cdiv(n_rows, rows),)](
        # What is None is not written.
        x if out is None else out,
        x if made is None else made.codes,
        x if made is None else made.scale,
        x if made is None or made.zero is None else made.zero,
        x,
        n_rows,
        n_cols,
        RULE=_RULE_NUMBERS[weight.rule],
        LEAST=least,
        MOST=most,
        BACK=out is not None,
        CODES=made is not None,
        ROWS=rows,
        COLS=cols,
        num_warps=num_warps,
        enable_fp_fusion=False,
    )


def quantize(weight: QuantizeInput, *, rows: int = 1, cols: int = 1024, num_warps: int = 4) -> Quantized:
    """Codes, scales and zero points of activations, exact to the bit.

    Args:
        weight: activations on one GPU (or on the CPU under Triton's interpreter). Strided ones are
            made contiguous first, which copies them.
        rows, cols: rows a program has, and how much of a row it holds at once; powers of two.
        num_warps: warps a program uses.

    Returns:
        New contiguous tensors. With rule ``absmax`` the scale is absmax itself.

    Raises:
        TypeError, ValueError: a field does not fit; names it.
    """
    check_by_row(QuantizeInput, weight, rows=rows, cols=cols, num_warps=num_warps)
    check_runnable(_quantize_kernel, weight.device)
    device, n_rows = weight.device, weight.x.shape[0]
    with on_device(device):
        made = Quantized(
            torch.empty(weight.x.shape, dtype=torch.int8 if weight.signed else torch.uint8, device=device),
            torch.empty((n_rows,), dtype=torch.float32, device=device),
            torch.empty((n_rows,), dtype=torch.int32, device=device) if weight.rule == "minmax" else None,
        )
        _launch(weight, None, made, rows, cols, num_warps)
    return made


def round_trip(
    weight: QuantizeInput,
    *,
    dtype: torch.dtype,
    out: torch.Tensor | None = None,
    rows: int = 1,
    cols: int = 1024,
    num_warps: int = 4,
) -> torch.Tensor:
    """Quantize and decode again: what the codes stand for, in ``dtype``, exact to the bit.

    Args:
        weight, rows, cols, num_warps: as :func:`quantize`.
        dtype: float16, bfloat16 or float32.
        out: optional output [M, K]; may be strided.

    Returns:
        ``out``, or a new contiguous tensor [M, K].

    Raises:
        TypeError, ValueError: a field, ``dtype`` or ``out`` does not fit; names it.
    """
    check_by_row(QuantizeInput, weight, rows=rows, cols=cols, num_warps=num_warps)
    check_output(weight, dtype, out)
    check_runnable(_quantize_kernel, weight.device)
    with destination(weight, dtype, out) as target:
        _launch(weight, target.buffer, None, rows, cols, num_warps)
    return target.result
