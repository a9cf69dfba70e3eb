"""Wrong decoders of the int8 matrix product; the catalogues with their names are ``gemm*.py``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from conformance.bits import to_float
from conformance.faults import Context, Values
from kernels.gemm_dynamic import DynamicGemmInput
from oracles.spec.gemm import AccumulateModel, EpilogueModel, Int8GemmModel, products, scale_by
from oracles.spec.rounding import round_to

Decode = Callable[[Context], np.ndarray | None]


def through(dtype: torch.dtype, values: np.ndarray) -> np.ndarray:
    """float64 values of ``values`` rounded to ``dtype``."""
    return to_float(round_to(values, dtype), dtype)


def epilogue_of(ctx: Context) -> EpilogueModel:
    """The scaling step of either model that has one."""
    model = ctx.model
    if isinstance(model, Int8GemmModel):
        return model.epilogue()
    assert isinstance(model, EpilogueModel)
    return model


def changed(ctx: Context, **fields: Any) -> np.ndarray:
    """Output of the model with other fields."""
    return ctx.bits(dataclasses.replace(ctx.model, **fields))  # type: ignore[type-var]


# --- sums -------------------------------------------------------------------------------------


def _operands(ctx: Context) -> tuple[np.ndarray, np.ndarray]:
    assert isinstance(ctx.model, (AccumulateModel, Int8GemmModel))
    return ctx.model.a, ctx.model.b


def unsigned(ctx: Context) -> bool:
    """Whether the activations' codes are unsigned."""
    if isinstance(ctx.weight, DynamicGemmInput):
        return not ctx.weight.signed
    return ctx.weight.a.dtype is torch.uint8


def summed(change: Callable[[np.ndarray, np.ndarray], np.ndarray | None]) -> Decode:
    """Accumulators int64 by another rule of a [M, K] and b [N, K]."""

    def decode(ctx: Context) -> np.ndarray | None:
        acc = change(*_operands(ctx))
        return None if acc is None else changed(ctx, acc=acc)

    return decode


def operands(change: Callable[[np.ndarray, np.ndarray, bool], tuple[Any, Any] | None]) -> Decode:
    """Other codes of a and b: ``change(a, b, whether a is unsigned)``."""

    def decode(ctx: Context) -> np.ndarray | None:
        found = change(*_operands(ctx), unsigned(ctx))
        return None if found is None else changed(ctx, a=found[0], b=found[1])

    return decode


def wrapped(bits: int) -> Decode:
    """Sums modulo 2**bits, signed."""
    half = 2 ** (bits - 1)
    return summed(lambda a, b: (products(a, b) + half) % (2 * half) - half)


def clamped(bits: int) -> Decode:
    half = 2 ** (bits - 1)
    return summed(lambda a, b: np.clip(products(a, b), -half, half - 1))


