"""Faults of the output rounding, for every format."""

from __future__ import annotations

import numpy as np
import torch

from conformance.faults import Context, Fault
from oracles.spec.rounding import round_to


def _float32_bits(ctx: Context) -> np.ndarray:
    values = ctx.model.values()
    with np.errstate(all="ignore"):
        return np.ascontiguousarray(values, np.float32).view(np.uint32)


def _truncate(ctx: Context) -> np.ndarray | None:
    if ctx.dtype is not torch.bfloat16:
        return None
    return (_float32_bits(ctx) >> np.uint32(16)).astype(np.uint16)


def _half_away(ctx: Context) -> np.ndarray | None:
    if ctx.dtype is not torch.bfloat16:
        return None
    return ((_float32_bits(ctx).astype(np.uint64) + 0x8000) >> 16).astype(np.uint16)


def _through_fp16(ctx: Context) -> np.ndarray | None:
    if ctx.dtype is torch.float16:
        return None
    half = round_to(ctx.model.values(), torch.float16).view(np.float16)
    return round_to(half.astype(np.float32), ctx.dtype)


def _saturate(ctx: Context) -> np.ndarray | None:
    if ctx.dtype is not torch.float16:
        return None
    with np.errstate(all="ignore"):
        return round_to(np.clip(ctx.model.values(), -65504.0, 65504.0), torch.float16)


FAULTS = (
    Fault(
        "bf16-truncate",
        "bf16(x) = upper 16 bits of fp32(x), without rounding",
        "a bias toward zero of half a bf16 ULP: slightly degraded text, invisible at rtol 1e-2",
        "round to nearest, ties to even, at the store (a plain cast does)",
        _truncate,
        (
            "https://github.com/triton-lang/triton/issues/11217",
            "https://github.com/Atomic-Germ/OpenFlowLM-Next/pull/24",
        ),
        kind="precision",
        trigger=(
            "bf16 output and a value whose lower 16 bits of float32 are above half an ULP; hides behind "
            "rtol 1e-2"
        ),
    ),
    Fault(
        "bf16-half-away",
        "bf16(x) = (bits of fp32(x) + 0x8000) >> 16: ties away from zero",
        "1 ULP on exact ties only; invisible in a model",
        "round ties to even",
        _half_away,
        kind="precision",
        trigger=(
            "bf16 output and an exact tie with an even upper half: scale patterns `ties`; hides in random "
            "values"
        ),
    ),
    Fault(
        "through-fp16",
        "out = dtype(fp16(x)): the result passes through float16",
        "values above 65504 become inf, small ones lose bits",
        "keep the product in float32 until the one rounding at the store",
        _through_fp16,
        ("https://github.com/casper-hansen/AutoAWQ/pull/740",),
        kind="precision",
        trigger=(
            "bf16 or fp32 output with a value that float16 cannot hold: above 65504, subnormal, or over 11 "
            "bits"
        ),
    ),
    Fault(
        "fp16-saturate",
        "fp16 overflow gives 65504 instead of inf",
        "differs from upstream only on overflow",
        "make saturation an option, off by default",
        _saturate,
        kind="precision",
        trigger="fp16 output with a product of 65520 or more, or an infinite scale; hides at ordinary scales",
    ),
)
