"""Wrong casts of activations to fp8; the catalogue with their names is ``gemm_cast_fp8.py``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import torch

from conformance.faults import Context, Values
from conformance.faults._gemm import Decode, next_one, through
from conformance.faults._gemm_fp8 import E5M2, FNUZ
from kernels.gemm_cast_fp8 import CastInput
from oracles.spec.fp8 import LARGEST, VALUES, encode
from oracles.spec.gemm_cast_fp8 import BLOCK, CastModel, absmax, block_starts, floats, quotients, scales_of


@dataclasses.dataclass(frozen=True)
class Activations:
    """What is cast: x float32 [M, K], what shares a scale, and the right scale of each element."""

    x: np.ndarray
    per: str
    scale: np.ndarray

    @property
    def block(self) -> np.ndarray:
        return block_starts(self.x.shape[1], self.per)

    def scaled_by(self, scale: np.ndarray) -> CastModel:
        """Codes by another scale, and decoded with it."""
        return CastModel(encode(quotients(self.x, scale)), scale)

    def right_codes(self) -> np.ndarray:
        return encode(quotients(self.x, self.scale))


Change = Callable[[Activations], "CastModel | Values | None"]


def cast(change: Change) -> Decode:
    """Another cast; None where it does not apply."""

    def decoder(ctx: Context) -> np.ndarray | None:
        weight: CastInput = ctx.weight
        x = floats(weight)
        given = None if weight.scale is None else weight.scale.cpu().numpy()
        if not x.size:
            return None
        with np.errstate(all="ignore"):
            made = change(Activations(x, weight.per, scales_of(x, weight.per, given)))
            return None if made is None else ctx.bits(made)

    return decoder


# --- codes --------------------------------------------------------------------------------------


def encoded(change: Callable[[np.ndarray], np.ndarray]) -> Decode:
    """Codes of the right quotients by another rounding."""
    return cast(lambda x: CastModel(change(quotients(x.x, x.scale)), x.scale))


def _codes_below(values: np.ndarray) -> np.ndarray:
    """Codes 0..126 of the largest numbers not above |values|, saturating."""
    size = np.minimum(np.nan_to_num(np.abs(values.astype(np.float64)), posinf=np.inf), LARGEST)
    return np.searchsorted(VALUES[:127], size, side="right") - 1


def _signed(code: np.ndarray, values: np.ndarray) -> np.ndarray:
    code = np.where(np.isnan(values), 127, code)
    return (code | np.where(np.signbit(values), 128, 0)).astype(np.uint8)


def toward_zero(values: np.ndarray) -> np.ndarray:
    return _signed(_codes_below(values), values)


def half_away(values: np.ndarray) -> np.ndarray:
    """Ties away from zero: the rounding bit added to the mantissa."""
    code = _codes_below(values)
    size = np.minimum(np.nan_to_num(np.abs(values.astype(np.float64)), posinf=np.inf), LARGEST)
    above = VALUES[np.minimum(code + 1, 126)]
    return _signed(np.where(size - VALUES[code] >= above - size, np.minimum(code + 1, 126), code), values)


def half_to_zero(values: np.ndarray) -> np.ndarray:
    """Ties toward zero."""
    code = _codes_below(values)
    size = np.minimum(np.nan_to_num(np.abs(values.astype(np.float64)), posinf=np.inf), LARGEST)
    above = VALUES[np.minimum(code + 1, 126)]
    return _signed(np.where(size - VALUES[code] > above - size, np.minimum(code + 1, 126), code), values)


def not_saturated(values: np.ndarray) -> np.ndarray:
    """NaN from the tie between 448 and 480 on; the tie itself is even at 448."""
    code = encode(values)
    return np.where(np.abs(values) > 464, code | 0x7F, code).astype(np.uint8)


def saturated_at(limit: float) -> Callable[[np.ndarray], np.ndarray]:
    """What is above ``limit`` becomes 448."""
    return lambda values: np.where(np.abs(values) >= limit, encode(values * np.inf), encode(values)).astype(
        np.uint8
    )


def subnormals_flushed(values: np.ndarray) -> np.ndarray:
    code = encode(values)
    return np.where((code & 0x78) == 0, code & 0x80, code).astype(np.uint8)


def subnormals_cut(values: np.ndarray) -> np.ndarray:
    """Subnormal codes rounded toward zero."""
    return np.where(np.abs(values) < 2.0**-6, toward_zero(values), encode(values)).astype(np.uint8)


def through_half(dtype: torch.dtype) -> Callable[[np.ndarray], np.ndarray]:
    """Rounded to 16 bits first: twice."""
    return lambda values: encode(through(dtype, values))


def _nearest_of(table: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The number of a table nearest to each value, ties to the even place; NaN and infinities are not met."""
    sizes = np.unique(np.abs(table[np.isfinite(table)]))
    size = np.minimum(np.abs(values.astype(np.float64)), sizes[-1])
    low = np.clip(np.searchsorted(sizes, size, side="right") - 1, 0, sizes.size - 2)
    below, above = size - sizes[low], sizes[low + 1] - size
    up = (below > above) | ((below == above) & (low % 2 == 1))
    return np.copysign(sizes[np.where(up, low + 1, low)], values)


