"""Wrong scales and biases of the fp8 matrix product; the catalogue is ``gemm_fp8_scales.py``."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from conformance.faults import Context, Values
from conformance.faults._gemm import Decode, first_one, next_one, next_wrapped, previous_wrapped, through
from conformance.faults._gemm_fp8 import changed, model_of
from oracles.spec.gemm_fp8 import BLOCK, Fp8GemmModel, products

__all__ = ["first_one", "next_one", "next_wrapped", "previous_wrapped", "through"]


# --- scales -------------------------------------------------------------------------------------


def side(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Decode:
    """Another ``a_scale`` or ``w_scale`` [KB, lines]; None where nothing changes."""

    def decode(ctx: Context) -> np.ndarray | None:
        old = getattr(ctx.model, name)
        with np.errstate(all="ignore"):
            new = np.asarray(change(old), np.float32)
        return None if np.array_equal(old, new, equal_nan=True) else changed(ctx, **{name: new})

    return decode


def lines(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
    """``change`` of the scales of all tokens or channels, in each block."""
    return lambda scale: np.stack([change(row) for row in scale]) if len(scale) else scale


def bias_as(change: Callable[[np.ndarray], np.ndarray]) -> Decode:
    """Another bias; None where there is none or nothing changes."""

    def decode(ctx: Context) -> np.ndarray | None:
        old = model_of(ctx).bias
        if old is None:
            return None
        new = np.asarray(change(old), np.float32)
        return None if np.array_equal(old, new) else changed(ctx, bias=new)

    return decode


def blocked_side(name: str, change: Callable[[np.ndarray], np.ndarray | None]) -> Decode:
    """Another assignment of the scales by block as they are stored ([M, KB] or [NB, KB]): the scale of each
    line and block of K, float32 [lines, KB]."""

    def decode(ctx: Context) -> np.ndarray | None:
        stored = getattr(ctx.weight, name)
        if stored.dim() != 2:
            return None
        new = change(stored.cpu().numpy())
        old = getattr(ctx.model, name)
        if new is None or np.array_equal(new.T, old, equal_nan=True):
            return None
        return changed(ctx, **{name: np.ascontiguousarray(new.T)})

    return decode


def transposed(name: str) -> Decode:
    """The stored scales read with the other axis first, in their own memory."""

    def decode(ctx: Context) -> np.ndarray | None:
        def change(stored: np.ndarray) -> np.ndarray | None:
            if min(stored.shape) < 2:
                return None
            other = np.ascontiguousarray(stored).reshape(stored.shape[::-1]).T
            if name == "a_scale":
                return other
            return other[np.arange(model_of(ctx).b.shape[0]) // BLOCK]

        return blocked_side(name, change)(ctx)

    return decode


def rows_by_extent(ctx: Context) -> np.ndarray | None:
    """The block of a channel by ceil(N / rows of scales) instead of 128."""

    def change(stored: np.ndarray) -> np.ndarray:
        n_cols = model_of(ctx).b.shape[0]
        return stored[np.arange(n_cols) // -(-n_cols // stored.shape[0])]

    if not model_of(ctx).b.size:
        return None
    return blocked_side("w_scale", change)(ctx)


def rows_by(choose: Callable[[np.ndarray, int], np.ndarray]) -> Decode:
    """Another block for each channel: ``choose(channels, number of blocks)``."""

    def decode(ctx: Context) -> np.ndarray | None:
        def change(stored: np.ndarray) -> np.ndarray | None:
            if stored.shape[0] < 2:
                return None
            return stored[choose(np.arange(model_of(ctx).b.shape[0]), stored.shape[0])]

        return blocked_side("w_scale", change)(ctx)

    return decode


def blocks_of_k(choose: Callable[[np.ndarray], np.ndarray]) -> Decode:
    """Scales of both sides of another block of K: ``choose(blocks)``."""

    def decode(ctx: Context) -> np.ndarray | None:
        model = model_of(ctx)
        count = len(model.spans())
        if not model.blocked or count < 2:
            return None
        order = choose(np.arange(count))
        fields = {}
        if model.a_blocked:
            fields["a_scale"] = model.a_scale[order]
        if model.w_blocked:
            fields["w_scale"] = model.w_scale[order]
        return changed(ctx, **fields)

    return decode


def k_by_extent(ctx: Context) -> np.ndarray | None:
    """The block of k by ceil(K / blocks) instead of 128."""
    model = model_of(ctx)
    count = len(model.spans())
    if not model.blocked or count < 2:
        return None
    n_inner = model.a.shape[1]
    found = []
    width = -(-n_inner // count)
    for first in range(0, n_inner, width):
        found.append(products(model.a[:, first : first + width], model.b[:, first : first + width]))
    # Every sum keeps its scale.
    return changed(ctx, sums=np.stack(found)) if width != BLOCK and len(found) == count else None


# --- arithmetic ---------------------------------------------------------------------------------


def order(name: str) -> Decode:
    return lambda ctx: None if name == model_of(ctx).order else changed(ctx, order=name)


def scale_product_in(dtype: torch.dtype) -> Decode:
    """Both scales multiplied in 16 bits first."""

    def decode(ctx: Context) -> np.ndarray | None:
        model = model_of(ctx)
        if model.a_blocked != model.w_blocked:
            return None
        total: np.ndarray = np.zeros((model.a.shape[0], model.b.shape[0]), np.float32)
        with np.errstate(all="ignore"):
            for block, part in enumerate(model.parts()):
                a, w = model.scales_at(block)
                both = through(dtype, through(dtype, a) * through(dtype, w)).astype(np.float32)
                total = total + part.astype(np.float32) * both
            return ctx.bits(Values(_plus_bias(model, total)))

    return decode


def _plus_bias(model: Fp8GemmModel, value: np.ndarray) -> np.ndarray:
    return value if model.bias is None else value + model.bias[None, :]


def with_bias(change: Callable[[Fp8GemmModel, np.ndarray], np.ndarray | None]) -> Decode:
    """Another way to add the bias [1, N]; None where there is none."""

    def decode(ctx: Context) -> np.ndarray | None:
        model = model_of(ctx)
        if model.bias is None:
            return None
        with np.errstate(all="ignore"):
            found = change(model, model.bias[None, :])
        return None if found is None else ctx.bits(Values(found))

    return decode


def bias_first(ctx: Context) -> np.ndarray | None:
    """(sum + bias) * scales, where the scales come after all of the sum."""
    model = model_of(ctx)
    if model.bias is None or model.blocked or not len(model.parts()):
        return None
    with np.errstate(all="ignore"):
        sums = model.parts()[:1].astype(np.float32) + model.bias[None, None, :]
    return changed(ctx, sums=sums.astype(np.float64), bias=None)


def bias_of_each_block(ctx: Context) -> np.ndarray | None:
    """The bias added once for every block of K."""
    model = model_of(ctx)
    count = -(-model.a.shape[1] // BLOCK)
    if model.bias is None or count < 2:
        return None
    with np.errstate(all="ignore"):
        return changed(ctx, bias=np.float32(count) * model.bias)


def bias_after_rounding(ctx: Context) -> np.ndarray | None:
    if ctx.dtype is torch.float32:
        return None

    def change(model: Fp8GemmModel, bias: np.ndarray) -> np.ndarray:
        return through(ctx.dtype, model.scaled()) + through(ctx.dtype, bias)

    return with_bias(change)(ctx)


def sums_fused(ctx: Context) -> np.ndarray | None:
    """Each block's last product and the sum of blocks with one rounding (a fused multiply-add)."""
    model = model_of(ctx)
    if not model.blocked:
        return None
    total: np.ndarray = np.zeros((model.a.shape[0], model.b.shape[0]), np.float32)
    with np.errstate(all="ignore"):
        for block, part in enumerate(model.parts()):
            value: np.ndarray = part.astype(np.float32)
            a, w = model.scales_at(block)
            factors = [s for s, is_blocked in ((a, model.a_blocked), (w, model.w_blocked)) if is_blocked]
            if model.order == "w-a":
                factors.reverse()
            if model.order == "product" and len(factors) == 2:
                factors = [factors[0] * factors[1]]
            for factor in factors[:-1]:
                value = value * factor
            # float64 holds the product; the sum is rounded twice, which shows at ties only.
            wide = value.astype(np.float64) * factors[-1].astype(np.float64)
            total = (total.astype(np.float64) + wide).astype(np.float32)
        return ctx.bits(Values(_plus_bias(model, model.outside(total))))


def last_block_unscaled(ctx: Context) -> np.ndarray | None:
    """A short last block of K whose scales stay out."""
    model = model_of(ctx)
    if not model.blocked or model.a.shape[1] % BLOCK == 0:
        return None
    fields = {}
    for name, is_blocked in (("a_scale", model.a_blocked), ("w_scale", model.w_blocked)):
        if is_blocked:
            fields[name] = getattr(model, name).copy()
            fields[name][-1] = 1
    return changed(ctx, **fields)


def short_last_rows(ctx: Context) -> np.ndarray | None:
    """Channels of a short last block with the scales of the block before it."""
    if model_of(ctx).b.shape[0] % BLOCK == 0:
        return None
    return rows_by(lambda n, count: np.minimum(n // BLOCK, count - 2))(ctx)
