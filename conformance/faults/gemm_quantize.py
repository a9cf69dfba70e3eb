"""Faults of quantizing activations by token: each a wrong quantization of ``_gemm_quantize.py``."""

from __future__ import annotations

import numpy as np
import torch

from conformance.faults import Fault
from conformance.faults import _gemm_quantize as wrong
from conformance.faults._gemm import next_one, next_wrapped, previous_wrapped

_DEGRADED = "fluent but degraded text; perplexity rises without an error"
_GARBAGE = "loads and runs, output is garbage"
_TIES = "one step on exact ties only; invisible in a model"
_NEAR = "one step on what lies within an ULP of a tie; invisible in a model"

ROUNDING = (
    Fault(
        "round-half-away",
        "ties away from zero (roundf, libdevice.round)",
        _TIES,
        "round ties to even (rint, cvt.rni)",
        wrong.rounded(wrong.half_away),
        (
            "https://github.com/llvm/torch-mlir/pull/3569",
            "https://github.com/microsoft/onnxruntime/issues/25045",
            "https://github.com/tenstorrent/tt-metal/issues/56525",
        ),
        kind="precision",
        trigger="x * inverse = n + 0.5 with n even: `x=ties`; hides in random activations",
    ),
    Fault(
        "round-half-up",
        "floor(x * inverse + 0.5)",
        _TIES,
        "round ties to even",
        wrong.rounded(wrong.half_up),
        kind="precision",
        trigger="x * inverse = n + 0.5 with n even: `x=ties`; hides in random activations",
    ),
    Fault(
        "round-truncate",
        "cut toward zero: a cast to an integer",
        "every value is up to a step too small: degraded",
        "round before the cast",
        wrong.rounded(np.trunc),
        (
            "https://github.com/sgl-project/sglang-jax/pull/1598",
            "https://github.com/tenstorrent/tt-metal/issues/51304",
        ),
        kind="precision",
        trigger="x * inverse with a fraction above 0.5",
    ),
    Fault(
        "round-half-then-truncate",
        "trunc(x * inverse + 0.5): half is added and the sum cast to an integer",
        "negative values are up to a step too small in size; positive ones are right: degraded",
        "round to nearest before the cast: rint, or copysign(0.5, x) for a half",
        wrong.rounded(wrong.half_then_truncate),
        kind="precision",
        trigger="a negative x whose code has a fraction above 0.5; hides in activations of 0 and more",
    ),
    Fault(
        "round-floor",
        "floor(x * inverse)",
        "every value is up to a step too low: degraded",
        "round to nearest",
        wrong.rounded(np.floor),
        kind="precision",
        trigger="a negative x that is no whole step, or a fraction above 0.5",
    ),
)

EXTREMES = (
    Fault(
        "extremes-of-tensor",
        "the extremes of all rows for each of them",
        "tokens without outliers lose their bits: degraded",
        "reduce along the row alone",
        wrong.quantized(wrong.of_tensor),
        (
            "https://github.com/vllm-project/compressed-tensors/pull/393",
            "https://github.com/pytorch/executorch/pull/22432",
        ),
        kind="groups",
        trigger="two rows with different extremes; hides in one row",
    ),
    *(
        Fault(
            f"extremes-of-first-{tile}",
            f"the extremes of the first {tile} elements of a row; what is larger behind is clamped",
            "outliers in the later channels are cut: degraded",
            "reduce over all tiles of the row before the first code",
            wrong.of_first_tile(tile),
            kind="tails",
            trigger=f"K above {tile} and the row's extreme behind element {tile}: `x=last`",
        )
        for tile in (32, 128, 512, 1024)
    ),
    Fault(
        "max-without-abs",
        "max(x) instead of max(|x|)",
        "rows whose extreme is negative are cut: degraded",
        "take the absolute value before the maximum",
        wrong.quantized(wrong.without_negatives),
        kind="scales",
        trigger="a row whose largest magnitude is negative",
    ),
    Fault(
        "range-without-zero",
        "low and high of the row alone, 0 not among them",
        "rows of one sign have other steps, and their zero point is clamped",
        "take low <= 0 <= high",
        wrong.quantized(wrong.without_zero),
        kind="zeros",
        trigger="rule minmax and a row of one sign: `x=holes`; hides in rows with both signs",
    ),
)

