"""Wrong decoders of packed words: extraction of fields, signs, 3-bit straddling."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from conformance.faults import Context, Fault
from conformance.faults._grouped import (
    GARBAGE,
    Decode,
    changed,
    model_of,
    relocated,
    streams,
)
from kernels.awq_cols import AWQColsWeight
from oracles.spec.awq import COLUMN_OF_SLOT, AWQModel
from oracles.spec.gptq import GPTQModel, decode_zeros


def _reversed(codes: bool, zeros: bool) -> Decode:
    return lambda ctx: relocated(ctx, lambda slots: slots[..., ::-1], codes=codes, zeros=zeros)


def _signed_top(codes: bool, zeros: bool) -> Decode:
    """The highest field of a word, shifted down with its sign and not masked."""

    def decode(ctx: Context) -> np.ndarray | None:
        bits = getattr(ctx.weight, "bits", 4)

        def change(slots: np.ndarray) -> np.ndarray:
            slots = slots.copy()
            slots[..., -1] -= np.where(slots[..., -1] >= 2 ** (bits - 1), 2**bits, 0)
            return slots

        def change_stream(fields: np.ndarray) -> np.ndarray:
            fields = fields.copy()
            fields[:, 31::32] -= np.where(fields[:, 31::32] >= 4, 8, 0)
            return fields

        if bits == 3:
            return streams(ctx, change_stream, codes=codes, zeros=zeros)
        # A zero that goes through a convention is masked there.
        return relocated(ctx, change, codes=codes, zeros=zeros)

    return decode


def _twos_complement(ctx: Context) -> np.ndarray | None:
    codes = model_of(ctx).codes
    bits = getattr(ctx.weight, "bits", 4)
    return changed(ctx, codes=np.where(codes >= 2 ** (bits - 1), codes - 2**bits, codes))


def _saturated(change: Callable[[np.ndarray, int], np.ndarray]) -> Decode:
    """``change(codes, 2**(bits - 1))``."""
    return lambda ctx: changed(
        ctx, codes=change(model_of(ctx).codes, 2 ** (getattr(ctx.weight, "bits", 4) - 1))
    )


def _borrowed(ctx: Context) -> np.ndarray | None:
    """code - zero of four codes at once: even and odd slots of a word are spread to the bytes of two
    others, and one 32-bit subtraction lets a negative byte borrow from the next."""
    model = ctx.model
    if isinstance(model, GPTQModel) and model.bits == 4:
        zero_group = model.zero_group
    elif isinstance(model, AWQModel):
        zero_group = model.group
    else:
        return None
    difference = model.codes - model.zeros[zero_group]
    along_columns = isinstance(ctx.weight, AWQColsWeight)
    lines = difference if along_columns else difference.T
    slots = np.array(COLUMN_OF_SLOT if along_columns else range(8))
    padded = np.pad(lines, ((0, 0), (0, -lines.shape[1] % 8))).reshape(lines.shape[0], -1, 8)[..., slots]
    borrow = np.zeros_like(padded)
    for slot in range(2, 8):
        borrow[..., slot] = padded[..., slot - 2] - borrow[..., slot - 2] < 0
    if not borrow.any():
        return None
    back = borrow[..., np.argsort(slots)].reshape(lines.shape[0], -1)[:, : lines.shape[1]]
    return changed(ctx, codes=model.codes - (back if along_columns else back.T))


def _straddle(kept: Callable[[np.ndarray, int], np.ndarray], codes: bool, zeros: bool) -> Decode:
    """At 3 bit: fields 10 and 21 of 32, of which 2 and 1 bits are in the first word."""

    def change(fields: np.ndarray) -> np.ndarray:
        fields = fields.copy()
        for first, low_bits in ((10, 2), (21, 1)):
            fields[:, first::32] = kept(fields[:, first::32], low_bits)
        return fields

    return lambda ctx: streams(ctx, change, codes=codes, zeros=zeros)


def _carry_dropped(field: np.ndarray, low_bits: int) -> np.ndarray:
    return field & (2**low_bits - 1)


def _carry_short(field: np.ndarray, low_bits: int) -> np.ndarray:
    """The second word gives one bit, whatever is missing: field 21 lacks its highest."""
    return field & (2 ** (low_bits + 1) - 1)


def _carry_signed(field: np.ndarray, low_bits: int) -> np.ndarray:
    """The first word's part is shifted with its sign and then OR-ed with the second's."""
    negative = (field >> (low_bits - 1)) & 1
    return field | np.where(negative, 7 & -(2**low_bits), 0)


def _ten_per_word(ctx: Context) -> np.ndarray | None:
    weight, model = ctx.weight, ctx.model
    if not isinstance(model, GPTQModel) or model.bits != 3:
        return None

    def fields(words: np.ndarray, count: int) -> np.ndarray:
        at = np.arange(count)
        return (words[:, np.minimum(at // 10, words.shape[1] - 1)] >> (3 * (at % 10))) & 7

    codes = fields(weight.qweight.t().numpy().astype(np.int64), model.codes.shape[0]).T
    stored = fields(weight.qzeros.numpy().astype(np.int64), model.codes.shape[1])
    return changed(ctx, codes=codes, zeros=decode_zeros(stored, 3, weight.zeros))


_MASK_FIX = "mask after the shift; words are signed"
_STRADDLE_FIX = "mask both parts of codes 10 and 21 before they are joined"
_SHIFT = ("https://github.com/flagos-ai/FlagTree/issues/1121",)
_THREE = (
    "https://github.com/ModelCloud/GPTQModel/issues/2251",
    "https://github.com/ModelCloud/GPTQModel/pull/2258",
)

PLAIN = (
    Fault(
        "slots-reversed",
        "code i of a word from slot 7 - i, zeros alike",
        GARBAGE,
        "the first code is in the lowest bits",
        _reversed(True, True),
        ("https://github.com/triton-lang/triton/pull/5197",),
        kind="order",
        trigger="a word with different codes or zeros; hides in palindromes and constant words",
    ),
    Fault(
        "slots-reversed-codes-only",
        "code i of a word from slot 7 - i",
        GARBAGE,
        "the first code is in the lowest bits",
        _reversed(True, False),
        kind="order",
        trigger="a word with different codes; hides in palindromes and constant words",
    ),
    Fault(
        "sign-extend-top",
        "the highest code of a word is w >> (32 - bits), signed, without a mask",
        "one code in each word is off by 2**bits where its high bit is set",
        _MASK_FIX,
        _signed_top(True, False),
        _SHIFT,
        kind="bits",
        trigger=(
            "a code with its high bit set in the last slot of a word; hides where bit 31 is never set "
            "(randint(0, 2**31 - 1))"
        ),
    ),
    Fault(
        "sign-extend-top-zeros",
        "the highest zero of a word is w >> (32 - bits), signed, without a mask",
        "the zeros of one column in each word are off by 2**bits",
        _MASK_FIX,
        _signed_top(False, True),
        _SHIFT,
        kind="bits",
        trigger=(
            "a zero with its high bit set in the last slot of a word, as it is used; hides where bit 31 is "
            "never set, and behind the mask of v1 zeros"
        ),
    ),
    Fault(
        "codes-twos-complement",
        "codes with the high bit set are negative",
        GARBAGE,
        "codes are unsigned",
        _twos_complement,
        (
            "https://github.com/vllm-project/vllm/pull/46136",
            "https://github.com/1bit-MONSTER/1bit-MONSTER/pull/572",
            "https://github.com/ROCm/hip-ep/pull/178",
        ),
        kind="bits",
        trigger="a code of 2**(bits - 1) or more",
    ),
    Fault(
        "codes-saturate-signed",
        "code = min(code, 2**(bits - 1) - 1): unsigned codes clamped to the signed range",
        "the upper half of each group collapses to one value",
        "codes run from 0 to 2**bits - 1",
        _saturated(lambda codes, mid: np.minimum(codes, mid - 1)),
        ("https://github.com/intel/auto-round/pull/2273",),
        kind="bits",
        trigger="a code of 2**(bits - 1) or more; hides where the top codes are never drawn",
    ),
    Fault(
        "codes-plus-mid-saturate",
        "code = min(code + 2**(bits - 1), 2**bits - 1): the offset of signed codes on unsigned ones",
        GARBAGE,
        "codes are unsigned already",
        _saturated(lambda codes, mid: np.minimum(codes + mid, 2 * mid - 1)),
        ("https://github.com/vllm-project/vllm/pull/41813",),
        kind="bits",
        trigger="any code below 2**bits - 1; hides in weights of the largest code alone",
    ),
    Fault(
        "difference-borrows",
        "code - zero of four codes in bytes by one 32-bit subtraction: a negative byte borrows from the next",
        "codes above a negative neighbour are off by one step",
        "subtract in each lane by itself, or keep a guard bit between lanes",
        _borrowed,
        ("https://github.com/gittensor-ai-lab/sparkinfer/pull/761",),
        kind="bits",
        trigger=(
            "4 bit, a code below its zero in slot 0 to 5 of a word; hides where no code is below its zero"
        ),
    ),
)

THREE_BITS = (
    Fault(
        "straddle-3bit-dropped",
        "codes 10 and 21 without the bits in the next word",
        "2 of 32 rows lose their high bits",
        _STRADDLE_FIX,
        _straddle(_carry_dropped, True, False),
        _THREE,
        kind="bits",
        trigger="3 bit, code 10 above 3 or code 21 above 1 of each 32; hides in small codes",
    ),
    Fault(
        "straddle-3bit-short",
        "codes and zeros 21 without their highest bit: one bit of the next word where two are missing",
        "1 of 32 rows and columns lose their high bit",
        _STRADDLE_FIX,
        _straddle(_carry_short, True, True),
        _THREE,
        kind="bits",
        trigger="3 bit, a code or a stored zero 21 of 32 above 3; hides in small codes",
    ),
    Fault(
        "straddle-3bit-short-codes",
        "codes 21 without their highest bit: one bit of the next word where two are missing",
        "1 of 32 rows loses its high bit",
        _STRADDLE_FIX,
        _straddle(_carry_short, True, False),
        _THREE,
        kind="bits",
        trigger="3 bit, a code 21 of 32 above 3; hides in small codes",
    ),
    Fault(
        "straddle-3bit-signed",
        "codes 10 and 21: w0 >> 30 | (w1 & 1) << 2 with a signed shift",
        "2 of 32 rows have high bits set that are not",
        _STRADDLE_FIX,
        _straddle(_carry_signed, True, False),
        _THREE,
        kind="bits",
        trigger=(
            "3 bit, bit 31 of a word set and a bit of code 10 or 21 in the next word clear; hides where bit "
            "31 is never set"
        ),
    ),
    Fault(
        "straddle-3bit-dropped-zeros",
        "zeros 10 and 21 without the bits in the next word",
        "2 of 32 columns are shifted",
        _STRADDLE_FIX,
        _straddle(_carry_dropped, False, True),
        _THREE,
        kind="bits",
        trigger="3 bit, stored zero 10 above 3 or 21 above 1 of each 32 columns",
    ),
    Fault(
        "straddle-3bit-signed-zeros",
        "zeros 10 and 21 joined after a signed shift",
        "2 of 32 columns are shifted",
        _STRADDLE_FIX,
        _straddle(_carry_signed, False, True),
        _THREE,
        kind="bits",
        trigger="3 bit, bit 31 of a word of zeros set and a bit of zero 10 or 21 in the next word clear",
    ),
    Fault(
        "ten-per-word-3bit",
        "field i of a line from word i // 10, bits 3 * (i % 10)",
        GARBAGE,
        "32 fields fill 3 words; other formats leave 2 bits of a word unused",
        _ten_per_word,
        (
            "https://github.com/ModelCloud/GPTQModel/pull/2984",
            "https://github.com/vllm-project/compressed-tensors/pull/715",
        ),
        kind="order",
        trigger="3 bit; right for the first 10 codes of a column and the first 10 zeros of a row only",
    ),
)
