"""Wrong decoders of zeros: conventions, signs, what is subtracted from what."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from conformance.faults import Context, Fault
from conformance.faults._grouped import DEGRADED, GARBAGE, Decode, changed, model_of, oriented, with_zeros
from oracles.spec.awq import AWQModel, ScaledZeroModel
from oracles.spec.gptq import GPTQModel, decode_zeros
from oracles.spec.rounding import round_to


def _read_as(convention: str, *instead_of: str) -> Decode:
    def decode(ctx: Context) -> np.ndarray | None:
        model = ctx.model
        if not isinstance(model, GPTQModel) or ctx.weight.zeros not in instead_of:
            return None
        return with_zeros(ctx, decode_zeros(model.stored, model.bits, convention))

    return decode


def _carried(ctx: Context) -> np.ndarray | None:
    """v1 zeros by one addition a word: a stored maxq carries into the next field."""
    model = ctx.model
    if not isinstance(model, GPTQModel) or model.bits == 3 or ctx.weight.zeros == "v2":
        return None
    bits = model.bits
    words = ctx.weight.qzeros.numpy().astype(np.int64) & 0xFFFFFFFF
    ones = sum(1 << shift for shift in range(0, 32, bits))
    total = (words + ones) & 0xFFFFFFFF
    fields = (total[..., None] >> np.arange(0, 32, bits)) & (2**bits - 1)
    return with_zeros(ctx, fields.reshape(words.shape[0], -1)[:, : model.stored.shape[1]])


def _of_zeros(change: Callable[[np.ndarray, int], np.ndarray]) -> Decode:
    """``change(zeros, maxq)``."""

    def decode(ctx: Context) -> np.ndarray | None:
        if isinstance(ctx.model, ScaledZeroModel):
            return None
        return with_zeros(ctx, change(model_of(ctx).zeros, 2 ** getattr(ctx.weight, "bits", 4) - 1))

    return decode


def _product(change: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]) -> Decode:
    """``change(code, zero, scale)``, each spread to [K, N], rounded as the right product is."""

    def decode(ctx: Context) -> np.ndarray | None:
        model = ctx.model
        if isinstance(model, GPTQModel):
            zeros, single = model.zeros[model.zero_group], model.single
        elif isinstance(model, AWQModel):
            zeros, single = model.zeros[model.group], model.scales.dtype == np.float32
        else:
            return None
        with np.errstate(all="ignore"):
            values = change(model.codes, zeros, model.scales[model.group].astype(np.float64))
            values = values.astype(np.float32 if single else np.float64)
        return _bits(ctx, values)

    return decode


def _bits(ctx: Context, values: np.ndarray) -> np.ndarray:
    """Output bits of values [K, N]."""
    return round_to(np.ascontiguousarray(oriented(ctx, values)), ctx.dtype)


def _scaled_zero(change: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Decode:
    """awq_quads with other scaled zeros: ``change(scaled_zeros, scales)``."""

    def decode(ctx: Context) -> np.ndarray | None:
        model = ctx.model
        if not isinstance(model, ScaledZeroModel):
            return None
        with np.errstate(all="ignore"):
            return changed(ctx, scaled_zeros=change(model.scaled_zeros, model.scales))

    return decode


def _integer_again(scaled: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """As if the integer zero were stored: scaled zero = -zero * scale, unrounded."""
    ratio = np.divide(-scaled, scales, out=np.zeros_like(scales), where=(scales != 0) & np.isfinite(scaled))
    return np.where(np.isfinite(scaled) & np.isfinite(scales), -np.rint(ratio) * scales, scaled)


_V = "stored zeros are a convention of the file: v1 adds 1 and wraps, v1-nowrap adds 1, v2 adds nothing"
_ONE_STEP = "every weight is off by one step; the model emits one token again and again"
_V2 = ("https://github.com/vllm-project/vllm/pull/38966", "https://github.com/vllm-project/vllm/pull/26092")
_WRAP = ("https://github.com/AutoGPTQ/AutoGPTQ/pull/484",)
_EXLLAMA = ("https://github.com/ModelCloud/GPTQModel/issues/2350",)

CONVENTIONS = (
    Fault(
        "zero-plus-one-missing",
        "zero = stored, where the file is v1",
        _ONE_STEP,
        _V,
        _read_as("v2", "v1", "v1-nowrap"),
        _V2,
    ),
    Fault(
        "zero-plus-one-extra",
        "zero = (stored + 1) & maxq, where the file is v2",
        _ONE_STEP,
        _V,
        _read_as("v1", "v2"),
        _V2,
    ),
    Fault(
        "zero-plus-one-extra-unmasked",
        "zero = stored + 1, where the file is v2",
        _ONE_STEP,
        _V,
        _read_as("v1-nowrap", "v2"),
        _V2,
    ),
    Fault(
        "zero-wrap-unmasked",
        "zero = stored + 1 without a mask: a stored maxq reads as maxq + 1, not 0",
        "columns whose zero is 0 are off by 2**bits steps",
        _V,
        _read_as("v1-nowrap", "v1"),
        _WRAP,
    ),
    Fault(
        "zero-wrap-masked",
        "zero = (stored + 1) & maxq: a stored maxq reads as 0, not maxq + 1",
        "columns whose zero is maxq + 1 are off by 2**bits steps",
        _V,
        _read_as("v1", "v1-nowrap"),
        _WRAP,
    ),
    Fault(
        "zero-word-carry",
        "1 is added to all zeros of a word at once: a stored maxq carries into the next",
        "a column next to one whose zero is 0 is off by one step",
        "add 1 to each field and mask it",
        _carried,
        ("https://github.com/ModelCloud/GPTQModel/pull/2763",),
    ),
)

AWQ_OFFSET = (
    Fault(
        "zero-minus-one",
        "zero = (stored - 1) & 15, as for a GPTQ v1 file",
        "off by one step, by 15 where the zero is 0: NaN perplexity",
        "AWQ zeros have no offset",
        _of_zeros(lambda z, top: (z - 1) & top),
        _EXLLAMA,
    ),
    Fault(
        "zero-minus-one-clamped",
        "zero = max(stored - 1, 0)",
        _ONE_STEP,
        "AWQ zeros have no offset",
        _of_zeros(lambda z, top: np.maximum(z - 1, 0)),
        ("https://github.com/ModelCloud/GPTQModel/pull/2351",),
    ),
    Fault(
        "zero-plus-one",
        "zero = stored + 1, as for a GPTQ v1 file",
        _ONE_STEP,
        "AWQ zeros have no offset",
        _of_zeros(lambda z, top: z + 1),
        ("https://github.com/vllm-project/vllm/pull/48810",),
    ),
    Fault(
        "zero-plus-one-masked",
        "zero = (stored + 1) & 15, as for a GPTQ v1 file",
        _ONE_STEP,
        "AWQ zeros have no offset",
        _of_zeros(lambda z, top: (z + 1) & top),
        ("https://github.com/vllm-project/vllm/pull/48810",),
    ),
)

INTEGER = (
    Fault(
        "zero-max-one",
        "zero = max(zero, 1)",
        "columns whose zero is 0 are off by one step",
        "0 is a zero like any other",
        _of_zeros(lambda z, top: np.maximum(z, 1)),
        ("https://github.com/huggingface/text-generation-inference/pull/2120",),
    ),
    Fault(
        "zero-always-mid",
        "zero = 2**(bits - 1), as if the weight were symmetric",
        GARBAGE,
        "read the stored zeros",
        _of_zeros(lambda z, top: np.full_like(z, (top + 1) // 2)),
        ("https://github.com/vllm-project/vllm/pull/45656",),
    ),
    Fault(
        "zero-ignored",
        "value = code * scale",
        GARBAGE,
        "subtract the zero",
        _of_zeros(lambda z, top: np.zeros_like(z)),
    ),
    Fault(
        "zero-signed",
        "a zero with the high bit set is negative",
        GARBAGE,
        "zeros are unsigned",
        _of_zeros(lambda z, top: np.where(z > top // 2, z - top - 1, z)),
    ),
    Fault(
        "zero-added",
        "value = (code + zero) * scale",
        GARBAGE,
        "the zero is subtracted",
        _product(lambda q, z, s: (q + z) * s),
    ),
    Fault(
        "difference-negated",
        "value = (zero - code) * scale",
        GARBAGE,
        "code - zero",
        _product(lambda q, z, s: (z - q) * s),
    ),
    Fault(
        "zero-not-scaled",
        "value = code * scale - zero",
        GARBAGE,
        "subtract the integers, then scale",
        _product(lambda q, z, s: q * s - z),
    ),
    Fault(
        "scale-ignored",
        "value = code - zero",
        GARBAGE,
        "multiply by the scale",
        _product(lambda q, z, s: (q - z) * np.ones_like(s)),
    ),
)

SCALED = (
    Fault(
        "scaled-zero-subtracted",
        "value = code * scale - scaled zero",
        GARBAGE,
        "AutoAWQ stores minus zero times scale: it is added",
        _scaled_zero(lambda zero, scale: -zero),
    ),
    Fault(
        "scaled-zero-ignored",
        "value = code * scale",
        GARBAGE,
        "add the scaled zero",
        _scaled_zero(lambda zero, scale: np.zeros_like(zero)),
    ),
    Fault(
        "scaled-zero-as-integer",
        "value = (code - zero) * scale with zero = round(-scaled zero / scale)",
        "an ULP of the zero's product here and there",
        "the scaled zero was rounded when it was stored; use it as it is",
        _scaled_zero(_integer_again),
    ),
    Fault(
        "scaled-zero-not-scaled",
        "value = (code + scaled zero) * scale",
        DEGRADED,
        "the scaled zero has its scale already",
        _scaled_zero(lambda zero, scale: zero * scale),
    ),
)
