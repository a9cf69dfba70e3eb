"""Wrong decoders of the order of fields: AWQ's interleaving, the packing axis, awq_quads' four outputs."""

from __future__ import annotations

import numpy as np

from conformance.faults import Context, Fault
from conformance.faults._grouped import (
    GARBAGE,
    SLOT_OF_COLUMN,
    Decode,
    changed,
    code_slots,
    codes_of,
    model_of,
    relocated,
    zero_slots,
    zeros_of,
)
from kernels.awq_cols import AWQColsWeight
from kernels.awq_quads import AWQQuadsWeight
from kernels.awq_rows import AWQRowsWeight
from kernels.gptq import GPTQWeight
from oracles.spec.awq import COLUMN_OF_SLOT

LINEAR = tuple(range(8))


def _column_order(order: tuple[int, ...], codes: bool, zeros: bool) -> Decode:
    def decode(ctx: Context) -> np.ndarray | None:
        if not isinstance(ctx.weight, AWQColsWeight):
            return None
        code, zero = code_slots(ctx.weight), zero_slots(ctx.weight)
        assert code is not None
        assert zero is not None
        return changed(
            ctx,
            codes=codes_of(ctx.weight, code, order if codes else SLOT_OF_COLUMN),
            zeros=zeros_of(ctx.weight, zero, order if zeros else SLOT_OF_COLUMN),
        )

    return decode


def _interleaved(ctx: Context) -> np.ndarray | None:
    """The GEMM layout's order on a layout whose fields are in plain order."""
    if isinstance(ctx.weight, GPTQWeight) and ctx.weight.bits != 4:
        return None
    if isinstance(ctx.weight, GPTQWeight | AWQRowsWeight):
        return relocated(ctx, lambda slots: slots[..., list(SLOT_OF_COLUMN)], codes=True, zeros=True)
    return None


def _strided(ctx: Context) -> np.ndarray | None:
    """Element i of a line from word i % W, slot i // W of its W words."""
    slots = code_slots(ctx.weight)
    if slots is None or isinstance(ctx.weight, AWQQuadsWeight) or slots.shape[1] < 2:
        return None
    lines = slots.swapaxes(1, 2).reshape(slots.shape[0], -1)
    n_rows, n_cols = model_of(ctx).codes.shape
    along_columns = isinstance(ctx.weight, AWQColsWeight)
    return changed(ctx, codes=lines[:, :n_cols] if along_columns else lines[:, :n_rows].T)


