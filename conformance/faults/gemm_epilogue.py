"""Faults of scaling an int8 matrix product: each a wrong decoder of ``_gemm.py``."""

from __future__ import annotations

import numpy as np
import torch

from conformance.faults import Fault
from conformance.faults import _gemm as wrong
from conformance.faults.gemm_result import RESULT

_DEGRADED = "fluent but degraded text; perplexity rises without an error"
_GARBAGE = "loads and runs, output is garbage"
_LAST_BIT = "1 ULP of float32 here and there; shows in 16 bits only beside a tie"

ZEROS = (
    Fault(
        "zero-sign-flipped",
        "acc + zero * sums: off by 2 * zero * sums * scales",
        _GARBAGE,
        "subtract: (a - zero) * b is a * b - zero * b",
        wrong.zeros(np.negative),
        ("https://github.com/ARM-software/ComputeLibrary/issues/1033",),
        kind="zeros",
        trigger="a zero point other than 0 and a channel whose codes do not add up to 0",
    ),
    Fault(
        "zero-ignored",
        "acc without zero * sums",
        _GARBAGE,
        "subtract the zero point times the sums of the weight's codes",
        wrong.zeros(np.zeros_like),
        kind="zeros",
        trigger="a zero point other than 0; hides in symmetric activations",
    ),
    Fault(
        "zero-sums-unscaled",
        "acc - sums: the sums of the weight's codes, not multiplied by the zero point",
        _GARBAGE,
        "multiply the sums by the zero point, once",
        wrong.zeros(np.ones_like),
        ("https://github.com/vllm-project/vllm/pull/10292",),
        kind="zeros",
        trigger="a zero point other than 1; hides in symmetric activations",
    ),
    Fault(
        "zero-other-signedness",
        "a negative zero point read as uint8, or one above 127 as int8: off by 256",
        "tokens with such a zero are garbage",
        "keep zero points in int32",
        wrong.zeros(lambda z: np.where(z < 0, z + 256, np.where(z > 127, z - 256, z))),
        ("https://github.com/intel/auto-round/pull/2273",),
        kind="zeros",
        trigger="a zero point below 0 or above 127; hides in 0..127",
    ),
    Fault(
        "zero-of-next-token",
        "the zero point of the next row",
        _DEGRADED,
        "index zero points like scales",
        wrong.zeros(wrong.next_one),
        kind="zeros",
        trigger="two tokens with different zero points; hides per tensor and in one row",
    ),
    Fault(
        "zero-of-first-token",
        "zero[0] for every row",
        _DEGRADED,
        "the activations have zero points by token",
        wrong.zeros(wrong.first_one),
        kind="zeros",
        trigger="two tokens with different zero points; hides per tensor and in one row",
    ),
)

SCALES = (
    Fault(
        "scales-swapped",
        "a_scale by column and w_scale by row (as many tokens as channels hide the shape error)",
        "garbage where M = N",
        "activations scale rows, weights columns",
        wrong.scales_swapped,
        kind="groups",
        trigger="M = N, scales by token or channel that differ; any other shape is an error instead",
    ),
    *(
        Fault(
            f"{side}-scale-of-{which}",
            f"{side}_scale[{index}] for {what} {letter}",
            _DEGRADED,
            f"index the scale by the {what} itself",
            wrong.field(f"{side}_scale", change),
            kind="groups",
            trigger=f"two {what}s whose scales differ; hides per tensor",
        )
        for side, what, letter in (("a", "token", "m"), ("w", "channel", "n"))
        for which, index, change in (
            ("next", f"{letter} + 1", wrong.next_one),
            ("next-wrapped", f"({letter} + 1) mod {letter.upper()}", wrong.next_wrapped),
            ("previous-wrapped", f"({letter} - 1) mod {letter.upper()}", wrong.previous_wrapped),
            ("first", "0", wrong.first_one),
        )
    ),
    *(
        Fault(
            f"{side}-scale-ignored",
            f"{side}_scale taken as 1",
            _GARBAGE,
            "multiply by both scales",
            wrong.field(f"{side}_scale", np.ones_like),
            kind="scales",
            trigger="a scale other than 1",
        )
        for side in ("a", "w")
    ),
    Fault(
        "absmax-as-scale",
        "acc * (a_absmax * w_absmax) without 1 / 127**2",
        "16129 times too large",
        "absmax / 127 is the scale",
        wrong.absmax_as_scale,
        kind="scales",
        trigger="order absmax and a product other than 0",
    ),
    Fault(
        "absmax-constant-6.200124e-05",
        "y * 6.200124e-05 where 1 / 127**2 = 6.200012e-05 is meant",
        "1.8e-5 too large: invisible in 16 bits but for a rounding here and there",
        "the constant is 1 / 16129; bitsandbytes' PyTorch code has the digits swapped",
        wrong.arithmetic(
            lambda model: (
                None
                if model.order != "absmax"
                else wrong.plus_bias(
                    model,
                    model.corrected().astype(np.float32)
                    * (model.a_scale[:, None] * model.w_scale[None, :])
                    * np.float32(6.200124e-05),
                )
            )
        ),
        kind="scales",
        trigger="order absmax in float32; in 16 bits only beside a tie",
    ),
    Fault(
        "product-truncated-to-integer",
        "the scaled product cut to a whole number before bias and output",
        _GARBAGE,
        "scale in float32; only a requantized output is an integer",
        wrong.before_bias(wrong.whole(np.trunc)),
        kind="scales",
        trigger="a scaled product with a fraction",
    ),
)

