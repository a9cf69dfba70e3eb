"""Helpers of the wrong decoders for weights with groups: gptq and the three AWQ layouts.

A decoder changes fields of the exact model, or decodes the packed words again, wrongly. Words
are seen as ``slots``: their fields in order from the lowest bits, int64 [lines, words, slots].
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from conformance.bits import to_float
from conformance.faults import Context
from kernels.awq_cols import AWQColsWeight
from kernels.awq_quads import AWQQuadsWeight
from kernels.awq_rows import AWQRowsWeight
from kernels.gptq import GPTQWeight
from oracles.spec.awq import COLUMN_OF_SLOT, ScaledZeroModel
from oracles.spec.gptq import GPTQModel, decode_zeros
from oracles.spec.rounding import round_to

Decode = Callable[[Context], np.ndarray | None]

DEGRADED = "fluent but degraded text; perplexity rises without an error"
GARBAGE = "loads and runs, output is garbage"
SLOT_OF_COLUMN = tuple(COLUMN_OF_SLOT.index(column) for column in range(8))


def changed(ctx: Context, **fields: Any) -> np.ndarray:
    """Output of the model with some fields replaced."""
    return ctx.bits(dataclasses.replace(ctx.model, **fields))  # type: ignore[type-var]


def model_of(ctx: Context) -> Any:
    """The model, which has ``codes``, ``scales`` and ``group`` whatever the format."""
    return ctx.model


def with_zeros(ctx: Context, zeros: np.ndarray) -> np.ndarray | None:
    """Output with other integer zeros [G, N]; None where they are the same."""
    if isinstance(ctx.model, ScaledZeroModel) or np.array_equal(zeros, model_of(ctx).zeros):
        return None
    return changed(ctx, zeros=zeros)


def regrouped(ctx: Context, group: np.ndarray) -> np.ndarray | None:
    """Output where row k uses ``group[k]``, held inside the groups there are."""
    model = model_of(ctx)
    group = np.clip(group, 0, max(0, model.scales.shape[0] - 1))
    if np.array_equal(group, model.group):
        return None
    return changed(ctx, group=group, **({"zero_group": group} if isinstance(model, GPTQModel) else {}))


def oriented(ctx: Context, matrix: np.ndarray) -> np.ndarray:
    """A matrix [K, N] on the axes of the output."""
    return matrix.T if getattr(ctx.model, "outputs_first", False) else matrix


def rounded(values: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """``values`` rounded to ``dtype``, as float64."""
    return to_float(round_to(np.asarray(values, np.float64), dtype), dtype)


# --- words and slots ---------------------------------------------------------------------------


def _slots(words: torch.Tensor, bits: int) -> np.ndarray:
    values = words.cpu().numpy().astype(np.int64)
    count = 8 * words.dtype.itemsize // bits
    return np.stack([(values >> (bits * slot)) & (2**bits - 1) for slot in range(count)], axis=-1)


def code_slots(weight: Any) -> np.ndarray | None:
    """Slots of the code words, lines along the packing; None at 3 bit, whose codes straddle words."""
    if isinstance(weight, GPTQWeight):
        return None if weight.bits == 3 else _slots(weight.qweight.t(), weight.bits)
    return _slots(weight.qweight, 4)


def codes_of(weight: Any, slots: np.ndarray, order: tuple[int, ...] = SLOT_OF_COLUMN) -> np.ndarray:
    """Codes [K, N] of slots as :func:`code_slots` gives them. ``order``: slot of each column of awq_cols."""
    lines = slots.shape[0]
    if isinstance(weight, AWQColsWeight):
        return slots[..., list(order)].reshape(lines, -1)
    if isinstance(weight, AWQQuadsWeight):
        codes = np.empty((weight.n_rows, weight.n_outputs), np.int64)
        k = np.arange(weight.n_rows)
        for lane in range(4):
            word = k // 64 * 64 + 16 * lane + k % 64 // 32 * 8 + k % 8
            codes[:, lane::4] = slots[:, word, k % 32 // 8].T
        return codes
    return slots.reshape(lines, -1)[:, : weight.n_rows].T


def zero_slots(weight: Any) -> np.ndarray | None:
    """Slots of the zero words; None at 3 bit, and where zeros are not packed."""
    if isinstance(weight, AWQQuadsWeight) or (isinstance(weight, GPTQWeight) and weight.bits == 3):
        return None
    return _slots(weight.qzeros, getattr(weight, "bits", 4))


def zeros_of(weight: Any, slots: np.ndarray, order: tuple[int, ...] = SLOT_OF_COLUMN) -> np.ndarray:
    """Zeros [G, N] of slots as :func:`zero_slots` gives them."""
    lines = slots.shape[0]
    if isinstance(weight, AWQColsWeight):
        return slots[..., list(order)].reshape(lines, -1)
    if isinstance(weight, AWQRowsWeight):
        return slots.reshape(lines, -1)[:, : weight.n_groups].T
    stored = slots.reshape(lines, -1)[:, : weight.output_shape[1]]
    return decode_zeros(stored, weight.bits, weight.zeros)


def relocated(
    ctx: Context, change: Callable[[np.ndarray], np.ndarray], *, codes: bool, zeros: bool
) -> np.ndarray | None:
    """Output with ``change`` applied to the slots of the codes, of the zeros, or of both."""
    fields: dict[str, np.ndarray] = {}
    if codes and (slots := code_slots(ctx.weight)) is not None:
        fields["codes"] = codes_of(ctx.weight, change(slots))
    if zeros and (slots := zero_slots(ctx.weight)) is not None:
        fields["zeros"] = zeros_of(ctx.weight, change(slots))
    return changed(ctx, **fields) if fields else None


def streams(
    ctx: Context, change: Callable[[np.ndarray], np.ndarray], *, codes: bool, zeros: bool
) -> np.ndarray | None:
    """The same at 3 bit, on whole streams: fields [lines, n]."""
    weight, model = ctx.weight, ctx.model
    if not isinstance(model, GPTQModel) or model.bits != 3:
        return None
    fields: dict[str, np.ndarray] = {}
    if codes:
        fields["codes"] = change(model.codes.T).T
    if zeros:
        fields["zeros"] = decode_zeros(change(model.stored), 3, weight.zeros)
    return changed(ctx, **fields)
