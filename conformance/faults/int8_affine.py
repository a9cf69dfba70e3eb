"""Faults of int8_affine: each a wrong decoder of ``_int8_affine.py``."""

from __future__ import annotations

import numpy as np

from conformance.faults import Fault
from conformance.faults import _int8_affine as wrong

_DEGRADED = "fluent but degraded text; perplexity rises without an error"
_GARBAGE = "loads and runs, output is garbage"

TILES = tuple(
    Fault(
        f"group-of-tile-{size}",
        f"group = (c // {size} * {size}) // group_size: one scale for a tile that spans several groups",
        "only the first group of each tile is right",
        "index the scale by each column's own group",
        wrong.tile(size),
        ("https://github.com/vllm-project/vllm/pull/39705",),
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
    ),
    Fault("zero-ignored", "q * s", _GARBAGE, "subtract the zero point", wrong.zeros_changed(np.zeros_like)),
    Fault(
        "zero-plus-one",
        "(q - (z + 1)) * s",
        "every weight is off by one step",
        "int8 zero points are stored as they are; the + 1 is GPTQ's",
        wrong.zeros_changed(lambda zeros: zeros + 1),
        ("https://github.com/vllm-project/vllm/pull/48810",),
    ),
    Fault(
        "zero-minus-one",
        "(q - (z - 1)) * s",
        "every weight is off by one step",
        "int8 zero points are stored as they are",
        wrong.zeros_changed(lambda zeros: zeros - 1),
    ),
    Fault(
        "zero-other-signedness",
        "an unsigned zero point read as int8, or a signed one as uint8: off by 256",
        "channels with such a zero are off by 256 steps",
        "load the zero point with the dtype it is stored in",
        wrong.zeros_other_signedness,
        ("https://github.com/intel/auto-round/pull/2273",),
    ),
    Fault(
        "zero-of-first-place",
        "z[0] for every channel or group, with the right scale",
        _DEGRADED,
        "index zero points like scales",
        wrong.zero_only_elsewhere,
    ),
    Fault(
        "codes-other-signedness",
        "unsigned codes read as int8, or signed ones as uint8",
        "every code of the upper half is off by 256 steps",
        "load the codes with the dtype they are stored in",
        wrong.codes_other_signedness,
    ),
    Fault(
        "difference-wraps",
        "q - z in 8 bits",
        "codes far from their zero point come out with the wrong sign",
        "convert codes and zero points to int32 first",
        wrong.difference_wraps,
    ),
    Fault(
        "clamped-to-127",
        "code -128 read as -127",
        "none for weights of a narrow-range quantizer, which never gives -128",
        "decode all 256 codes",
        wrong.clamped,
    ),
    Fault(
        "scale-wrong-axis",
        "s[c] instead of s[r], or the reverse (square weights hide the shape error)",
        "garbage in square layers only",
        "take the axis from the weight",
        wrong.other_axis,
        ("https://github.com/apple/coreai-torch/pull/24",),
    ),
    Fault(
        "scale-of-next",
        "scale and zero point of the next channel or group",
        _DEGRADED,
        "index by the channel or group itself",
        wrong.shifted(1),
    ),
    Fault(
        "scale-of-previous",
        "scale and zero point of the channel or group before",
        _DEGRADED,
        "index by the channel or group itself",
        wrong.shifted(-1),
    ),
    Fault(
        "first-scale-everywhere",
        "s[0] and z[0] for the whole weight",
        _DEGRADED,
        "the weight has scales by channel or group",
        wrong.first,
    ),
    *TILES,
    Fault(
        "group-size-128-fixed",
        "group = c // 128 whatever the group size",
        _DEGRADED,
        "read the group size from the weight",
        wrong.grouped(lambda r, c, g, n, shape: r * n + np.minimum(c // 128, n - 1)),
        ("https://github.com/mit-han-lab/llm-awq/issues/21",),
    ),
    Fault(
        "groups-over-flat-weight",
        "group = (r * C + c) // group_size: groups run on from row to row",
        _DEGRADED,
        "each row begins a group",
        wrong.grouped(lambda r, c, g, n, shape: (r * shape[1] + c) // g),
    ),
    Fault(
        "group-scales-transposed",
        "scales read as [G, R]",
        _GARBAGE,
        "scales are [R, G]",
        wrong.grouped(lambda r, c, g, n, shape: c // g * shape[0] + r),
        ("https://github.com/vllm-project/vllm/pull/47770",),
    ),
    Fault(
        "tail-group-previous",
        "C // group_size groups: the short last one uses the scale before it",
        "the last columns are off by the ratio of two scales",
        "the number of groups is ceil(C / group_size)",
        wrong.tail_previous,
        ("https://github.com/vllm-project/compressed-tensors/pull/308",),
    ),
    Fault(
        "zero-times-scale-hoisted",
        "q * s - z * s, both products rounded to float32",
        "1 ULP and more where the zero point is far from 0; NaN where z * s overflows",
        "subtract integers, then multiply once",
        wrong.hoisted,
        ("https://github.com/vllm-project/vllm/pull/55532",),
    ),
    Fault(
        "zero-times-scale-fused",
        "fma(q, s, -(z * s))",
        "1 ULP here and there; the sign of zero",
        "subtract integers, then multiply once",
        wrong.fused,
    ),
    Fault(
        "scale-reciprocal",
        "(q - z) / s",
        _GARBAGE,
        "the scale multiplies when decoding",
        wrong.reciprocal,
    ),
    Fault(
        "scale-through-fp16",
        "the scale rounded to float16 first",
        "2**-11 relative error; inf or 0 for extreme scales",
        "keep the scale's dtype until the product",
        wrong.scale_fp16,
        ("https://github.com/casper-hansen/AutoAWQ/pull/740",),
    ),
    Fault(
        "product-in-scale-dtype",
        "(q - z) * s rounded to the dtype of the scale, then to the output",
        "float32 output carries 8 or 11 bits",
        "multiply in float32; torch.ops.quantized_decomposed does this with 16-bit scales",
        wrong.in_scale_dtype,
    ),
)
