"""Wrong decoders of LLM.int8() rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import torch

from conformance.bits import to_float
from conformance.faults import Context, Fault, Values
from oracles.spec.llm_int8 import INV_127, LLMInt8Model
from oracles.spec.rounding import round_to


def _model(ctx: Context) -> LLMInt8Model:
    assert isinstance(ctx.model, LLMInt8Model)
    return ctx.model


def _prescaled(ctx: Context) -> np.ndarray:
    model = _model(ctx)
    with np.errstate(all="ignore"):
        scale = model.absmax * INV_127
        return ctx.bits(Values(model.codes.astype(np.float32) * scale[model.row][:, None]))


def _divided(ctx: Context) -> np.ndarray:
    model = _model(ctx)
    with np.errstate(all="ignore"):
        product = model.codes.astype(np.float32) * model.absmax[model.row][:, None]
        return ctx.bits(Values(product / np.float32(127)))


def _no_127(ctx: Context) -> np.ndarray:
    model = _model(ctx)
    with np.errstate(all="ignore"):
        return ctx.bits(Values(model.codes.astype(np.float32) * model.absmax[model.row][:, None]))


def _by_128(ctx: Context) -> np.ndarray:
    model = _model(ctx)
    with np.errstate(all="ignore"):
        product = model.codes.astype(np.float32) * model.absmax[model.row][:, None]
        return ctx.bits(Values(product * np.float32(1 / 128)))


def _absmax_through(dtype: torch.dtype) -> Callable[[Context], np.ndarray | None]:
    def decode(ctx: Context) -> np.ndarray | None:
        model = _model(ctx)
        narrow = to_float(round_to(model.absmax, dtype), dtype).astype(np.float32)
        if np.array_equal(narrow, model.absmax, equal_nan=True):
            return None
        return ctx.bits(dataclasses.replace(model, absmax=narrow))

    return decode


def _row_of_tile(size: int) -> Callable[[Context], np.ndarray | None]:
    """The scale of the row in which a tile of the flat weight begins."""

    def decode(ctx: Context) -> np.ndarray | None:
        model = _model(ctx)
        columns = model.codes.shape[1]
        first = np.arange(model.codes.size) // size * size // max(columns, 1)
        scale = model.absmax[first].reshape(model.codes.shape)
        with np.errstate(all="ignore"):
            return ctx.bits(Values(model.codes.astype(np.float32) * scale * INV_127))

    return decode


def _rows(shift: int) -> Callable[[Context], np.ndarray | None]:
    def decode(ctx: Context) -> np.ndarray | None:
        model = _model(ctx)
        if model.absmax.size < 2:
            return None
        row = np.clip(model.row + shift, 0, model.absmax.size - 1)
        return ctx.bits(dataclasses.replace(model, row=row))

    return decode


def _columns(ctx: Context) -> np.ndarray | None:
    model = _model(ctx)
    if model.codes.shape[0] != model.codes.shape[1]:
        return None
    with np.errstate(all="ignore"):
        return ctx.bits(Values(model.codes.astype(np.float32) * model.absmax[None, :] * INV_127))


def _unsigned(ctx: Context) -> np.ndarray:
    model = _model(ctx)
    return ctx.bits(dataclasses.replace(model, codes=model.codes & 255))


def _clamped(ctx: Context) -> np.ndarray:
    model = _model(ctx)
    return ctx.bits(dataclasses.replace(model, codes=np.maximum(model.codes, -127)))


FAULTS = (
    Fault(
        "scale-prescaled",
        "q * fp32(absmax / 127) instead of (q * absmax) * (1/127)",
        "1 ULP in a fifth of the elements; invisible in a model",
        "multiply left to right, as upstream does",
        _prescaled,
        kind="precision",
        trigger=(
            "fp32 output and any row whose absmax / 127 rounds: about one element in five; hides behind any "
            "tolerance"
        ),
    ),
    Fault(
        "divided-by-127",
        "(q * absmax) / 127 instead of * fp32(1/127)",
        "1 ULP here and there; invisible in a model",
        "multiply by the float32 nearest 1/127",
        _divided,
        kind="precision",
        trigger=(
            "fp32 output and a product whose quotient rounds the other way; hides in fp16 and bf16 but for "
            "ties"
        ),
    ),
    Fault(
        "no-127",
        "q * absmax, without the 1/127",
        "weights 127 times too large",
        "absmax is the row's largest magnitude, not a scale",
        _no_127,
        kind="scales",
        trigger="any code other than 0",
    ),
    Fault(
        "divided-by-128",
        "q * absmax / 128",
        "all weights 0.8 % too small",
        "codes run from -127 to 127",
        _by_128,
        kind="scales",
        trigger="any code other than 0; hides behind rtol 1e-2",
    ),
    Fault(
        "row-plus-one",
        "row r uses absmax[r + 1]",
        "fluent but degraded text",
        "one absmax a row, indexed by the row",
        _rows(1),
        kind="groups",
        trigger="two rows with different absmax; the last row keeps its own; hides in equal absmax",
    ),
    Fault(
        "row-minus-one",
        "row r uses absmax[r - 1]",
        "fluent but degraded text",
        "one absmax a row, indexed by the row",
        _rows(-1),
        kind="groups",
        trigger="two rows with different absmax; the first row keeps its own; hides in equal absmax",
    ),
    Fault(
        "scale-by-column",
        "absmax[c] instead of absmax[r] (square weights hide the shape error)",
        "garbage in square layers only",
        "absmax belongs to rows (output channels)",
        _columns,
        ("https://github.com/apple/coreai-torch/pull/24",),
        kind="groups",
        trigger=(
            "as many rows as columns, at least 2, and absmax that differ; any other shape is an error instead"
        ),
    ),
    Fault(
        "unsigned-codes",
        "codes read as 0..255",
        "every negative weight is off by 256 steps: garbage",
        "load int8, or sign-extend",
        _unsigned,
        kind="bits",
        trigger="one negative code",
    ),
    Fault(
        "clamped-to-127",
        "code -128 read as -127",
        "none for weights of the usual quantizer, which never gives -128",
        "decode all 256 codes",
        _clamped,
        kind="bits",
        trigger="the code -128, which the usual quantizer never writes",
    ),
    *(
        Fault(
            f"scale-through-{name}",
            f"absmax rounded to {words} first",
            "a relative error of up to half a step of that dtype in every row; inf or 0 for extreme scales",
            "keep absmax in float32",
            _absmax_through(dtype),
            kind="precision",
            trigger=f"absmax that {words} does not hold; hides in powers of two",
        )
        for name, words, dtype in (("fp16", "float16", torch.float16), ("bf16", "bfloat16", torch.bfloat16))
    ),
    *(
        Fault(
            f"row-of-tile-{size}",
            f"the scale of the row in which a tile of {size} elements begins",
            "rows that begin inside a tile have the scale of an earlier one",
            "the row of an element is its flat index // columns",
            _row_of_tile(size),
            kind="groups",
            trigger=f"rows that are no whole number of tiles of {size}, and scales that differ",
        )
        for size in (64, 256, 1024)
    ),
)