def _axis_swapped(ctx: Context) -> np.ndarray | None:
    """On a square weight the words, read as [K / 8, N] where they are [K, N / 8], and the reverse."""
    weight = ctx.weight
    n_rows, n_cols = model_of(ctx).codes.shape
    bits = getattr(weight, "bits", 4)
    per_word = 32 // bits
    if (
        n_rows != n_cols
        or n_rows % per_word
        or bits == 3
        or not isinstance(weight, GPTQWeight | AWQColsWeight)
    ):
        return None
    flat = weight.qweight.contiguous().numpy().astype(np.int64).reshape(-1)
    slot = np.arange(per_word) * bits
    if isinstance(weight, AWQColsWeight):
        fields = (flat.reshape(n_rows // per_word, 1, n_cols) >> slot[None, :, None]) & (2**bits - 1)
        return changed(ctx, codes=fields.reshape(n_rows, n_cols))
    fields = (flat.reshape(n_rows, n_cols // per_word, 1) >> slot) & (2**bits - 1)
    return changed(ctx, codes=fields.reshape(n_rows, n_cols))


def _outputs_not_interleaved(ctx: Context) -> np.ndarray | None:
    """awq_quads read as if each row of words held its outputs one after the other."""
    weight = ctx.weight
    slots = code_slots(weight)
    if not isinstance(weight, AWQQuadsWeight) or slots is None:
        return None
    return changed(ctx, codes=slots.reshape(weight.n_outputs, weight.n_rows).T)


def _neighbours_in_a_word(ctx: Context) -> np.ndarray | None:
    """awq_quads read as if four consecutive k shared a word."""
    weight = ctx.weight
    slots = code_slots(weight)
    if not isinstance(weight, AWQQuadsWeight) or slots is None:
        return None
    codes = np.empty((weight.n_rows, weight.n_outputs), np.int64)
    k = np.arange(weight.n_rows)
    for lane in range(4):
        codes[:, lane::4] = slots[:, k // 64 * 64 + 16 * lane + k % 64 // 4, k % 4].T
    return changed(ctx, codes=codes)


_ORDER_FIX = "column c of awq_cols is in slot 0 4 1 5 2 6 3 7 [c]; every other layout is in plain order"
_QUARK = ("https://github.com/amd/Quark/pull/30",)

ORDER = (
    Fault(
        "awq-order-linear",
        "column c from slot c, codes and zeros",
        GARBAGE,
        _ORDER_FIX,
        _column_order(LINEAR, True, True),
        _QUARK,
        kind="order",
        trigger="one word with different codes; columns 0 and 7 of each 8 are right; hides in constant words",
    ),
    Fault(
        "awq-order-not-inverted",
        "column c from slot 0 2 4 6 1 3 5 7 [c]",
        GARBAGE,
        _ORDER_FIX,
        _column_order(COLUMN_OF_SLOT, True, True),
        _QUARK,
        kind="order",
        trigger="one word with different codes; columns 0 and 7 of each 8 are right; hides in constant words",
    ),
    Fault(
        "zeros-order-linear",
        "codes in AWQ's order, zeros in plain order",
        GARBAGE,
        "zeros share the order of the codes",
        _column_order(LINEAR, False, True),
        ("https://github.com/pie-project/pie/pull/491",),
        kind="order",
        trigger="zeros that differ inside a word; hides in symmetric weights",
    ),
    Fault(
        "codes-order-linear",
        "zeros in AWQ's order, codes in plain order",
        GARBAGE,
        _ORDER_FIX,
        _column_order(LINEAR, True, False),
        _QUARK,
        kind="order",
        trigger="one word with different codes; columns 0 and 7 of each 8 are right",
    ),
    Fault(
        "zeros-order-not-inverted",
        "codes in AWQ's order, zeros in the inverse of it",
        GARBAGE,
        "zeros share the order of the codes",
        _column_order(COLUMN_OF_SLOT, False, True),
        ("https://github.com/pie-project/pie/pull/491",),
        kind="order",
        trigger="zeros that differ inside a word; hides in symmetric weights",
    ),
)

AWQ_ORDER_ON_PLAIN = (
    Fault(
        "awq-order-on-plain-fields",
        "slot 0 4 1 5 2 6 3 7 [i] for code i, where fields are in plain order",
        GARBAGE,
        _ORDER_FIX,
        _interleaved,
        ("https://github.com/vllm-project/vllm/pull/48552",),
        kind="order",
        trigger="4 bit and a word with different codes or zeros; codes 0 and 7 of a word are right",
    ),
)

STRIDED = (
    Fault(
        "codes-strided",
        "code i of a line from word i % W, slot i // W, where the line has W words",
        GARBAGE,
        "a word holds neighbours along the packing axis",
        _strided,
        ("https://github.com/ModelCloud/GPTQModel/pull/3058",),
        kind="order",
        trigger="2, 4 or 8 bit, two words in a line with different codes; hides in a packer that strides too",
    ),
)

AXIS = (
    Fault(
        "pack-axis-swapped",
        "a square weight's words are unpacked along the other axis",
        GARBAGE,
        "GPTQ packs along K, AWQ's GEMM layout along N",
        _axis_swapped,
        ("https://github.com/vllm-project/vllm/pull/48552",),
        kind="order",
        trigger=(
            "K = N, a multiple of the codes in a word (2, 4 or 8 bit); any other shape is an error instead"
        ),
    ),
)

QUADS = (
    Fault(
        "quads-outputs-in-turn",
        "words are read as if each output had its own",
        GARBAGE,
        "a row of words holds four outputs, 64 codes of each at a time",
        _outputs_not_interleaved,
        kind="order",
        trigger="rows of words with different codes: 4 outputs, K of 64; hides in constant words",
    ),
    Fault(
        "quads-neighbours-in-a-word",
        "a word holds four consecutive k instead of every eighth",
        GARBAGE,
        "slot i of word j holds k = j + 8 i of its 32",
        _neighbours_in_a_word,
        kind="order",
        trigger="one word with different codes; hides in constant words",
    ),
)
