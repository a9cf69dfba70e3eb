"""Wrong decoders of squeezellm; the catalogue with their names is ``squeezellm.py``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from conformance.bits import to_float
from conformance.faults import Context, Values
from kernels.squeezellm import SqueezeLLMWeight
from oracles.spec.rounding import round_to
from oracles.spec.squeezellm import SqueezeLLMModel

Decode = Callable[[Context], np.ndarray | None]


def _parts(ctx: Context) -> tuple[SqueezeLLMWeight, SqueezeLLMModel]:
    assert isinstance(ctx.model, SqueezeLLMModel)
    return ctx.weight, ctx.model


def _changed(ctx: Context, **fields: Any) -> np.ndarray:
    _, model = _parts(ctx)
    return ctx.bits(dataclasses.replace(model, **fields))


# --- tables -----------------------------------------------------------------------------------


def neighbour(by: int) -> Decode:
    def decode(ctx: Context) -> np.ndarray | None:
        _, model = _parts(ctx)
        if model.channel.size < 2:
            return None
        return _changed(ctx, channel=np.clip(model.channel + by, 0, model.channel.size - 1))

    return decode


def first_table(ctx: Context) -> np.ndarray | None:
    _, model = _parts(ctx)
    return _changed(ctx, channel=model.channel * 0) if model.channel.size > 1 else None


def _dense_instead(ctx: Context, dense: np.ndarray) -> np.ndarray:
    """Output with other table values [K, N], and the rest as it should be."""
    _, model = _parts(ctx)
    values = dense.copy()
    with np.errstate(all="ignore"):
        for k, n, value in zip(model.outlier_k, model.outlier_n, model.outlier_values, strict=True):
            values[k, n] = values[k, n] + value
        for j, n in enumerate(model.full_n):
            values[:, n] = values[:, n] + model.full[:, j]
    return ctx.bits(Values(values))


def transposed(ctx: Context) -> np.ndarray | None:
    _, model = _parts(ctx)
    if not model.table.size:
        return None
    n_cols = model.table.shape[0]
    return _dense_instead(ctx, model.table.reshape(-1)[model.codes * n_cols + np.arange(n_cols)[None, :]])


def table_of_row(ctx: Context) -> np.ndarray | None:
    _, model = _parts(ctx)
    n_rows, n_cols = model.codes.shape
    if n_rows != n_cols:
        return None
    return _dense_instead(ctx, model.table[np.arange(n_rows)[:, None], model.codes])


def table_fp16(ctx: Context) -> np.ndarray | None:
    weight, model = _parts(ctx)
    if weight.lookup_table.dtype is torch.float16:
        return None
    half = to_float(round_to(model.table, torch.float16), torch.float16)
    return _changed(ctx, table=half.astype(np.float32))


def from_zero(ctx: Context) -> np.ndarray:
    _, model = _parts(ctx)
    with np.errstate(all="ignore"):
        return ctx.bits(Values(model.values() + np.float32(0)))


# --- codes ------------------------------------------------------------------------------------


def slots_reversed(ctx: Context) -> np.ndarray:
    weight, model = _parts(ctx)
    per_word = 32 if weight.bits == 3 else 8
    k = np.arange(model.codes.shape[0])
    return _changed(ctx, codes=model.codes[k // per_word * per_word + per_word - 1 - k % per_word])


def along_columns(ctx: Context) -> np.ndarray | None:
    """Codes of a square weight packed along the other axis."""
    _, model = _parts(ctx)
    if model.codes.shape[0] != model.codes.shape[1]:
        return None
    return _changed(ctx, codes=model.codes.T)


def top_unmasked(ctx: Context) -> np.ndarray | None:
    """The top slot keeps the word's sign: its code - 16 points into the channel's left neighbour."""
    weight, model = _parts(ctx)
    if weight.bits != 4 or not model.table.size:
        return None
    codes = model.codes.copy()
    codes[7::8] -= (codes[7::8] & 8) * 2
    flat = np.maximum(np.arange(codes.shape[1])[None, :] * 16 + codes, 0)
    return _dense_instead(ctx, model.table.reshape(-1)[flat])


def straddle(
    change: Callable[[np.ndarray, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]],
) -> Decode:
    """``change(w0, w1, w2)`` gives codes 10 and 21 of each triple of words (int64, signed)."""

    def decode(ctx: Context) -> np.ndarray | None:
        weight, model = _parts(ctx)
        if weight.bits != 3:
            return None
        words = weight.qweight.cpu().numpy().astype(np.int64)
        codes = model.codes.copy()
        codes[10::32], codes[21::32] = change(words[0::3], words[1::3], words[2::3])
        return _changed(ctx, codes=codes & 7)

    return decode


def carry_dropped(w0: np.ndarray, w1: np.ndarray, w2: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return (w0 >> 30) & 3, (w1 >> 31) & 1


def signed_parts(w0: np.ndarray, w1: np.ndarray, w2: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return (w0 >> 30) | ((w1 & 1) << 2), (w1 >> 31) | ((w2 & 3) << 1)


def ten_per_word(ctx: Context) -> np.ndarray | None:
    weight, model = _parts(ctx)
    if weight.bits != 3:
        return None
    words = weight.qweight.cpu().numpy().astype(np.int64)
    k = np.arange(model.codes.shape[0])
    word = np.minimum(k // 10, words.shape[0] - 1)
    return _changed(ctx, codes=(words[word] >> (k % 10 * 3)[:, None]) & 7)


# --- outliers ---------------------------------------------------------------------------------


def _has_outliers(ctx: Context) -> bool:
    return _parts(ctx)[1].outlier_k.size > 0


def outliers(change: Callable[[SqueezeLLMModel], dict[str, Any]]) -> Decode:
    def decode(ctx: Context) -> np.ndarray | None:
        return _changed(ctx, **change(_parts(ctx)[1])) if _has_outliers(ctx) else None

    return decode


def dropped(model: SqueezeLLMModel) -> dict[str, Any]:
    names = ("outlier_k", "outlier_n", "outlier_values")
    return {name: getattr(model, name)[:0] for name in names}


def twice(model: SqueezeLLMModel) -> dict[str, Any]:
    names = ("outlier_k", "outlier_n", "outlier_values")
    return {name: np.concatenate([getattr(model, name)] * 2) for name in names}


def swapped(model: SqueezeLLMModel) -> dict[str, Any]:
    """rows as k and columns as channels, as far as they fit."""
    n_rows, n_cols = model.codes.shape
    fits = (model.outlier_n < n_rows) & (model.outlier_k < n_cols)
    return {
        "outlier_k": model.outlier_n[fits],
        "outlier_n": model.outlier_k[fits],
        "outlier_values": model.outlier_values[fits],
    }


def next_channel(model: SqueezeLLMModel) -> dict[str, Any]:
    fits = model.outlier_n + 1 < model.codes.shape[1]
    return {
        "outlier_k": model.outlier_k[fits],
        "outlier_n": model.outlier_n[fits] + 1,
        "outlier_values": model.outlier_values[fits],
    }


def sums(
    combine: Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray], np.ndarray],
) -> Decode:
    """``combine(table, outlier, has outlier, full, has full)``, each [K, N]."""

    def decode(ctx: Context) -> np.ndarray | None:
        _, model = _parts(ctx)
        if not model.outlier_k.size and not model.full_n.size:
            return None
        shape = model.codes.shape
        outlier, full = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        has_outlier, has_full = np.zeros(shape, bool), np.zeros(shape, bool)
        outlier[model.outlier_k, model.outlier_n] = model.outlier_values
        has_outlier[model.outlier_k, model.outlier_n] = True
        full[:, model.full_n] = model.full
        has_full[:, model.full_n] = True
        with np.errstate(all="ignore"):
            return ctx.bits(Values(combine(model.dense(), outlier, has_outlier, full, has_full)))

    return decode


def plus(values: np.ndarray, more: np.ndarray, where: np.ndarray) -> np.ndarray:
    return np.where(where, values + more, values)


def rounded_first(ctx: Context) -> np.ndarray | None:
    if ctx.dtype is torch.float32:
        return None

    def combine(t: np.ndarray, o: np.ndarray, ho: np.ndarray, f: np.ndarray, hf: np.ndarray) -> np.ndarray:
        half = to_float(round_to(t, ctx.dtype), ctx.dtype).astype(np.float32)
        return plus(plus(half, o, ho), f, hf)

    return sums(combine)(ctx)


# --- full rows --------------------------------------------------------------------------------


def full_rows_changed(change: Callable[[SqueezeLLMModel], dict[str, Any] | None]) -> Decode:
    def decode(ctx: Context) -> np.ndarray | None:
        _, model = _parts(ctx)
        if not model.full_n.size:
            return None
        fields = change(model)
        return None if fields is None else _changed(ctx, **fields)

    return decode


def full_as_rows(ctx: Context) -> np.ndarray | None:
    """full_row_indices taken for k."""
    _, model = _parts(ctx)
    n_rows, n_cols = model.codes.shape
    if not model.full_n.size or n_rows != n_cols:
        return None
    values = dataclasses.replace(model, full=model.full[:, :0], full_n=model.full_n[:0]).values()
    with np.errstate(all="ignore"):
        for j, k in enumerate(model.full_n):
            values[k] = values[k] + model.full[:, j]
    return ctx.bits(Values(values))
