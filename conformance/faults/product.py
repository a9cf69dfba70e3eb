"""Wrong ways to multiply by a packed weight, as they show in the weight that a product reveals.

They are no wrong decoders of a format, so they are explanations of fused kernels alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from conformance.bits import to_float
from conformance.faults import Context, Fault
from conformance.verdict import Cause
from oracles.spec.awq import AWQModel
from oracles.spec.blockwise import BlockwiseModel
from oracles.spec.gptq import GPTQModel
from oracles.spec.rounding import round_to

# Depths of a K loop that are in use.
DEPTHS = (16, 32, 64, 128, 256)

BIAS = Cause(
    "bias-added",
    "y is not 0 for x = 0: a bias is added, or the accumulator does not begin at 0",
    "every token gets the same offset; perplexity rises without an error",
    "add the bias outside of the product under test; zero the accumulator, or the output before atomics",
)


def _transposed(ctx: Context) -> np.ndarray | None:
    values = ctx.model.values()
    if values.ndim != 2 or values.shape[0] != values.shape[1]:
        return None
    return np.ascontiguousarray(ctx.bits(ctx.model).T)


def _tail_dropped(depth: int, inner: int) -> Callable[[Context], np.ndarray | None]:
    def decode(ctx: Context) -> np.ndarray | None:
        bits = ctx.bits(ctx.model).copy()
        if bits.ndim != 2 or bits.shape[inner] % depth == 0:
            return None
        whole = bits.shape[inner] // depth * depth
        bits[(slice(None),) * inner + (slice(whole, None),)] = 0
        return bits

    return decode


def _zero_term_rounded(ctx: Context) -> np.ndarray | None:
    model: Any = ctx.model
    if not isinstance(model, GPTQModel | AWQModel) or getattr(model, "bits", 4) != 4:
        return None
    if ctx.dtype is torch.float32:
        return None
    scales = model.scales.astype(np.float64)
    term = to_float(round_to((8 - model.zeros) * scales, ctx.dtype), ctx.dtype)
    values = (model.codes - 8) * scales[model.group] + term[getattr(model, "zero_group", model.group)]
    values = values.T if getattr(model, "outputs_first", False) else values
    return round_to(np.ascontiguousarray(values), ctx.dtype)


def _blockwise_in(dtype: torch.dtype) -> Callable[[Context], np.ndarray | None]:
    def rounded(values: np.ndarray) -> np.ndarray:
        return to_float(round_to(values, dtype), dtype).astype(np.float32)

    def decode(ctx: Context) -> np.ndarray | None:
        if not isinstance(ctx.model, BlockwiseModel):
            return None
        model = ctx.model
        narrow = dataclasses.replace(model, absmax=rounded(model.absmax), codebook=rounded(model.codebook))
        return round_to(rounded(narrow.values()), ctx.dtype)

    return decode


ARITHMETIC = (
    Fault(
        "zero-term-rounded",
        "(code - 8) * scale + zero, where zero = (8 - z) * scale was rounded to the dtype of the activations",
        "a loss of precision; a weight that is exactly 0 is not",
        "keep the zero as an integer, or its product in float32",
        _zero_term_rounded,
        kind="precision",
        trigger="an asymmetric weight in float16 or bfloat16; hides where 8 - z is 0 or a power of two",
    ),
    *(
        Fault(
            f"absmax-in-{name}",
            f"table, absmax and weight are rounded to {name}, one after the other",
            f"a loss of precision: up to 2**-{bits - 1} of each of the three",
            "keep the table and the absmax in float32, and multiply them in it",
            _blockwise_in(dtype),
            kind="precision",
            trigger=f"an absmax of {bits} bits or more; hides behind {name} outputs of few bits",
        )
        for name, dtype, bits in (("float16", torch.float16, 12), ("bfloat16", torch.bfloat16, 9))
    ),
)


def tails(inner: int) -> tuple[Fault, ...]:
    """The faults of the last step over that axis of the weight."""
    return tuple(
        Fault(
            f"k-tail-dropped-{depth}",
            f"the last K mod {depth} input channels are never added: K // {depth} steps instead of "
            f"ceil(K / {depth})",
            "the last input channels do not count",
            "the number of steps is ceil(K / BLOCK_K), with a mask in the last one",
            _tail_dropped(depth, inner),
            kind="tails",
            trigger=f"K that is no multiple of {depth}; hides in the usual sizes",
        )
        for depth in DEPTHS
    )


def faults(inner: int) -> tuple[Fault, ...]:
    """The other faults of a product that sums over that axis of the weight."""
    swapped = Fault(
        "product-transposed",
        "x is multiplied by the transpose of the weight",
        "the layer computes another linear map; with a square weight no shape tells",
        "swap the strides of the weight, or [K, N] for [N, K]",
        _transposed,
        kind="order",
        trigger="a square weight; hides where K and N differ, which is an error there",
    )
    return (swapped, *ARITHMETIC)
