"""Wrong decoders of the formula: what is subtracted from what, and what is scaled."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from conformance.faults import Context, Fault
from conformance.faults._grouped import DEGRADED, GARBAGE, Decode, changed, oriented
from oracles.spec.awq import AWQModel, ScaledZeroModel
from oracles.spec.gptq import GPTQModel
from oracles.spec.rounding import round_to


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


INTEGER = (
    Fault(
        "zero-added",
        "value = (code + zero) * scale",
        GARBAGE,
        "the zero is subtracted",
        _product(lambda q, z, s: (q + z) * s),
        kind="zeros",
        trigger="a zero other than 0",
    ),
    Fault(
        "difference-negated",
        "value = (zero - code) * scale",
        GARBAGE,
        "code - zero",
        _product(lambda q, z, s: (z - q) * s),
        kind="zeros",
        trigger="a code other than its zero",
    ),
    Fault(
        "zero-not-scaled",
        "value = code * scale - zero",
        GARBAGE,
        "subtract the integers, then scale",
        _product(lambda q, z, s: q * s - z),
        kind="zeros",
        trigger="a zero other than 0 and a scale other than 1; hides in scales of one",
    ),
    Fault(
        "scale-ignored",
        "value = code - zero",
        GARBAGE,
        "multiply by the scale",
        _product(lambda q, z, s: (q - z) * np.ones_like(s)),
        kind="scales",
        trigger="a scale other than 1; hides in scales of one",
    ),
)

SCALED = (
    Fault(
        "scaled-zero-subtracted",
        "value = code * scale - scaled zero",
        GARBAGE,
        "AutoAWQ stores minus zero times scale: it is added",
        _scaled_zero(lambda zero, scale: -zero),
        kind="zeros",
        trigger="a scaled zero other than 0",
    ),
    Fault(
        "scaled-zero-ignored",
        "value = code * scale",
        GARBAGE,
        "add the scaled zero",
        _scaled_zero(lambda zero, scale: np.zeros_like(zero)),
        kind="zeros",
        trigger="a scaled zero other than 0",
    ),
    Fault(
        "scaled-zero-as-integer",
        "value = (code - zero) * scale with zero = round(-scaled zero / scale)",
        "an ULP of the zero's product here and there",
        "the scaled zero was rounded when it was stored; use it as it is",
        _scaled_zero(_integer_again),
        kind="precision",
        trigger=(
            "a scaled zero that is not the exact product zero * scale: scales of full mantissa, or a free "
            "scaled zero"
        ),
    ),
    Fault(
        "scaled-zero-not-scaled",
        "value = (code + scaled zero) * scale",
        DEGRADED,
        "the scaled zero has its scale already",
        _scaled_zero(lambda zero, scale: zero * scale),
        kind="zeros",
        trigger="a scaled zero other than 0 and a scale other than 1",
    ),
)
