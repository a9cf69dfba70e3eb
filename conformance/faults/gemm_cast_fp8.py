"""Faults of casting activations to fp8: each a wrong cast of ``_gemm_cast_fp8.py``."""

from __future__ import annotations

import torch

from conformance.faults import Fault
from conformance.faults import _gemm_cast_fp8 as wrong

_DEGRADED = "fluent but degraded text; perplexity rises without an error"
_TIES = "one step on exact ties only; invisible in a model"
_NEAR = "one step on what lies within an ULP of a tie; invisible in a model"
_HALVES = (("fp16", torch.float16), ("bf16", torch.bfloat16))

CODES = (
    Fault(
        "round-half-away",
        "ties away from zero: half a step added, then cut",
        _TIES,
        "round ties to even: add half a step less one, and the lowest kept bit",
        wrong.encoded(wrong.half_away),
        ("https://github.com/sgl-project/sglang/pull/40581",),
        kind="precision",
        trigger="a quotient half-way between two codes, the lower of them even: `x=codes`",
    ),
    Fault(
        "round-half-to-zero",
        "ties toward zero",
        _TIES,
        "round ties to even",
        wrong.encoded(wrong.half_to_zero),
        kind="precision",
        trigger="a quotient half-way between two codes, the lower of them odd: `x=codes`",
    ),
    Fault(
        "round-truncate",
        "cut toward zero: the mantissa shifted",
        "every value is up to a step too small: degraded",
        "round before the bits are dropped",
        wrong.encoded(wrong.toward_zero),
        kind="precision",
        trigger="a quotient above half of a step; Triton's interpreter (up to 3.9) casts like that",
    ),
    *(
        Fault(
            f"rounded-through-{name}",
            f"the quotient rounded to {name}, then to e4m3: twice",
            _NEAR,
            "convert from float32",
            wrong.encoded(wrong.through_half(dtype)),
            kind="precision",
            trigger=f"a float32 quotient beside a tie, which is one in {name}: `x=codes`",
        )
        for name, dtype in _HALVES
    ),
    Fault(
        "saturation-missing",
        "NaN instead of 448 for what rounds beyond it",
        "NaN in the whole row of a product",
        "clamp to 448 before the conversion; ml_dtypes' cast and most of PyTorch's give NaN",
        wrong.encoded(wrong.not_saturated),
        (
            "https://github.com/NVIDIA/Model-Optimizer/issues/1633",
            "https://github.com/jax-ml/ml_dtypes/issues/260",
        ),
        kind="bits",
        trigger="a quotient above 464: a given scale that is too small; hides in dynamic scales",
    ),
    Fault(
        "saturates-at-256",
        "every quotient of 256 and more as 448",
        "the largest values of a row are up to 75 % too large",
        "e4m3fn has numbers in its last binade; only its last code is NaN",
        wrong.encoded(wrong.saturated_at(256.0)),
        ("https://github.com/sgl-project/sglang/pull/40581",),
        kind="bits",
        trigger="a quotient from 256 to below 432",
    ),
    Fault(
        "subnormals-flushed",
        "what is below 2**-6 as 0",
        "small activations vanish",
        "e4m3 has subnormal numbers, multiples of 2**-9",
        wrong.encoded(wrong.subnormals_flushed),
        kind="bits",
        trigger="a quotient between 2**-10 and 2**-6",
    ),
    Fault(
        "subnormals-truncated",
        "what is below 2**-6 cut to a multiple of 2**-9",
        "small activations are up to a step too small",
        "round subnormal numbers like the others",
        wrong.encoded(wrong.subnormals_cut),
        kind="precision",
        trigger="a quotient below 2**-6 with more than half a step",
    ),
    Fault(
        "cast-to-e4m3fnuz",
        "absmax / 240 and numbers of e4m3fnuz",
        "other steps: the same quality, but codes that mean something else elsewhere",
        "gfx942 has e4m3fnuz units, others e4m3fn",
        wrong.FNUZ_CAST,
        kind="scales",
        trigger="a row that is not 0",
    ),
    Fault(
        "cast-to-e5m2",
        "absmax / 57344 and numbers of e5m2",
        _DEGRADED,
        "activations and weights are e4m3, gradients e5m2",
        wrong.E5M2_CAST,
        kind="scales",
        trigger="a row that is not 0",
    ),
    Fault(
        "codes-read-as-e4m3fnuz",
        "right codes read as e4m3fnuz: half, and 0x80 is NaN",
        "half of each value, or NaN",
        "the dtype says which e4m3 it is",
        wrong.read_as_fnuz,
        kind="bits",
        trigger="a code other than 0",
    ),
    Fault(
        "zeros-divided-by-zero",
        "0 / 0 in rows and blocks of zeros",
        "NaN for padding tokens, and in all that reads them",
        "leave zeros as they are, or have a least scale",
        wrong.cast(wrong.zeros_divided),
        kind="zeros",
        trigger="a row or block of zeros: `x=holes`, `x=zeros`",
    ),
)

