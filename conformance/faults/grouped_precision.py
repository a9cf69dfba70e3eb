"""Wrong decoders of the arithmetic: where it is rounded, and to what."""

from __future__ import annotations

import numpy as np
import torch

from conformance.bits import NAMES
from conformance.faults import Context, Fault
from conformance.faults._grouped import DEGRADED, Decode, changed, model_of, oriented, rounded
from oracles.spec.awq import ScaledZeroModel
from oracles.spec.gptq import GPTQModel
from oracles.spec.rounding import round_to


def _spread(ctx: Context) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Code, integer zero and exact scale of each element [K, N]; None for scaled zeros."""
    model = model_of(ctx)
    if isinstance(model, ScaledZeroModel):
        return None
    zero_group = model.zero_group if isinstance(model, GPTQModel) else model.group
    codes, zeros = model.codes.astype(np.float64), model.zeros[zero_group].astype(np.float64)
    return codes, zeros, model.scales[model.group].astype(np.float64)


def _stored(ctx: Context, values: np.ndarray) -> np.ndarray:
    return round_to(np.ascontiguousarray(oriented(ctx, values)), ctx.dtype)


def _hoisted(dtype: torch.dtype | None) -> Decode:
    """code * scale - zero * scale, each step rounded to ``dtype`` (None: that of the scales)."""

    def decode(ctx: Context) -> np.ndarray | None:
        parts = _spread(ctx)
        own = ctx.weight.scales.dtype
        if parts is None or (dtype is not None and own == dtype):
            return None
        codes, zeros, scales = parts
        kind = own if dtype is None else dtype
        with np.errstate(all="ignore"):
            return _stored(ctx, rounded(rounded(codes * scales, kind) - rounded(zeros * scales, kind), kind))

    return decode


def _product_narrowed(dtype: torch.dtype) -> Decode:
    """(code - zero) * scale rounded to ``dtype`` before the output rounding."""

    def decode(ctx: Context) -> np.ndarray | None:
        if ctx.dtype is dtype:
            return None
        values = ctx.model.values()
        return round_to(rounded(values, dtype), ctx.dtype)

    return decode


def _scale_through(dtype: torch.dtype) -> Decode:
    def decode(ctx: Context) -> np.ndarray | None:
        model = model_of(ctx)
        if ctx.weight.scales.dtype == dtype:
            return None
        return changed(ctx, scales=rounded(model.scales, dtype).astype(model.scales.dtype))

    return decode


def _flushed(ctx: Context) -> np.ndarray | None:
    """Subnormal float16 scales read as 0."""
    scales = model_of(ctx).scales
    small = (np.abs(scales) < 2.0**-14) & (scales != 0)
    if ctx.weight.scales.dtype != torch.float16 or not small.any():
        return None
    return changed(ctx, scales=np.where(small, np.copysign(0.0, scales), scales))


def _two_roundings(ctx: Context) -> np.ndarray | None:
    """awq_quads without the fused multiply-add: the product is rounded to float16 first."""
    model = ctx.model
    if not isinstance(model, ScaledZeroModel):
        return None
    with np.errstate(all="ignore"):
        product = rounded(model.codes * model.scales[model.group], torch.float16)
        total = rounded(product + model.scaled_zeros[model.group], torch.float16)
    return _stored(ctx, total)


def _sum_twice(ctx: Context) -> np.ndarray | None:
    """awq_quads with the sum rounded to float32 and then to the output dtype."""
    if not isinstance(ctx.model, ScaledZeroModel) or ctx.dtype is torch.float32:
        return None
    with np.errstate(all="ignore"):
        return round_to(ctx.model.values().astype(np.float32), ctx.dtype)


_FIRST = "subtract the integers, take the product in float32, round once at the store"
_ZS = ("https://github.com/vllm-project/vllm/pull/55532",)
_FP16 = ("https://github.com/casper-hansen/AutoAWQ/pull/740",)
_FLUSHED = Fault(
    "scale-subnormals-flushed",
    "float16 scales below 2**-14 are read as 0",
    "groups of tiny weights vanish",
    "decode the subnormal numbers of float16 too: a plain load and cast does",
    _flushed,
    ("https://github.com/invergent-ai/surogate/issues/162",),
    kind="precision",
    trigger="a float16 scale below 6.1e-5; hides at ordinary scales and behind an absolute tolerance",
)

PRECISION = (
    Fault(
        "hoist-zs",
        "code * scale - zero * scale, each rounded to the dtype of the scales",
        "relative error grows with zero / (code - zero); inf - inf = NaN for large scales",
        _FIRST,
        _hoisted(None),
        _ZS,
        kind="precision",
        trigger=(
            "scales of full mantissa and a code near a large zero (q = 15, z = 14); z * s above 65504 gives "
            "NaN; hides in powers of two"
        ),
    ),
    *(
        Fault(
            f"hoist-zs-{NAMES[dtype]}",
            f"{NAMES[dtype]}(code * scale) - {NAMES[dtype]}(zero * scale)",
            DEGRADED,
            _FIRST,
            _hoisted(dtype),
            _ZS,
            kind="precision",
            trigger=(
                f"scales of another dtype than {NAMES[dtype]} whose products with code and zero round in "
                f"{NAMES[dtype]}; hides in powers of two"
            ),
        )
        for dtype in (torch.float16, torch.bfloat16, torch.float32)
    ),
    Fault(
        "product-through-bf16",
        "the product is rounded to bfloat16, then to the output dtype",
        DEGRADED,
        _FIRST,
        _product_narrowed(torch.bfloat16),
        kind="precision",
        trigger="fp16 or fp32 output and a product with more than 8 significant bits; hides in bf16 output",
    ),
    Fault(
        "scale-through-fp16",
        "scales are rounded to float16 first",
        "inf or 0 for extreme scales, 2**-11 relative error",
        "keep the scales' own dtype",
        _scale_through(torch.float16),
        _FP16,
        kind="precision",
        trigger="bf16 or fp32 scales that float16 cannot hold: above 65504, below 2**-24, or over 11 bits",
    ),
    Fault(
        "scale-through-bf16",
        "scales are rounded to bfloat16 first",
        DEGRADED,
        "keep the scales' own dtype",
        _scale_through(torch.bfloat16),
        kind="precision",
        trigger="fp16 or fp32 scales with more than 8 significant bits; hides in powers of two",
    ),
    _FLUSHED,
)

QUADS = (
    Fault(
        "quads-product-rounded",
        "float16(float16(code * scale) + scaled zero)",
        "an ULP here and there",
        "one rounding of the exact sum, as __hfma2 does",
        _two_roundings,
        kind="precision",
        trigger=(
            "a product of code and scale with more than 11 bits; in fp32 output any sum that float16 does "
            "not hold"
        ),
    ),
    Fault(
        "quads-sum-rounded-twice",
        "the sum is rounded to float32, then to the output dtype",
        "1 ULP where the float32 sum is a tie of the output dtype",
        "round the float32 sum to odd first",
        _sum_twice,
        kind="precision",
        trigger=(
            "fp16 or bf16 output and a sum that rounds to a tie in float32: far apart code * scale and zero"
        ),
    ),
    Fault(
        "product-through-bf16",
        "the result is rounded to bfloat16, then to the output dtype",
        DEGRADED,
        _FIRST,
        _product_narrowed(torch.bfloat16),
        kind="precision",
        trigger="fp16 or fp32 output and a product with more than 8 significant bits; hides in bf16 output",
    ),
    Fault(
        "scale-through-bf16",
        "scales are rounded to bfloat16 first",
        DEGRADED,
        "keep the scales' own dtype",
        _scale_through(torch.bfloat16),
        kind="precision",
        trigger="fp16 or fp32 scales with more than 8 significant bits; hides in powers of two",
    ),
    _FLUSHED,
)
