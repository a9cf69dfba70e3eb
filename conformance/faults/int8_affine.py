"""Faults of int8_affine: each a wrong decoder of ``_int8_affine.py``."""

from __future__ import annotations

import numpy as np

from conformance.faults import Fault
from conformance.faults import _int8_affine as wrong

_DEGRADED = "fluent but degraded text; perplexity rises without an error"
_GARBAGE = "loads and runs, output is garbage"

_FLOOR = (
    "https://github.com/vllm-project/compressed-tensors/pull/308",
    "https://github.com/vllm-project/vllm-ascend/pull/9159",
)

TILES = tuple(
    Fault(
        f"group-of-tile-{size}",
        f"group = (c // {size} * {size}) // group_size: one scale for a tile that spans several groups",
        "only the first group of each tile is right",
        "index the scale by each column's own group",
        wrong.tile(size),
        (
            "https://github.com/vllm-project/vllm/pull/39705",
            "https://github.com/vllm-project/vllm/issues/52576",
        ),
        kind="groups",
        trigger=(
            f"per group, a group edge inside of a tile of {size} columns, scales that differ; hides where "
            f"the group size is a multiple of {size}"
        ),
    )
    for size in (16, 64, 256, 1024)
)

FAULTS = (
    Fault(
        "zero-sign-flipped",
        "(q + z) * s",
        _GARBAGE,
        "subtract the zero point",
        wrong.zeros_changed(np.negative),
        kind="zeros",
        trigger="a zero point other than 0; hides in symmetric weights",
    ),
    Fault(
        "zero-ignored",
        "q * s",
        _GARBAGE,
        "subtract the zero point",
        wrong.zeros_changed(np.zeros_like),
        kind="zeros",
        trigger="a zero point other than 0; hides in symmetric weights",
    ),
    Fault(
        "zero-plus-one",
        "(q - (z + 1)) * s",
        "every weight is off by one step",
        "int8 zero points are stored as they are; the + 1 is GPTQ's",
        wrong.zeros_changed(lambda zeros: zeros + 1),
        ("https://github.com/vllm-project/vllm/pull/48810",),
        kind="zeros",
        trigger="any weight with a zero_point, zeros of 0 included; hides when it is absent",
    ),
    Fault(
        "zero-minus-one",
        "(q - (z - 1)) * s",
        "every weight is off by one step",
        "int8 zero points are stored as they are",
        wrong.zeros_changed(lambda zeros: zeros - 1),
        kind="zeros",
        trigger="any weight with a zero_point, zeros of 0 included; hides when it is absent",
    ),
    Fault(
        "zero-other-signedness",
        "an unsigned zero point read as int8, or a signed one as uint8: off by 256",
        "channels with such a zero are off by 256 steps",
        "load the zero point with the dtype it is stored in",
        wrong.zeros_other_signedness,
        kind="zeros",
        trigger=(
            "an 8-bit zero point with its high bit set: uint8 above 127 or a negative int8; hides in int32 "
            "zeros"
        ),
    ),
    Fault(
        "zero-of-first-place",
        "z[0] for every channel or group, with the right scale",
        _DEGRADED,
        "index zero points like scales",
        wrong.zero_only_elsewhere,
        kind="zeros",
        trigger="two channels or groups with different zero points; hides per tensor and in equal zeros",
    ),
    Fault(
        "zero-absent-as-mid",
        "(q - 128) * s for unsigned codes of a weight without a zero point",
        _GARBAGE,
        "an absent zero point is 0",
        wrong.absent_as_mid,
        kind="zeros",
        trigger="uint8 codes and no zero_point; hides in int8 codes, and wherever a zero point is stored",
    ),
    Fault(
        "codes-other-signedness",
        "unsigned codes read as int8, or signed ones as uint8",
        "every code of the upper half is off by 256 steps",
        "load the codes with the dtype they are stored in",
        wrong.codes_other_signedness,
        kind="bits",
        trigger="a code with its high bit set",
    ),
    Fault(
        "codes-saturate-signed",
        "q = min(q, 127): unsigned codes clamped to the signed range",
        "the upper half of the range collapses to one value",
        "codes of a uint8 weight run from 0 to 255",
        wrong.saturated_signed,
        ("https://github.com/intel/auto-round/pull/2273",),
        kind="bits",
        trigger="uint8 codes and one above 127; hides where the top codes are never drawn",
    ),
    Fault(
        "difference-wraps",
        "q - z in 8 bits",
        "codes far from their zero point come out with the wrong sign",
        "convert codes and zero points to int32 first",
        wrong.difference_wraps,
        kind="bits",
        trigger="int8 codes with q - z outside of -128..127 (q = 127, z = -1), uint8 codes with q < z",
    ),
    Fault(
        "clamped-to-127",
        "code -128 read as -127",
        "none for weights of a narrow-range quantizer, which never gives -128",
        "decode all 256 codes",
        wrong.clamped,
        kind="bits",
        trigger="the code -128, which a narrow-range quantizer never writes",
    ),
    Fault(
        "scale-wrong-axis",
        "s[c] instead of s[r], or the reverse",
        "garbage, without an error in square layers",
        "take the axis from the weight",
        wrong.other_axis,
        ("https://github.com/apple/coreai-torch/pull/24",),
        kind="groups",
        trigger="per channel, no more elements along the wrong axis than scales, and scales that differ",
    ),
    *(
        Fault(
            f"scale-wrong-axis-{name}",
            f"s[c] instead of s[r], or the reverse, and behind the last scale {words}",
            "garbage in every layer that is not square",
            "take the axis from the weight",
            wrong.other_axis_beyond(beyond),
            ("https://github.com/apple/coreai-torch/pull/24",),
            kind="groups",
            trigger="per channel, with more elements along the wrong axis than scales",
        )
        for name, beyond, words in (
            ("poison", "nan", "whatever lies there (NaN under the harness)"),
            ("masked", "zero", "a scale of 0 from a mask"),
            ("wrapped", "again", "the table again from its start"),
        )
    ),
    Fault(
        "scale-of-next",
        "scale and zero point of the next channel or group",
        _DEGRADED,
        "index by the channel or group itself",
        wrong.shifted(1),
        kind="groups",
        trigger="two channels or groups that differ in scale or zero point; the last one keeps its own",
    ),
    Fault(
        "scale-of-previous",
        "scale and zero point of the channel or group before",
        _DEGRADED,
        "index by the channel or group itself",
        wrong.shifted(-1),
        kind="groups",
        trigger="two channels or groups that differ in scale or zero point; the first one keeps its own",
    ),
    Fault(
        "first-scale-everywhere",
        "s[0] and z[0] for the whole weight",
        _DEGRADED,
        "the weight has scales by channel or group",
        wrong.first,
        kind="groups",
        trigger="two channels or groups that differ in scale or zero point; hides per tensor",
    ),
    *TILES,
    Fault(
        "group-size-128-fixed",
        "group = c // 128 whatever the group size",
        _DEGRADED,
        "read the group size from the weight",
        wrong.grouped(lambda r, c, g, n, shape: r * n + np.minimum(c // 128, n - 1)),
        ("https://github.com/mit-han-lab/llm-awq/issues/21",),
        kind="groups",
        trigger="per group, another group size than 128 and more than one group in a row, scales that differ",
    ),
    Fault(
        "groups-over-flat-weight",
        "group = (r * C + c) // group_size: groups run on from row to row",
        _DEGRADED,
        "each row begins a group",
        wrong.grouped(lambda r, c, g, n, shape: (r * shape[1] + c) // g),
        kind="groups",
        trigger="per group, two rows, C % group_size != 0; hides where rows are whole groups",
    ),
    Fault(
        "group-scales-transposed",
        "scales read as [G, R]",
        _GARBAGE,
        "scales are [R, G]",
        wrong.grouped(lambda r, c, g, n, shape: c // g * shape[0] + r),
        ("https://github.com/vllm-project/vllm/pull/34824",),
        kind="groups",
        trigger=(
            "per group, two rows and two groups, scales that differ; hides where scales [R, G] have R or G "
            "of 1"
        ),
    ),
    Fault(
        "tail-group-previous",
        "C // group_size groups: the short last one uses the scale before it",
        "the last columns are off by the ratio of two scales",
        "the number of groups is ceil(C / group_size)",
        wrong.tail_previous,
        _FLOOR,
        kind="tails",
        trigger="per group, C % group_size != 0, two groups whose scale or zero point differ",
    ),
    Fault(
        "tail-group-zero",
        "C // group_size groups: the short last one is scaled by 0",
        "the last columns of a layer vanish",
        "the number of groups is ceil(C / group_size)",
        wrong.tail_zero,
        _FLOOR,
        kind="tails",
        trigger="per group, C % group_size != 0; hides in whole groups",
    ),
    Fault(
        "group-size-inferred",
        "group = c // ceil(C / number of groups) instead of c // group_size",
        "scales drift away from their columns, from the first group's end on",
        "read the group size from the weight: shapes do not tell it where the last group is short",
        wrong.grouped(lambda r, c, g, n, shape: r * n + c // -(-shape[1] // n)),
        (
            "https://github.com/NVIDIA/TensorRT-Model-Connect/pull/1115",
            "https://github.com/axolotl-ai-cloud/axolotl/pull/3486",
        ),
        kind="groups",
        trigger=(
            "a last group that lacks as many columns as there are groups (C = 33, group_size = 32), groups "
            "that differ"
        ),
    ),
    Fault(
        "zero-times-scale-hoisted",
        "q * s - z * s, both products rounded to float32",
        "1 ULP and more where the zero point is far from 0; NaN where z * s overflows",
        "subtract integers, then multiply once",
        wrong.hoisted,
        ("https://github.com/vllm-project/vllm/pull/55532",),
        kind="precision",
        trigger=(
            "a zero_point and fp32 scales whose products round, products that overflow, or q = z and a "
            "negative scale (sign of 0)"
        ),
    ),
    Fault(
        "zero-times-scale-fused",
        "fma(q, s, -(z * s))",
        "1 ULP here and there; the sign of zero",
        "subtract integers, then multiply once",
        wrong.fused,
        kind="precision",
        trigger="a zero_point and fp32 scales whose z * s rounds; on q = z the sign of 0 for negative scales",
    ),
    Fault(
        "scale-reciprocal",
        "(q - z) / s",
        _GARBAGE,
        "the scale multiplies when decoding",
        wrong.reciprocal,
        ("https://github.com/modular/modular/issues/6600",),
        kind="scales",
        trigger="a scale other than 1 or -1",
    ),
    Fault(
        "scale-through-fp16",
        "the scale rounded to float16 first",
        "2**-11 relative error; inf or 0 for extreme scales",
        "keep the scale's dtype until the product",
        wrong.scale_fp16,
        ("https://github.com/casper-hansen/AutoAWQ/pull/740",),
        kind="precision",
        trigger="fp32 or bf16 scales that float16 cannot hold: over 11 bits, above 65504 or below 2**-24",
    ),
    Fault(
        "product-in-scale-dtype",
        "(q - z) * s rounded to the dtype of the scale, then to the output",
        "float32 output carries 8 or 11 bits",
        "multiply in float32; torch.ops.quantized_decomposed does this with 16-bit scales",
        wrong.in_scale_dtype,
        kind="precision",
        trigger=(
            "16-bit scales of another dtype than the output; hides when both are the same, and for fp32 "
            "scales"
        ),
    ),
)