BIAS = (
    Fault(
        "bias-missing",
        "y without the bias",
        _DEGRADED,
        "add the bias after the scales",
        wrong.with_bias(lambda model, bias: model.scaled()),
        ("https://github.com/pytorch/executorch/pull/20045",),
        kind="bias",
        trigger="a bias other than 0; hides in layers without one",
    ),
    Fault(
        "bias-twice",
        "y + bias + bias",
        _DEGRADED,
        "add it in the kernel or after it, not in both",
        wrong.with_bias(lambda model, bias: model.scaled() + bias + bias),
        kind="bias",
        trigger="a bias other than 0",
    ),
    Fault(
        "bias-before-scales",
        "(acc + bias) * scales: the bias is scaled too",
        "the bias all but vanishes",
        "add the bias after the scales",
        wrong.with_bias(lambda model, bias: wrong.scale(model, model.corrected().astype(np.float32) + bias)),
        (
            "https://github.com/vllm-project/vllm/pull/31676",
            "https://github.com/pytorch/executorch/pull/20655",
        ),
        kind="bias",
        trigger="a bias other than 0 and scales other than 1",
    ),
    Fault(
        "bias-by-row",
        "bias[m] instead of bias[n] (as many tokens as channels hide the shape error)",
        "garbage where M = N",
        "the bias belongs to the outputs",
        wrong.with_bias(wrong.bias_by_row),
        kind="bias",
        trigger="M = N of 2 and more, and a bias that varies",
    ),
    Fault(
        "bias-of-next-channel",
        "bias[n + 1]",
        _DEGRADED,
        "index the bias by the channel itself",
        wrong.field("bias", wrong.next_one),
        kind="bias",
        trigger="two channels whose bias differs; the last one keeps its own",
    ),
    *(
        Fault(
            f"bias-through-{name}",
            f"the bias rounded to {name} first",
            "the last bits of the bias; invisible in that output dtype but for a rounding here and there",
            "widen the bias to float32",
            wrong.field("bias", lambda bias, dtype=dtype: wrong.through(dtype, bias)),  # type: ignore[misc]
            kind="bias",
            trigger=f"a bias that {name} cannot hold, and float32 output",
        )
        for name, dtype in (("fp16", torch.float16), ("bf16", torch.bfloat16))
    ),
    Fault(
        "bias-fused",
        "the last product and the bias with one rounding (a fused multiply-add)",
        _LAST_BIT,
        "compile without contraction, or take the fused result for the format's; vLLM and bitsandbytes fuse",
        wrong.with_bias(wrong.bias_fused),
        kind="bias",
        trigger="float32 output, and a last product that rounds; hides in 16 bits and in scales of few bits",
    ),
    Fault(
        "bias-after-rounding",
        "dtype(dtype(y) + dtype(bias)): rounded before the bias and after it",
        "1 ULP of the output dtype in every other element",
        "add the bias in float32, before the one rounding; torchao's int8 layers do it after",
        wrong.bias_after_rounding,
        kind="bias",
        trigger="16-bit output and a bias; hides in float32",
    ),
    Fault(
        "result-through-fp16-before-bias",
        "fp16(y) + bias",
        "loses bits, inf above 65504",
        "keep float32 until the one rounding at the store",
        wrong.with_bias(
            lambda model, bias: wrong.through(torch.float16, model.scaled()).astype(np.float32) + bias
        ),
        kind="bias",
        trigger="a bias, and a product that float16 cannot hold",
    ),
)

