"""What the device gives a weight's traffic: kernels that load its bytes and store as many as its output has.

They decode nothing. The words are loaded once, in order, each with the part of the other tensors (scales,
zeros, tables) that is as far along; every output is stored once, made of the word that a decoder would make
it of and at its place. So the pattern is the format's, and only the arithmetic and lookups are missing. In
activation order, where each row of outputs may be of any of several groups, each loads its scales and zeros
too. Of several launch parameters the fastest counts.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import triton

from benchmarks.limit_kernels import across_kernel, down_kernel, scattered_kernel
from kernels._lanes import side_by_side
from kernels._packed import PackedWeight, named_tensors
from kernels.gptq import GPTQWeight
from kernels.squeezellm import SqueezeLLMWeight

Call = Callable[[], torch.Tensor]
Launch = Mapping[str, int]

# The tensor that holds the codes, by its field's name.
_CODES = ("packed", "codes", "qweight")

# Fewer than 128 lanes were never the fastest.
ACROSS: tuple[Launch, ...] = tuple(
    {"lanes": 32 * warps * per_thread, "num_warps": warps}
    for warps, per_thread in ((1, 4), (2, 2), (2, 4), (4, 1), (4, 2), (4, 4))
)
DOWN: tuple[Launch, ...] = tuple(
    {"lanes": 32 * warps * per_thread, "num_warps": warps}
    for warps, per_thread in itertools.product((1, 2, 4), (4, 8))
)
SCATTERED: tuple[Launch, ...] = tuple(
    {"lanes": 32 * warps * per_thread, "num_warps": warps}
    for warps, per_thread in ((1, 4), (1, 8), (1, 16), (2, 8), (2, 16), (4, 8))
)


def _split(weight: PackedWeight) -> tuple[torch.Tensor, torch.Tensor]:
    """The codes, and all other tensors as int32 [n] in memory of their own (at least one)."""
    tensors = dict(named_tensors(weight))
    codes = next(tensors.pop(name) for name in _CODES if name in tensors)
    raw = [tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in tensors.values()]
    joined = torch.cat(raw) if raw else codes.new_zeros(0, dtype=torch.uint8)
    padded = torch.zeros(-(-max(joined.numel(), 1) // 4) * 4, dtype=torch.uint8, device=codes.device)
    padded[: joined.numel()] = joined
    return codes, padded.view(torch.int32)


def _shares(n_others: int, n_words: int) -> dict[str, int]:
    """How the other tensors are spread over the words: many words to one of them, or the reverse."""
    ratio = max(1, n_words // n_others)
    places = triton.cdiv(n_words, ratio)
    return {"n_others": n_others, "n_places": places, "RATIO": ratio, "EACH": triton.cdiv(n_others, places)}


def _across(weight: PackedWeight, out: torch.Tensor, launch: Launch) -> Call:
    codes, others = _split(weight)
    words = codes.reshape(-1)
    if words.element_size() == 1 and words.numel() % 4 == 0:
        words = words.view(torch.int32)
    n_words = words.numel()
    grid = (triton.cdiv(n_words, launch["lanes"]),)
    shares = _shares(others.numel(), n_words)

    def call() -> torch.Tensor:
        across_kernel[grid](
            out,
            words,
            others,
            n_words,
            OUTPUTS=out.numel() // n_words,
            LANES=launch["lanes"],
            num_warps=launch["num_warps"],
            **shares,
        )
        return out

    return call


def _down(weight: GPTQWeight | SqueezeLLMWeight, out: torch.Tensor, launch: Launch) -> Call:
    words, others = _split(weight)
    together, outputs = (3, 32) if weight.bits == 3 else (1, 32 // weight.bits)
    n_packed, n_cols = words.shape[0] // together, words.shape[1]
    grid = (triton.cdiv(n_cols, launch["lanes"]), n_packed)
    shares = _shares(others.numel(), n_packed * n_cols)

    def call() -> torch.Tensor:
        down_kernel[grid](
            out,
            words,
            others,
            n_cols,
            WORDS=together,
            OUTPUTS=outputs,
            LANES=launch["lanes"],
            num_warps=launch["num_warps"],
            **shares,
        )
        return out

    return call


def _scattered(weight: GPTQWeight, out: torch.Tensor, launch: Launch) -> Call:
    words, n_zero_words = weight.qweight, weight.qzeros.shape[1]
    n_packed, n_cols = words.shape
    grid = (triton.cdiv(n_cols, launch["lanes"]), n_packed)
    outputs = 32 // weight.bits

    def call() -> torch.Tensor:
        scattered_kernel[grid](
            out,
            words,
            weight.scales,
            weight.qzeros,
            weight.g_idx,
            n_cols,
            n_zero_words,
            OUTPUTS=outputs,
            SIDE=min(outputs, side_by_side(out.dtype)),
            LANES=launch["lanes"],
            num_warps=launch["num_warps"],
        )
        return out

    return call


def candidates(weights: Sequence[PackedWeight], outs: Sequence[torch.Tensor]) -> list[list[Call]]:
    """Calls to time, for each choice of launch parameters: one a weight, each with its output.

    Activation order at 3 bit, whose words share codes, is not among them.
    """
    first = weights[0]
    make: Callable[[Any, torch.Tensor, Launch], Call] = _across
    launches = ACROSS
    if isinstance(first, GPTQWeight) and first.g_idx is not None and first.n_groups > 1:
        make, launches = _scattered, SCATTERED
    elif isinstance(first, (GPTQWeight, SqueezeLLMWeight)):
        make, launches = _down, DOWN
    return [
        [make(weight, out, launch) for weight, out in zip(weights, outs, strict=True)] for launch in launches
    ]
