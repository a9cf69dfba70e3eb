"""Wrong decoders of int8_affine; the catalogue with their names is ``int8_affine.py``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from conformance.bits import to_float
from conformance.faults import Context, Values
from kernels.int8_affine import Int8AffineWeight
from oracles.spec.int8_affine import Int8AffineModel
from oracles.spec.rounding import round_to

Decode = Callable[[Context], np.ndarray | None]


def _parts(ctx: Context) -> tuple[Int8AffineWeight, Int8AffineModel]:
    assert isinstance(ctx.model, Int8AffineModel)
    return ctx.weight, ctx.model


def _changed(ctx: Context, **fields: Any) -> np.ndarray:
    _, model = _parts(ctx)
    return ctx.bits(dataclasses.replace(model, **fields))


def _placed(ctx: Context, place: np.ndarray) -> np.ndarray | None:
    """Scale and zero of another place, held inside the places there are."""
    _, model = _parts(ctx)
    place = np.clip(place, 0, max(0, model.scales.size - 1))
    if np.array_equal(place, model.place):
        return None
    return _changed(ctx, place=place, zero_place=place)


# --- zero points ------------------------------------------------------------------------------


def zeros_changed(change: Callable[[np.ndarray], np.ndarray]) -> Decode:
    def decode(ctx: Context) -> np.ndarray | None:
        weight, model = _parts(ctx)
        return None if weight.zero_point is None else _changed(ctx, zeros=change(model.zeros))

    return decode


def zeros_other_signedness(ctx: Context) -> np.ndarray | None:
    weight, model = _parts(ctx)
    if weight.zero_point is None or weight.zero_point.dtype is torch.int32:
        return None
    return _changed(ctx, zeros=_reread(model.zeros, weight.zero_point.dtype))


def _reread(numbers: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """8-bit numbers of ``dtype`` read with the other signedness."""
    return numbers & 255 if dtype is torch.int8 else (numbers + 128) % 256 - 128


def zero_only_elsewhere(ctx: Context) -> np.ndarray | None:
    weight, model = _parts(ctx)
    if weight.zero_point is None or model.zeros.size < 2:
        return None
    return _changed(ctx, zero_place=model.zero_place * 0)


def absent_as_mid(ctx: Context) -> np.ndarray | None:
    """Unsigned codes without a zero point are taken as centred on 128."""
    weight, model = _parts(ctx)
    if weight.zero_point is not None or weight.codes.dtype is not torch.uint8:
        return None
    return _changed(ctx, codes=model.codes - 128)


# --- codes ------------------------------------------------------------------------------------


def codes_other_signedness(ctx: Context) -> np.ndarray:
    weight, model = _parts(ctx)
    return _changed(ctx, codes=_reread(model.codes, weight.codes.dtype))


def clamped(ctx: Context) -> np.ndarray | None:
    weight, model = _parts(ctx)
    if weight.codes.dtype is not torch.int8:
        return None
    return _changed(ctx, codes=np.maximum(model.codes, -127))


def saturated_signed(ctx: Context) -> np.ndarray | None:
    weight, model = _parts(ctx)
    if weight.codes.dtype is not torch.uint8:
        return None
    return _changed(ctx, codes=np.minimum(model.codes, 127))


def difference_wraps(ctx: Context) -> np.ndarray | None:
    weight, model = _parts(ctx)
    if weight.zero_point is None:
        return None
    step = model.codes - model.zeros[model.zero_place]
    wrapped = (step + 128) % 256 - 128 if weight.codes.dtype is torch.int8 else step & 255
    return _changed(ctx, codes=wrapped, zeros=model.zeros * 0)


# --- scales -----------------------------------------------------------------------------------


def other_axis(ctx: Context) -> np.ndarray | None:
    """s[c] for s[r] where the axis read is no longer than the table (a square weight among them)."""
    weight, model = _parts(ctx)
    place = _across(ctx)
    if weight.granularity != "channel" or place.max(initial=0) >= model.scales.size:
        return None
    return _placed(ctx, place)


def _across(ctx: Context) -> np.ndarray:
    """The index of each element along the axis that the table does not have."""
    weight, model = _parts(ctx)
    along = np.arange(model.codes.shape[1 if weight.axis == 0 else 0])
    return np.broadcast_to(along[None, :] if weight.axis == 0 else along[:, None], model.codes.shape)


def other_axis_beyond(beyond: str) -> Decode:
    """s[c] for s[r] where the table ends before: what is read behind it is ``nan`` (poison), ``zero``
    (a mask) or the table again from its start (``again``)."""

    def decode(ctx: Context) -> np.ndarray | None:
        weight, model = _parts(ctx)
        place, size = _across(ctx), model.scales.size
        if weight.granularity != "channel" or not size or place.max(initial=0) < size:
            return None
        if beyond == "again":
            return _placed(ctx, place % size)
        # One more place, behind the table.
        inside = np.minimum(place, size)
        fields: dict[str, Any] = {"scales": np.append(model.scales, np.nan if beyond == "nan" else 0.0)}
        fields["zeros"] = np.append(model.zeros, 0)
        scales = fields["scales"].astype(model.scales.dtype)
        return _changed(ctx, scales=scales, zeros=fields["zeros"], place=inside, zero_place=inside)

    return decode


def shifted(by: int) -> Decode:
    def decode(ctx: Context) -> np.ndarray | None:
        return _placed(ctx, _parts(ctx)[1].place + by)

    return decode


def first(ctx: Context) -> np.ndarray | None:
    return _placed(ctx, _parts(ctx)[1].place * 0)


def grouped(index: Callable[[np.ndarray, np.ndarray, int, int, tuple[int, int]], np.ndarray]) -> Decode:
    """Groups by another rule: ``index(row, column, group_size, groups of a row, shape)``."""

    def decode(ctx: Context) -> np.ndarray | None:
        weight, model = _parts(ctx)
        if weight.granularity != "group" or not model.codes.size:
            return None
        assert weight.group_size is not None
        n_rows, n_cols = model.codes.shape
        row, col = np.arange(n_rows)[:, None], np.arange(n_cols)[None, :]
        found = index(row, col, weight.group_size, weight.scale.shape[1], (n_rows, n_cols))
        return _placed(ctx, np.broadcast_to(found, (n_rows, n_cols)))

    return decode


def tile(size: int) -> Decode:
    return grouped(lambda r, c, g, n, shape: r * n + c // size * size // g)


def tail_previous(ctx: Context) -> np.ndarray | None:
    weight, model = _parts(ctx)
    if weight.granularity != "group" or weight.group_size is None:
        return None
    n_groups, n_cols = weight.scale.shape[1], model.codes.shape[1]
    if n_groups < 2 or n_cols % weight.group_size == 0:
        return None
    group = np.minimum(np.arange(n_cols) // weight.group_size, n_groups - 2)
    return _placed(ctx, np.arange(model.codes.shape[0])[:, None] * n_groups + group[None, :])


def tail_zero(ctx: Context) -> np.ndarray | None:
    """A scale of 0 for the short last group."""
    weight, model = _parts(ctx)
    if weight.granularity != "group" or weight.group_size is None or not model.codes.size:
        return None
    if model.codes.shape[1] % weight.group_size == 0:
        return None
    scales = model.scales.copy().reshape(-1)
    scales[weight.scale.shape[1] - 1 :: weight.scale.shape[1]] = 0
    return _changed(ctx, scales=scales.reshape(model.scales.shape))


# --- arithmetic -------------------------------------------------------------------------------


def _factors(model: Int8AffineModel) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Codes, zeros and scales of each element as float32 (exact)."""
    codes = model.codes.astype(np.float32)
    zeros = model.zeros[model.zero_place].astype(np.float32)
    return codes, zeros, model.scales[model.place].astype(np.float32)


