"""Wrong decoders of stored zeros: conventions, signs, padding, repacking."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from conformance.faults import Context, Fault
from conformance.faults._grouped import GARBAGE, Decode, model_of, with_zeros, zero_slots
from kernels.awq_rows import AWQRowsWeight
from oracles.spec.awq import ScaledZeroModel
from oracles.spec.gptq import GPTQModel, decode_zeros


def _read_as(convention: str, *instead_of: str) -> Decode:
    def decode(ctx: Context) -> np.ndarray | None:
        model = ctx.model
        if not isinstance(model, GPTQModel) or ctx.weight.zeros not in instead_of:
            return None
        return with_zeros(ctx, decode_zeros(model.stored, model.bits, convention))

    return decode


def _carried(ctx: Context) -> np.ndarray | None:
    """v1 zeros by one addition a word: a stored maxq carries into the next field."""
    model = ctx.model
    if not isinstance(model, GPTQModel) or model.bits == 3 or ctx.weight.zeros == "v2":
        return None
    bits = model.bits
    words = ctx.weight.qzeros.numpy().astype(np.int64) & 0xFFFFFFFF
    ones = sum(1 << shift for shift in range(0, 32, bits))
    total = (words + ones) & 0xFFFFFFFF
    fields = (total[..., None] >> np.arange(0, 32, bits)) & (2**bits - 1)
    return with_zeros(ctx, fields.reshape(words.shape[0], -1)[:, : model.stored.shape[1]])


def _flat(ctx: Context) -> np.ndarray | None:
    """Zeros without the padding that fills the last word of each line."""
    weight, slots = ctx.weight, zero_slots(ctx.weight)
    if slots is None:
        return None
    n_groups, n_cols = model_of(ctx).zeros.shape
    flat = slots.reshape(-1)[: n_groups * n_cols]
    if isinstance(weight, AWQRowsWeight):
        return with_zeros(ctx, flat.reshape(n_cols, n_groups).T)
    return with_zeros(ctx, decode_zeros(flat.reshape(n_groups, n_cols), weight.bits, weight.zeros))


def _smeared(ctx: Context) -> np.ndarray | None:
    """A zero of 0 is packed as -1, which fills the rest of its word: 0 again when 1 is added and masked."""
    bits = getattr(ctx.weight, "bits", 4)
    if bits == 3 or getattr(ctx.weight, "zeros", "") == "v1-nowrap":
        return None
    zeros = model_of(ctx).zeros
    n_groups, n_cols = zeros.shape
    padded = np.pad(zeros, ((0, 0), (0, -n_cols % (32 // bits))), constant_values=1)
    words = padded.reshape(n_groups, -1, 32 // bits)
    filled = np.logical_or.accumulate(words == 0, axis=-1)
    return with_zeros(ctx, np.where(filled, 0, words).reshape(n_groups, -1)[:, :n_cols])


def _of_zeros(change: Callable[[np.ndarray, int], np.ndarray]) -> Decode:
    """``change(zeros, maxq)``."""

    def decode(ctx: Context) -> np.ndarray | None:
        if isinstance(ctx.model, ScaledZeroModel):
            return None
        return with_zeros(ctx, change(model_of(ctx).zeros, 2 ** getattr(ctx.weight, "bits", 4) - 1))

    return decode


_V = "stored zeros are a convention of the file: v1 adds 1 and wraps, v1-nowrap adds 1, v2 adds nothing"
_ONE_STEP = "every weight is off by one step; the model emits one token again and again"
_V2 = ("https://github.com/vllm-project/vllm/pull/38966", "https://github.com/vllm-project/vllm/pull/26092")
_WRAP = ("https://github.com/AutoGPTQ/AutoGPTQ/pull/484",)
_EXLLAMA = (
    "https://github.com/ModelCloud/GPTQModel/issues/2350",
    "https://github.com/ModelCloud/GPTQModel/pull/2352",
)

CONVENTIONS = (
    Fault(
        "zero-plus-one-missing",
        "zero = stored, where the file is v1",
        _ONE_STEP,
        _V,
        _read_as("v2", "v1", "v1-nowrap"),
        _V2,
        kind="zeros",
        trigger=(
            "any v1 or v1-nowrap file; no value alone shows it, but stored zeros of 7 in a symmetric 4-bit "
            "file are a hint"
        ),
    ),
    Fault(
        "zero-plus-one-extra",
        "zero = (stored + 1) & maxq, where the file is v2",
        _ONE_STEP,
        _V,
        _read_as("v1", "v2"),
        _V2,
        kind="zeros",
        trigger=(
            "any v2 file; no value alone shows it, but stored zeros of 8 in a symmetric 4-bit file are a hint"
        ),
    ),
    Fault(
        "zero-plus-one-extra-unmasked",
        "zero = stored + 1, where the file is v2",
        _ONE_STEP,
        _V,
        _read_as("v1-nowrap", "v2"),
        _V2,
        kind="zeros",
        trigger="any v2 file; differs from zero-plus-one-extra on a stored maxq alone",
    ),
    Fault(
        "zero-wrap-unmasked",
        "zero = stored + 1 without a mask: a stored maxq reads as maxq + 1, not 0",
        "columns whose zero is 0 are off by 2**bits steps",
        _V,
        _read_as("v1-nowrap", "v1"),
        _WRAP,
        kind="zeros",
        trigger="a v1 file with a stored maxq (true zero 0); hides in symmetric weights",
    ),
    Fault(
        "zero-wrap-masked",
        "zero = (stored + 1) & maxq: a stored maxq reads as 0, not maxq + 1",
        "columns whose zero is maxq + 1 are off by 2**bits steps",
        _V,
        _read_as("v1", "v1-nowrap"),
        _WRAP,
        kind="zeros",
        trigger="a v1-nowrap file with a stored maxq (true zero maxq + 1); hides in symmetric weights",
    ),
    Fault(
        "zero-word-carry",
        "1 is added to all zeros of a word at once: a stored maxq carries into the next",
        "a column next to one whose zero is 0 is off by one step",
        "add 1 to each field and mask it",
        _carried,
        ("https://github.com/ModelCloud/GPTQModel/pull/2763",),
        kind="zeros",
        trigger=(
            "2, 4 or 8 bit, a v1 file with a stored maxq below the last slot of a word, or a v1-nowrap one "
            "with any; hides in symmetric weights"
        ),
    ),
)

AWQ_OFFSET = (
    Fault(
        "zero-minus-one",
        "zero = (stored - 1) & 15, as for a GPTQ v1 file",
        "off by one step, by 15 where the zero is 0: NaN perplexity",
        "AWQ zeros have no offset",
        _of_zeros(lambda z, top: (z - 1) & top),
        _EXLLAMA,
        kind="zeros",
        trigger="any weight; a zero of 0 and one above 0 tell it from its clamped twin",
    ),
    Fault(
        "zero-minus-one-clamped",
        "zero = max(stored - 1, 0)",
        _ONE_STEP,
        "AWQ zeros have no offset",
        _of_zeros(lambda z, top: np.maximum(z - 1, 0)),
        ("https://github.com/ModelCloud/GPTQModel/pull/2351",),
        kind="zeros",
        trigger="a zero above 0; right where it is 0",
    ),
    Fault(
        "zero-plus-one",
        "zero = stored + 1, as for a GPTQ v1 file",
        _ONE_STEP,
        "AWQ zeros have no offset",
        _of_zeros(lambda z, top: z + 1),
        ("https://github.com/vllm-project/vllm/pull/48810",),
        kind="zeros",
        trigger="any weight; a zero of 15 tells it from its masked twin",
    ),
    Fault(
        "zero-plus-one-masked",
        "zero = (stored + 1) & 15, as for a GPTQ v1 file",
        _ONE_STEP,
        "AWQ zeros have no offset",
        _of_zeros(lambda z, top: (z + 1) & top),
        ("https://github.com/vllm-project/vllm/pull/48810",),
        kind="zeros",
        trigger="any weight; a zero of 15 tells it from its unmasked twin",
    ),
)

INTEGER = (
    Fault(
        "zero-max-one",
        "zero = max(zero, 1)",
        "columns whose zero is 0 are off by one step",
        "0 is a zero like any other",
        _of_zeros(lambda z, top: np.maximum(z, 1)),
        ("https://github.com/huggingface/text-generation-inference/pull/2120",),
        kind="zeros",
        trigger="a zero of 0; hides in symmetric weights",
    ),
    Fault(
        "zero-always-mid",
        "zero = 2**(bits - 1), as if the weight were symmetric",
        GARBAGE,
        "read the stored zeros",
        _of_zeros(lambda z, top: np.full_like(z, (top + 1) // 2)),
        ("https://github.com/vllm-project/compressed-tensors/pull/225",),
        kind="zeros",
        trigger="a zero other than 2**(bits - 1), such as all zeros 0; hides in symmetric weights",
    ),
    Fault(
        "zero-ignored",
        "value = code * scale",
        GARBAGE,
        "subtract the zero",
        _of_zeros(lambda z, top: np.zeros_like(z)),
        kind="zeros",
        trigger="a zero other than 0",
    ),
    Fault(
        "zero-signed",
        "a zero with the high bit set is negative",
        GARBAGE,
        "zeros are unsigned",
        _of_zeros(lambda z, top: np.where(z > top // 2, z - top - 1, z)),
        kind="zeros",
        trigger="a zero of 2**(bits - 1) or more",
    ),
)

PADDED = (
    Fault(
        "zeros-flat",
        "zeros read as one run of fields, without the padding at the end of each line of words",
        "zeros of the first line are right, the others drift by the padding",
        "a line of zeros begins in a word of its own",
        _flat,
        ("https://github.com/microsoft/onnxruntime/pull/24546",),
        kind="zeros",
        trigger=(
            "two lines of zeros that do not fill their words (N or G of 9 at 4 bit) and zeros that differ"
        ),
    ),
)

REPACKED = (
    Fault(
        "zero-repack-smear",
        "zeros are written again as zero - 1 without a mask: -1 sets all higher fields of its word",
        "columns to the right of a zero of 0 are off by their zero",
        "mask each field before the shift: (zero - 1) & maxq",
        _smeared,
        (
            "https://github.com/AutoGPTQ/AutoGPTQ/pull/325",
            "https://github.com/AutoGPTQ/AutoGPTQ/pull/640",
        ),
        kind="zeros",
        trigger="a zero of 0 left of another zero in its word (not 3 bit); hides in symmetric weights",
    ),
)