def of_other_format(table: np.ndarray, largest: float) -> Decode:
    """Scales and codes of another fp8 format."""

    def change(x: Activations) -> Values | None:
        if not np.isfinite(x.x).all() or x.per == "tensor":
            return None
        scale = (absmax(x.x, x.block) / np.float32(largest))[:, x.block]
        return Values(_nearest_of(table, quotients(x.x, scale)).astype(np.float32) * scale)

    return cast(change)


def zeros_divided(x: Activations) -> CastModel | None:
    """0 / 0 in rows and blocks of zeros."""
    return CastModel(encode(x.x / x.scale), x.scale)


# --- scales -------------------------------------------------------------------------------------


def rescaled(change: Callable[[Activations], np.ndarray | None]) -> Decode:
    """Another scale float32 [M, K] for codes and values, not of a given one."""

    def made(x: Activations) -> CastModel | None:
        if x.per == "tensor":
            return None
        scale = change(x)
        return None if scale is None else x.scaled_by(np.asarray(scale, np.float32))

    return cast(made)


def of_tensor(x: Activations) -> np.ndarray | None:
    top = absmax(x.x, x.block).max()
    return np.full(x.x.shape, top / np.float32(LARGEST), np.float32)


def of_first_block(x: Activations) -> np.ndarray | None:
    """The extremes of the first 128 elements for all of a row."""
    if x.x.shape[1] <= BLOCK:
        return None
    return np.broadcast_to(absmax(x.x[:, :BLOCK], np.zeros(BLOCK, np.int64)) / np.float32(LARGEST), x.x.shape)


def without_negatives(x: Activations) -> np.ndarray:
    held = np.where(np.isnan(x.x), x.x, np.maximum(x.x, 0))
    return (absmax(held, x.block) / np.float32(LARGEST))[:, x.block]


def by_extent(x: Activations) -> np.ndarray | None:
    """Blocks of ceil(K / number of blocks) instead of 128."""
    n_cols = x.x.shape[1]
    if x.per != "block" or n_cols <= BLOCK or n_cols % BLOCK == 0:
        return None
    block = np.arange(n_cols) // -(-n_cols // -(-n_cols // BLOCK))
    return (absmax(x.x, block) / np.float32(LARGEST))[:, block]


def by_reciprocal(x: Activations) -> np.ndarray:
    return (absmax(x.x, x.block) * (np.float32(1) / np.float32(LARGEST)))[:, x.block]


def at_least(least: float) -> Decode:
    return rescaled(lambda x: np.maximum(x.scale, np.float32(least)))


def power_of_two(x: Activations) -> np.ndarray:
    """Scales rounded up to a power of two (UE8M0)."""
    mantissa, exponent = np.frexp(x.scale)
    return np.where(mantissa == 0.5, x.scale, np.ldexp(np.float32(1), exponent))


def rounded_scale(dtype: torch.dtype) -> Decode:
    return rescaled(lambda x: through(dtype, x.scale))


def stored(change: Callable[[Activations], np.ndarray | None]) -> Decode:
    """Right codes, decoded with another scale."""

    def made(x: Activations) -> CastModel | None:
        scale = change(x)
        return None if scale is None else CastModel(x.right_codes(), np.asarray(scale, np.float32))

    return cast(made)


def _rows_next(scale: np.ndarray) -> np.ndarray:
    return scale[next_one(np.arange(scale.shape[0]))]


def decoded_by_next(x: Activations) -> np.ndarray | None:
    return None if x.per == "tensor" else _rows_next(x.scale)


def coded_by_next(x: Activations) -> CastModel | None:
    if x.per == "tensor":
        return None
    return CastModel(encode(quotients(x.x, _rows_next(x.scale))), x.scale)


def decoded_by_last_whole_block(x: Activations) -> np.ndarray | None:
    """A short last block decoded with the scale of the one before."""
    n_cols = x.x.shape[1]
    if x.per != "block" or n_cols <= BLOCK or n_cols % BLOCK == 0:
        return None
    whole = n_cols // BLOCK * BLOCK
    return x.scale[:, np.minimum(np.arange(n_cols), whole - 1)]


def inverted(x: Activations) -> np.ndarray:
    return np.float32(1) / x.scale


def stored_through(dtype: torch.dtype) -> Decode:
    return stored(lambda x: through(dtype, x.scale))


def _product(x: Activations, inverse: np.ndarray) -> np.ndarray:
    return np.where((x.x == 0) & (x.scale == 0), x.x, x.x * inverse)


def by_inverse(x: Activations) -> CastModel:
    """x times the rounded reciprocal of the scale."""
    inverse = np.float32(1) / x.scale
    return CastModel(encode(_product(x, inverse)), x.scale)


def by_448_over_absmax(x: Activations) -> CastModel | None:
    if x.per == "tensor":
        return None
    inverse = (np.float32(LARGEST) / absmax(x.x, x.block))[:, x.block]
    return CastModel(encode(_product(x, inverse)), x.scale)


FNUZ_CAST = of_other_format(FNUZ, 240.0)
E5M2_CAST = of_other_format(E5M2, 57344.0)


def read_as_fnuz(ctx: Context) -> np.ndarray | None:
    """Right codes decoded as e4m3fnuz."""
    model = ctx.model
    assert isinstance(model, CastModel)
    with np.errstate(all="ignore"):
        return ctx.bits(Values(FNUZ[model.codes].astype(np.float32) * model.scale))