def hoisted(ctx: Context) -> np.ndarray | None:
    weight, model = _parts(ctx)
    if weight.zero_point is None:
        return None
    with np.errstate(all="ignore"):
        codes, zeros, scales = _factors(model)
        return ctx.bits(Values(codes * scales - zeros * scales))


def fused(ctx: Context) -> np.ndarray | None:
    weight, model = _parts(ctx)
    if weight.zero_point is None:
        return None
    with np.errstate(all="ignore"):
        codes, zeros, scales = _factors(model)
        # A float64 holds the product exactly; the sum is rounded twice, which shows at ties only.
        exact = codes.astype(np.float64) * scales - (zeros * scales).astype(np.float64)
        return ctx.bits(Values(exact.astype(np.float32)))


def reciprocal(ctx: Context) -> np.ndarray:
    _, model = _parts(ctx)
    with np.errstate(all="ignore"):
        codes, zeros, scales = _factors(model)
        return ctx.bits(Values((codes - zeros) / scales))


def _through(dtype: torch.dtype, values: np.ndarray) -> np.ndarray:
    return to_float(round_to(values, dtype), dtype)


def scale_fp16(ctx: Context) -> np.ndarray | None:
    weight, model = _parts(ctx)
    if weight.scale.dtype is torch.float16:
        return None
    return _changed(ctx, scales=_through(torch.float16, model.scales))


def in_scale_dtype(ctx: Context) -> np.ndarray | None:
    weight, model = _parts(ctx)
    if weight.scale.dtype in (torch.float32, ctx.dtype):
        return None
    return ctx.bits(Values(_through(weight.scale.dtype, model.values())))