EXTREMES = (
    Fault(
        "extremes-of-tensor",
        "the largest of all rows for each of them",
        "tokens without outliers lose their bits: degraded",
        "reduce along the row or block alone",
        wrong.rescaled(wrong.of_tensor),
        kind="groups",
        trigger="two rows or blocks with different extremes; hides in one",
    ),
    Fault(
        "extremes-of-first-128",
        "the largest of the first 128 elements of a row; what is larger behind is cut",
        "outliers in the later channels are cut: degraded",
        "reduce over each block, or over all of the row before the first code",
        wrong.rescaled(wrong.of_first_block),
        kind="tails",
        trigger="K above 128 and an extreme behind: `x=last`, or blocks that differ",
    ),
    Fault(
        "max-without-abs",
        "max(x) instead of max(|x|)",
        "rows whose extreme is negative are cut: degraded",
        "take the absolute value before the maximum",
        wrong.rescaled(wrong.without_negatives),
        kind="scales",
        trigger="a row or block whose largest magnitude is negative",
    ),
    Fault(
        "k-block-by-extent",
        "blocks of ceil(K / blocks) instead of 128",
        "codes beside block edges have the neighbour's scale",
        "a block has 128 elements whatever K is",
        wrong.rescaled(wrong.by_extent),
        ("https://github.com/NVIDIA/TensorRT-Model-Connect/pull/1115",),
        kind="groups",
        trigger="per block and K above 128 that is no multiple of it",
    ),
    Fault(
        "k-last-block-scale-previous",
        "a short last block decoded with the scale of the block before it",
        "the last channels of a layer are off by the ratio of two scales",
        "there are ceil(K / 128) scales in a row",
        wrong.stored(wrong.decoded_by_last_whole_block),
        kind="tails",
        trigger="per block and K above 128 that is no multiple of it",
    ),
)

SCALES = (
    Fault(
        "scale-of-next-row",
        "right codes, decoded with the scale of the next row",
        _DEGRADED,
        "store the scale at its own row",
        wrong.stored(wrong.decoded_by_next),
        kind="groups",
        trigger="two rows with different extremes; the last one keeps its own",
    ),
    Fault(
        "codes-by-scale-of-next-row",
        "codes by the scale of the next row, decoded with the right one",
        _DEGRADED,
        "load the scale of the row itself",
        wrong.cast(wrong.coded_by_next),
        kind="groups",
        trigger="two rows with different extremes; the last one keeps its own",
    ),
    Fault(
        "scale-inverted",
        "decoded with 1 / scale",
        "loads and runs, output is garbage",
        "divide by the scale to make codes, multiply by it to decode",
        wrong.stored(wrong.inverted),
        kind="scales",
        trigger="a scale other than 1",
    ),
    Fault(
        "scale-power-of-two",
        "the scale rounded up to a power of two (UE8M0)",
        "up to a bit of precision is lost",
        "take the quotient itself; DeepGEMM's Blackwell kernels want powers of two",
        wrong.rescaled(wrong.power_of_two),
        kind="scales",
        trigger="a scale that is no power of two",
    ),
    *(
        Fault(
            f"scale-through-{name}",
            f"the scale rounded to {name}, and codes by it",
            "a relative error of half an ULP of that dtype; inf or 0 where it cannot hold the scale",
            "compute scales in float32 whatever the dtype of the activations",
            wrong.rounded_scale(dtype),
            kind="precision",
            trigger=f"a scale that {name} cannot hold",
        )
        for name, dtype in _HALVES
    ),
    *(
        Fault(
            f"stored-scale-through-{name}",
            f"codes by the float32 scale, which is stored as {name}",
            "a relative error of half an ULP of that dtype in whole rows",
            "store the scale that made the codes",
            wrong.stored_through(dtype),
            kind="precision",
            trigger=f"a scale that {name} cannot hold",
        )
        for name, dtype in _HALVES
    ),
    Fault(
        "scale-by-reciprocal",
        "absmax * fp32(1 / 448) instead of fp32(absmax / 448)",
        "1 ULP of float32 in some scales",
        "divide; torch multiplies by the reciprocal when a CUDA tensor is divided by a number",
        wrong.rescaled(wrong.by_reciprocal),
        kind="precision",
        trigger="an absmax whose quotient rounds the other way, float32 output",
    ),
    Fault(
        "codes-by-inverse",
        "x * fp32(1 / scale) instead of x / scale, as vLLM with a given scale",
        _NEAR,
        "divide by the scale, or take this for the format's",
        wrong.cast(wrong.by_inverse),
        kind="precision",
        trigger="x within an ULP of a tie, and a scale that is no power of two: `per=tensor`",
    ),
    Fault(
        "codes-by-448-over-absmax",
        "x * fp32(448 / absmax)",
        _NEAR,
        "divide by the scale, or take this for the format's; torchao's float8 training has it",
        wrong.cast(wrong.by_448_over_absmax),
        kind="precision",
        trigger="x within an ULP of a tie, and an absmax that is 448 times no power of two",
    ),
    Fault(
        "scale-at-least-eps",
        "scale = max(scale, 2**-23)",
        "rows below 5e-5 lose bits or vanish",
        "leave the scale as it is; libraries that have a least one differ in it",
        wrong.at_least(2.0**-23),
        kind="scales",
        trigger="a row or block with an absmax below 5e-5: `x=tiny`; hides in ordinary activations",
    ),
)

FAULTS = CODES + EXTREMES + SCALES