def pairs_clamped(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Sums of two neighbouring products clamped to 16 bits, then added in 32."""
    even = np.pad(a, ((0, 0), (0, a.shape[1] % 2))), np.pad(b, ((0, 0), (0, b.shape[1] % 2)))
    total = np.zeros((a.shape[0], b.shape[0]), np.int64)
    for k in range(0, even[0].shape[1], 2):
        total += np.clip(products(even[0][:, k : k + 2], even[1][:, k : k + 2]), -(2**15), 2**15 - 1)
    return total


def floating(dtype: type) -> Decode:
    """Products added one after the other in a float dtype."""

    def change(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        total: np.ndarray = np.zeros((a.shape[0], b.shape[0]), dtype)
        with np.errstate(all="ignore"):
            for k in range(a.shape[1]):
                total += (a[:, k][:, None] * b[:, k][None, :]).astype(dtype)
            return np.clip(total.astype(np.float64), -(2.0**31), 2.0**31 - 1).astype(np.int64)

    return summed(change)


def tail_skipped(tile: int) -> Decode:
    def change(a: np.ndarray, b: np.ndarray) -> np.ndarray | None:
        whole = a.shape[1] // tile * tile
        return None if whole == a.shape[1] else products(a[:, :whole], b[:, :whole])

    return summed(change)


def tail_clamped(tile: int) -> Decode:
    """The lanes behind the last code read it again."""

    def change(a: np.ndarray, b: np.ndarray) -> np.ndarray | None:
        n_inner = a.shape[1]
        if n_inner % tile == 0:
            return None
        k = np.minimum(np.arange(-(-n_inner // tile) * tile), n_inner - 1)
        return products(a[:, k], b[:, k])

    return summed(change)


def tail_overlapping(tile: int) -> Decode:
    """The last tile starts early enough to be whole, and counts codes a second time."""

    def change(a: np.ndarray, b: np.ndarray) -> np.ndarray | None:
        n_inner = a.shape[1]
        if n_inner % tile == 0 or n_inner < tile:
            return None
        whole = n_inner // tile * tile
        k = np.concatenate([np.arange(whole), np.arange(n_inner - tile, n_inner)])
        return products(a[:, k], b[:, k])

    return summed(change)


def last_tile_only(tile: int) -> Decode:
    def change(a: np.ndarray, b: np.ndarray) -> np.ndarray | None:
        n_inner = a.shape[1]
        if n_inner <= tile:
            return None
        first = (n_inner - 1) // tile * tile
        return products(a[:, first:], b[:, first:])

    return summed(change)


def other_signedness(numbers: np.ndarray, is_unsigned: bool) -> np.ndarray:
    """8-bit numbers read with the other signedness."""
    return (numbers + 128) % 256 - 128 if is_unsigned else numbers & 255


def shift_not_restored(ctx: Context) -> np.ndarray | None:
    """Unsigned codes shifted by 128 for a signed product, without 128 times the weight's sums."""
    a, b = _operands(ctx)
    return changed(ctx, acc=products(a - 128, b)) if unsigned(ctx) else None


def words_reversed(a: np.ndarray, b: np.ndarray) -> np.ndarray | None:
    """The four codes of each word of b in the other order; a K that is no whole number of words keeps
    its tail."""
    whole = b.shape[1] // 4 * 4
    if not whole:
        return None
    k = np.arange(b.shape[1])
    k[:whole] = k[:whole].reshape(-1, 4)[:, ::-1].reshape(-1)
    return products(a, b[:, k])


def transposed_result(ctx: Context) -> np.ndarray | None:
    a, b = _operands(ctx)
    return changed(ctx, acc=products(a, b).T) if a.shape[0] == b.shape[0] > 1 else None


# --- zero points and scales -------------------------------------------------------------------


def toward_zero(total: np.ndarray) -> np.ndarray:
    """Integers as float32, rounded toward zero."""
    nearest = total.astype(np.float32)
    over = np.abs(nearest.astype(np.float64)) > np.abs(total)
    return np.where(over, np.nextafter(nearest, np.float32(0)), nearest)


def has_zero(ctx: Context) -> bool:
    if isinstance(ctx.weight, DynamicGemmInput):
        return ctx.weight.rule == "minmax"
    return ctx.weight.a_zero is not None


def zeros(change: Callable[[np.ndarray], np.ndarray]) -> Decode:
    def decode(ctx: Context) -> np.ndarray | None:
        return changed(ctx, a_zero=change(ctx.model.a_zero)) if has_zero(ctx) else None  # type: ignore[attr-defined]

    return decode


def next_one(numbers: np.ndarray) -> np.ndarray:
    """Each place's neighbour; the last keeps its own."""
    return numbers[np.minimum(np.arange(numbers.size) + 1, max(numbers.size - 1, 0))]


def next_wrapped(numbers: np.ndarray) -> np.ndarray:
    """Each place's neighbour; the last has the first."""
    return np.roll(numbers, -1)


def previous_wrapped(numbers: np.ndarray) -> np.ndarray:
    """The neighbour before; the first has the last."""
    return np.roll(numbers, 1)


def first_one(numbers: np.ndarray) -> np.ndarray:
    return numbers[np.zeros(numbers.size, np.int64)]


def field(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Decode:
    """Another ``a_scale``, ``w_scale`` or ``bias``; None where there is none or nothing changes."""

    def decode(ctx: Context) -> np.ndarray | None:
        old = getattr(ctx.model, name)
        if old is None:
            return None
        new = np.asarray(change(old), np.float32)
        return None if np.array_equal(old, new, equal_nan=True) else changed(ctx, **{name: new})

    return decode


def order(name: str) -> Decode:
    def decode(ctx: Context) -> np.ndarray | None:
        own = ctx.model.order  # type: ignore[attr-defined]
        return None if name == own or "absmax" in (name, own) else changed(ctx, order=name)

    return decode


def absmax_as_scale(ctx: Context) -> np.ndarray | None:
    return changed(ctx, order="product") if ctx.model.order == "absmax" else None  # type: ignore[attr-defined]


def scales_swapped(ctx: Context) -> np.ndarray | None:
    model = epilogue_of(ctx)
    if model.a_scale.size != model.w_scale.size or np.array_equal(model.a_scale, model.w_scale):
        return None
    return changed(ctx, a_scale=model.w_scale, w_scale=model.a_scale)


# --- arithmetic of the epilogue -----------------------------------------------------------------


def scale(model: EpilogueModel, value: np.ndarray) -> np.ndarray:
    return scale_by(value, model.a_scale[:, None], model.w_scale[None, :], model.order)


def plus_bias(model: EpilogueModel, value: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return value if model.bias is None else value + model.bias[None, :]


def arithmetic(change: Callable[[EpilogueModel], np.ndarray | None]) -> Decode:
    """Values float32 or float64 of the epilogue by another computation."""

    def decode(ctx: Context) -> np.ndarray | None:
        with np.errstate(all="ignore"):
            found = change(epilogue_of(ctx))
        return None if found is None else ctx.bits(Values(found))

    return decode


def with_bias(change: Callable[[EpilogueModel, np.ndarray], np.ndarray | None]) -> Decode:
    """The same, where there is a bias."""
    return arithmetic(lambda model: None if model.bias is None else change(model, model.bias[None, :]))


def before_bias(change: Callable[[np.ndarray], np.ndarray]) -> Decode:
    """The scaled product is changed, then the bias added."""
    return arithmetic(lambda model: plus_bias(model, np.asarray(change(model.scaled()), np.float32)))


def after_bias(change: Callable[[np.ndarray], np.ndarray]) -> Decode:
    """The result with its bias is changed."""
    return arithmetic(lambda model: np.asarray(change(plus_bias(model, model.scaled())), np.float32))


def sums_as(change: Callable[[np.ndarray], np.ndarray]) -> Decode:
    """The accumulators become floats in another way."""
    return arithmetic(
        lambda model: plus_bias(model, scale(model, np.asarray(change(model.corrected()), np.float32)))
    )


def zero_in_floats(ctx: Context) -> np.ndarray | None:
    def change(model: EpilogueModel) -> np.ndarray:
        below = model.a_zero.astype(np.float32)[:, None] * model.sums.astype(np.float32)[None, :]
        return plus_bias(model, scale(model, model.acc.astype(np.float32) - below))

    return arithmetic(change)(ctx) if has_zero(ctx) else None


def zero_after_scales(ctx: Context) -> np.ndarray | None:
    def change(model: EpilogueModel) -> np.ndarray:
        below = (model.a_zero[:, None] * model.sums[None, :]).astype(np.float32)
        return plus_bias(model, scale(model, model.acc.astype(np.float32)) - scale(model, below))

    return arithmetic(change)(ctx) if has_zero(ctx) else None


def whole(rounding: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
    """To integers and back, where there is no -0."""
    return lambda values: rounding(values) + np.float32(0)


def bias_fused(model: EpilogueModel, bias: np.ndarray) -> np.ndarray:
    """The last product and the bias with one rounding."""
    value = model.corrected().astype(np.float32)
    a, w = model.a_scale[:, None], model.w_scale[None, :]
    first, last = {
        "a-w": (value * a, w),
        "w-a": (value * w, a),
        "product": (value, a * w),
        "absmax": (value * (a * w), np.float32(1 / 127**2)),
    }[model.order]
    # A float64 holds the product exactly; the sum is rounded twice, which shows at ties only.
    return (first.astype(np.float64) * last + bias).astype(np.float32)


def bias_after_rounding(ctx: Context) -> np.ndarray | None:
    if ctx.dtype is torch.float32:
        return None

    def change(model: EpilogueModel, bias: np.ndarray) -> np.ndarray:
        return through(ctx.dtype, model.scaled()) + through(ctx.dtype, bias)

    return with_bias(change)(ctx)


def bias_by_row(model: EpilogueModel, bias: np.ndarray) -> np.ndarray | None:
    return model.scaled() + bias.T if model.acc.shape[0] == model.acc.shape[1] > 1 else None
