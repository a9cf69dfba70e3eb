"""Flags of recorded vectors: what a case is there for, and what it means to fail it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from conformance.case import Case


class Flag(NamedTuple):
    """What the vectors of a flag have in common, and what a kernel that fails them does to a model."""

    description: str
    effect: str


FLAGS: dict[str, Flag] = {
    "BASIC": Flag(
        "ordinary values in a small shape: the default, and each choice of the format alone",
        "the kernel does not decode this variant at all, or is not wired correctly: look no further",
    ),
    "ODD_TAIL": Flag(
        "a size that is no multiple of 8 elements: the last word or vector is partly used",
        "the last elements of rows or of the weight are wrong, missing, or written out of bounds",
    ),
    "RAGGED": Flag(
        "a last block or group that is shorter than the others, or a block across rows",
        "the end of a layer is scaled by another block's scale",
    ),
    "MANY_BLOCKS": Flag(
        "more than 256 nested scales, so that there is a second scale of the scales",
        "layers above a certain size are scaled by a constant factor from some element on",
    ),
    "NESTED": Flag(
        "scales that are quantized themselves",
        "every scale is off: double-quantized checkpoints give noise",
    ),
    "STRADDLE": Flag(
        "codes of 3 bits, some of which lie in two words",
        "three codes in 32 are wrong: quality drops without an error",
    ),
    "ACT_ORDER": Flag(
        "rows that name their group themselves, in any order",
        "activation-order checkpoints decode with the scales of other rows",
    ),
    "ZERO_POINT": Flag(
        "stored zero points that differ from scale to scale",
        "weights of a group are shifted by a multiple of its scale",
    ),
    "ZERO_WRAP": Flag(
        "a stored zero of all ones, where adding the 1 of a v1 zero wraps or does not",
        "whole groups are shifted by 2**bits steps; symmetric checkpoints never show it",
    ),
    "UNSIGNED": Flag("unsigned codes", "codes from 128 on are taken for negative numbers"),
    "EXTREME_CODE": Flag(
        "all codes the lowest or the highest",
        "the code at the end of the range, -128 for instance, is clipped or negated",
    ),
    "NEGATIVE_SCALE": Flag(
        "scales, or entries of a table, of either sign",
        "signs are lost, or a zero gets the sign of another formula",
    ),
    "TIES": Flag(
        "scales half-way between two numbers of a narrower dtype",
        "an intermediate rounding or a wrong rounding mode: one ULP, in one direction",
    ),
    "EXTREME_SCALE": Flag(
        "scales at or past the edge of the output's range, or tiny ones",
        "overflow to infinity, or underflow, where the library keeps a number (or the other way round)",
    ),
    "SUBNORMAL": Flag(
        "subnormal scales or products", "small weights are flushed to zero; a layer may lose all of them"
    ),
    "ZERO_SCALE": Flag("scales of 0", "NaN, or a zero of the wrong sign, where a layer has an empty group"),
    "NONFINITE": Flag(
        "scales with infinity or NaN", "a damaged checkpoint is hidden, or NaN spreads to sound weights"
    ),
    "CODEBOOK": Flag(
        "a table of values that is not the format's own, or with equal entries",
        "a table that is built into the kernel is used in place of the checkpoint's",
    ),
    "STORAGE": Flag(
        "codes stored as another dtype than the usual one, for instance bytes in bfloat16",
        "bytes are swapped or values converted: all weights are noise",
    ),
    "SCALE_DTYPE": Flag(
        "scales of another dtype than float16", "scales are rounded, or the product is in the wrong dtype"
    ),
    "SMALL_TILE": Flag(
        "decoded by many small programs of the built-in kernel",
        "elements at the edges of tiles are wrong: shapes that fill whole tiles hide it",
    ),
    "PACKED": Flag(
        "packed by the library's own packer from float weights",
        "what real checkpoints hold is decoded wrongly",
    ),
    "DRAWN": Flag(
        "drawn at random from all dimensions, once, from a fixed seed",
        "a combination that no other vector has is decoded wrongly",
    ),
    "PATTERN": Flag(
        "a regular pattern of codes, zeros or groups in an otherwise ordinary weight",
        "order or index of codes, zeros or groups is wrong",
    ),
}

_SCALES = {
    "negative": "NEGATIVE_SCALE",
    "ties": "TIES",
    "tiny": "EXTREME_SCALE",
    "huge": "EXTREME_SCALE",
    "over": "EXTREME_SCALE",
    "mixed": "EXTREME_SCALE",
    "small": "SUBNORMAL",
    "subnormal": "SUBNORMAL",
    "zero": "ZERO_SCALE",
    "inf": "NONFINITE",
    "nan": "NONFINITE",
}


def flags_of(case: Case, shape: tuple[int, ...], facts: Mapping[str, Any]) -> tuple[str, ...]:
    """Flags that follow from a case, its output shape and what its format says of its weight."""
    fields = case.as_mapping()
    names = {name: getattr(value, "name", value) for name, value in fields.items()}
    found = set()
    # Blocks run over rows; otherwise a row ends where its last dimension does, and [K, N] has two.
    sizes = (math.prod(shape),) if "blocksize" in fields else shape if "K" in fields else shape[-1:]
    if any(size % 8 for size in sizes):
        found.add("ODD_TAIL")
    found |= _group_flags(fields, shape)
    if names.get("absmax") == "nested":
        found.add("NESTED")
        if math.prod(shape) > 256 * fields["blocksize"]:
            found.add("MANY_BLOCKS")
    if fields.get("bits") == 3:
        found.add("STRADDLE")
    if names.get("act", "none") != "none":
        found.add("ACT_ORDER")
    if ("zp" in fields and "zero" not in fields) or names.get("zero", "none") != "none":
        found.add("ZERO_POINT")
    if facts.get("maxq_stored") and names.get("zeros") != "v2":
        found.add("ZERO_WRAP")
    if names.get("codes") == "uint8":
        found.add("UNSIGNED")
    if names.get("words") in ("zeros", "ones"):
        found.add("EXTREME_CODE")
    elif names.get("words") in ("ramp", "onehot"):
        found.add("PATTERN")
    for dim in ("scales", "table"):
        if names.get(dim) in _SCALES:
            found.add(_SCALES[names[dim]])
    if names.get("codebook", "own") != "own" or names.get("table") == "dup":
        found.add("CODEBOOK")
    if names.get("storage", "uint8") != "uint8":
        found.add("STORAGE")
    # A lookup table is float32 where scales are float16.
    if names.get("sdtype", "fp16") != "fp16" or names.get("tdtype", "fp32") != "fp32":
        found.add("SCALE_DTYPE")
    if names["tile"] == "small":
        found.add("SMALL_TILE")
    if names["route"] == "pack":
        found.add("PACKED")
    return tuple(flag for flag in FLAGS if flag in found)


def _group_flags(fields: Mapping[str, Any], shape: tuple[int, ...]) -> set[str]:
    if "blocksize" in fields:
        size, across = fields["blocksize"], math.prod(shape)
        ragged = across % size != 0 or (len(shape) > 1 and shape[-1] % size != 0 and across > size)
        return {"RAGGED"} if ragged else set()
    if "g" not in fields or fields["g"] < 1 or fields.get("per", "group") != "group":
        return set()
    along = fields["K"] if "K" in fields else shape[-1]
    return {"RAGGED"} if along % fields["g"] else set()