PRECISION = (
    Fault(
        "activation-scale-first",
        "fp32(fp32(acc * a_scale) * w_scale) in another order's place",
        _LAST_BIT,
        "multiply in the order that the format names",
        wrong.order("a-w"),
        kind="precision",
        trigger="order w-a or product, float32 output, scales of many bits",
    ),
    Fault(
        "weight-scale-first",
        "fp32(fp32(acc * w_scale) * a_scale) in another order's place",
        _LAST_BIT,
        "multiply in the order that the format names",
        wrong.order("w-a"),
        kind="precision",
        trigger="order a-w or product, float32 output, scales of many bits",
    ),
    Fault(
        "scales-multiplied-first",
        "acc * fp32(a_scale * w_scale) in another order's place",
        _LAST_BIT + "; scales whose product underflows give 0",
        "multiply in the order that the format names",
        wrong.order("product"),
        kind="precision",
        trigger="order a-w or w-a, float32 output, scales of many bits",
    ),
    *(
        Fault(
            f"{side}-scale-through-{name}",
            f"{side}_scale rounded to {name} first",
            "a relative error of half an ULP of that dtype in whole rows or columns",
            "keep scales in float32",
            wrong.field(f"{side}_scale", lambda scale, dtype=dtype: wrong.through(dtype, scale)),  # type: ignore[misc]
            ("https://github.com/pytorch/ao/pull/4326",) if name == "bf16" else (),
            kind="precision",
            trigger=f"a scale that {name} cannot hold",
        )
        for side in ("a", "w")
        for name, dtype in (("fp16", torch.float16), ("bf16", torch.bfloat16))
    ),
    Fault(
        "accumulator-through-fp16",
        "fp16(acc) * scales",
        "sums above 2048 lose bits, those above 65504 become inf",
        "int32 to float32, then the scales",
        wrong.sums_as(lambda total: wrong.through(torch.float16, total.astype(np.float64))),
        kind="precision",
        trigger="a sum above 2048 with more than 11 bits",
    ),
    Fault(
        "accumulator-through-bf16",
        "bf16(acc) * scales",
        "sums above 256 keep 8 bits",
        "int32 to float32, then the scales",
        wrong.sums_as(lambda total: wrong.through(torch.bfloat16, total.astype(np.float64))),
        kind="precision",
        trigger="a sum above 256 with more than 8 bits",
    ),
    Fault(
        "accumulator-truncated",
        "int32 to float32 rounded toward zero",
        "the last bit of sums beyond 2**24",
        "convert to nearest (cvt.rn)",
        wrong.sums_as(wrong.toward_zero),
        kind="precision",
        trigger="a sum beyond 2**24 of more than 24 bits: `acc=ties` or K above 1024; hides in small sums",
    ),
    Fault(
        "zero-in-floats",
        "fp32(acc) - fp32(fp32(zero) * fp32(sums))",
        "the last bits where sums are beyond 2**24",
        "correct in integers, then convert",
        wrong.zero_in_floats,
        kind="precision",
        trigger="a zero point, and acc or zero * sums beyond 2**24; hides in small K",
    ),
    Fault(
        "zero-after-scales",
        "acc * scales - (zero * sums) * scales",
        "cancellation: several ULP where both terms are large",
        "correct in integers, then scale",
        wrong.zero_after_scales,
        kind="precision",
        trigger="a zero point and products that round",
    ),
)

FAULTS = ZEROS + SCALES + RESULT + BIAS + PRECISION