SCALES = (
    Fault(
        "levels-128",
        "absmax / 128, and codes by it",
        "the largest value of each row is clamped, all steps are 0.8 % smaller",
        "the largest code is 127",
        wrong.divided_by(128.0, ("scale", "full", "absmax")),
        kind="scales",
        trigger="a symmetric rule and a row that is not 0",
    ),
    Fault(
        "levels-127.5",
        "absmax / 127.5 where 127 is meant (torchao's symmetric default)",
        "steps are 0.4 % smaller, and a positive extreme is clamped",
        "the range of the rule scale is -127..127",
        wrong.divided_by(127.5, ("scale", "absmax")),
        kind="scales",
        trigger="rule scale or absmax and a row that is not 0",
    ),
    Fault(
        "levels-127",
        "absmax / 127 where 127.5 is meant",
        "steps are 0.4 % larger",
        "rule full has 255 steps from end to end",
        wrong.divided_by(127.0, ("full",)),
        kind="scales",
        trigger="rule full and a row that is not 0",
    ),
    Fault(
        "scale-of-next-row",
        "right codes, decoded with scale and zero of the next row",
        _DEGRADED,
        "store the scale at its own row",
        wrong.quantized(wrong.decoded_by(next_one)),
        kind="groups",
        trigger="two rows with different extremes; the last one keeps its own",
    ),
    *(
        Fault(
            f"scale-of-{which}-row-wrapped",
            f"right codes, decoded with scale and zero of the {which} row; the {end} one takes those of the "
            f"{other}",
            _DEGRADED,
            "store the scale at its own row",
            wrong.quantized(wrong.decoded_by(change)),
            kind="groups",
            trigger="two rows with different extremes; hides in one row",
        )
        for which, end, other, change in (
            ("next", "last", "first", next_wrapped),
            ("previous", "first", "last", previous_wrapped),
        )
    ),
    Fault(
        "codes-by-scale-of-next-row",
        "codes by the inverse and zero of the next row, decoded with the right scale",
        _DEGRADED,
        "load the scale of the row itself",
        wrong.quantized(wrong.coded_by_next),
        kind="groups",
        trigger="two rows with different extremes; the last one keeps its own",
    ),
    *(
        Fault(
            f"scale-through-{name}",
            f"the scale rounded to {name}, and codes by it",
            "a relative error of half an ULP of that dtype; inf or 0 where it cannot hold the scale",
            "compute scales in float32 whatever the dtype of the activations",
            wrong.scale_through(dtype),
            ("https://github.com/pytorch/ao/pull/4326",),
            kind="precision",
            trigger=f"a scale that {name} cannot hold",
        )
        for name, dtype in (("fp16", torch.float16), ("bf16", torch.bfloat16))
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
        for name, dtype in (("fp16", torch.float16), ("bf16", torch.bfloat16))
    ),
    Fault(
        "scale-by-reciprocal",
        "absmax * fp32(1 / 127) instead of fp32(absmax / 127); likewise for 127.5 and 255",
        "1 ULP of float32 in some scales",
        "divide; torch multiplies by the reciprocal when a CUDA tensor is divided by a number",
        wrong.quantized(wrong.scale_by_reciprocal),
        kind="precision",
        trigger="an absmax whose quotient rounds the other way, float32 output",
    ),
    Fault(
        "scale-at-least-eps",
        "scale = max(scale, 2**-23)",
        "rows below 1.5e-5 lose bits or vanish",
        "leave the scale as it is; torchao's Int8Tensor has this least one",
        wrong.at_least(2.0**-23),
        kind="scales",
        trigger="a row with an absmax below 1.5e-5: `x=tiny`; hides in ordinary activations",
    ),
)

CODES = (
    Fault(
        "clamp-missing",
        "codes modulo 256",
        "the largest values of a row come out with the wrong sign",
        "clamp before the cast",
        wrong.quantized(wrong.wrapping),
        kind="bits",
        trigger="a code of 128: the positive extreme with rule full, or ties at both ends with minmax",
    ),
    Fault(
        "codes-by-division",
        "rint(x / scale) instead of rint(x * fp32(1 / scale))",
        _NEAR,
        "multiply by the rounded inverse, or take the division for the format's",
        wrong.quantized(wrong.by_division),
        kind="precision",
        trigger="x within an ULP of a tie: `x=near` in float32; hides in random activations",
    ),
    Fault(
        "codes-by-127-over-absmax",
        "rint(x * fp32(127 / absmax)), as vLLM's scaled_int8_quant; 127.5 with rule full",
        _NEAR,
        "multiply by the inverse that the rule has, or take this for the format's",
        wrong.inverse(wrong.by_absmax),
        kind="precision",
        trigger="x within an ULP of a tie: `x=near` in float32; hides in random activations",
    ),
    *(
        Fault(
            f"inverse-one-ulp-{'high' if up else 'low'}",
            f"an inverse one ULP too {'high' if up else 'low'} (rcp.approx, a fast division)",
            _NEAR,
            "divide correctly rounded: tl.div_rn, __fdiv_rn",
            wrong.one_ulp(up),
            kind="precision",
            trigger="x within an ULP of a tie: `x=ties`, `x=near` in float32; hides in random activations",
        )
        for up in (False, True)
    ),
    Fault(
        "absmax-decoded-by-division",
        "code * absmax / 127 instead of code * absmax * fp32(1 / 127)",
        "1 ULP of float32 here and there",
        "multiply by the constant, as bitsandbytes does",
        wrong.absmax_by_division,
        kind="precision",
        trigger="rule absmax and float32 output; hides in 16 bits",
    ),
)

ZEROS = (
    Fault(
        "zero-truncated",
        "zero = least - trunc(low / scale)",
        "rows are moved by a step; one end is clamped",
        "round the zero point to nearest",
        wrong.quantized(wrong.zero_truncated),
        kind="zeros",
        trigger="rule minmax and a low end whose code has a fraction above 0.5",
    ),
    Fault(
        "zero-ignored",
        "code * scale",
        _GARBAGE,
        "subtract the zero point",
        wrong.decoded_with(np.zeros_like),
        kind="zeros",
        trigger="rule minmax and a zero point other than 0",
    ),
    Fault(
        "zero-sign-flipped",
        "(code + zero) * scale",
        _GARBAGE,
        "subtract the zero point",
        wrong.decoded_with(np.negative),
        kind="zeros",
        trigger="rule minmax and a zero point other than 0",
    ),
)

FAULTS = ROUNDING + EXTREMES + SCALES + CODES + ZEROS
