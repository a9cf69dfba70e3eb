"""Faults of an fp8 matrix product: each a wrong decoder of ``_gemm_fp8.py``."""

from __future__ import annotations

import torch

from conformance.faults import Fault
from conformance.faults import _gemm_fp8 as wrong
from conformance.faults import gemm_fp8_scales as scales

_DEGRADED = "fluent but degraded text; perplexity rises without an error"
_GARBAGE = "loads and runs, output is garbage"
_HALVES = (("fp16", torch.float16), ("bf16", torch.bfloat16))

CODES = (
    Fault(
        "codes-read-as-e4m3fnuz",
        "bytes of e4m3fn read as e4m3fnuz: bias 8, so that products are a quarter; 0x80 is NaN",
        "a quarter of each product, or NaN",
        "the dtype says which e4m3 it is; gfx942 has fnuz units: double the scale and make 0x80 0x00",
        wrong.codes_read_by(wrong.FNUZ),
        kind="bits",
        trigger="a product other than 0",
    ),
    Fault(
        "codes-read-as-e5m2",
        "bytes of e4m3fn read as e5m2",
        _GARBAGE,
        "take the dtype from the tensor",
        wrong.codes_read_by(wrong.E5M2),
        kind="bits",
        trigger="a product other than 0",
    ),
    Fault(
        "subnormals-with-implicit-one",
        "codes with exponent 0 as (1 + m / 8) * 2**-7: 0 is 2**-7",
        "small codes and zeros are noise",
        "exponent 0 has no implicit one, and the exponent of 1",
        wrong.codes_read_by(wrong.IMPLICIT_ONE),
        kind="bits",
        trigger="a code of exponent 0, zero among them, against a code other than 0",
    ),
    Fault(
        "subnormals-flushed",
        "codes with exponent 0 as 0",
        "the smallest weights of each channel are lost",
        "e4m3 has subnormal numbers, multiples of 2**-9",
        wrong.codes_read_by(wrong.FLUSHED),
        kind="bits",
        trigger="a code of 0x01 to 0x07 of either sign: `a=sub`, `a=ramp`; hides in whole numbers",
    ),
    Fault(
        "nan-code-is-480",
        "0x7F as 480, 0xFF as -480",
        "NaN goes unseen",
        "these two codes are NaN; Triton's interpreter reads them as 480",
        wrong.codes_read_by(wrong.NAN_480),
        kind="bits",
        trigger="a NaN code: `a=nan`; hides in finite operands",
    ),
    Fault(
        "sign-ignored",
        "codes without their sign bit",
        _GARBAGE,
        "bit 7 is the sign",
        wrong.codes_read_by(wrong.UNSIGNED),
        kind="bits",
        trigger="a negative code against a code other than 0",
    ),
    *(
        Fault(
            f"{side}-transposed",
            f"{side} read with its axes exchanged (a square one hides the shape error)",
            "garbage where a matrix is square",
            "take strides from the tensor; `torch._scaled_mm` wants the weight column-major",
            wrong.operand_transposed(side),
            kind="order",
            trigger=f"{shape} of 2 and more; any other shape is an error instead",
        )
        for side, shape in (("a", "M = K"), ("b", "N = K"))
    ),
    Fault(
        "result-transposed",
        "out[n, m] stored where out[m, n] is meant",
        "garbage where as many tokens as outputs",
        "a column-major product gives the transposed result",
        wrong.result_transposed,
        kind="order",
        trigger="M = N of 2 and more; any other shape is an error instead",
    ),
)

SUMS = (
    *(
        Fault(
            f"k-tail-skipped-{tile}",
            f"the last K % {tile} products left out" + (", a short last block" if tile == 128 else ""),
            _DEGRADED,
            "round the number of tiles up, and mask",
            wrong.tail_skipped(tile),
            kind="tails",
            trigger=f"K that is no multiple of {tile}; hides in layers of today",
        )
        for tile in (16, 32, 64, 128)
    ),
    Fault(
        "k-last-block-only",
        "the sum of the last 128 products: an accumulator that each block of K begins anew",
        _GARBAGE,
        "add to the accumulator",
        wrong.inner(wrong.last_block_only),
        kind="tails",
        trigger="K above 128",
    ),
    *(
        Fault(
            f"sum-{name}",
            f"products added one after another in {name}",
            "sums beyond 2048 (256) lose bits: degraded",
            "accumulate in float32",
            wrong.summed_in(dtype),
            kind="sums",
            trigger=f"a sum that {name} cannot hold",
        )
        for name, dtype in _HALVES
    ),
    *(
        Fault(
            f"accumulator-through-{name}",
            f"sums rounded to {name} before the scales",
            "sums keep 11 (8) bits; inf beyond 65504 in fp16",
            "scale the float32 sum",
            wrong.sums_through(dtype),
            kind="precision",
            trigger=f"a sum that {name} cannot hold",
        )
        for name, dtype in _HALVES
    ),
)

FAULTS = CODES + SUMS + scales.FAULTS
