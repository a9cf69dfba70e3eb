"""Activations for the products of a fused kernel: how many tokens, and x of each of them."""

from __future__ import annotations

import math

import numpy as np
import torch

from conformance.randomness import raw_ints

# One token; tiles of 8, 16, 32, 64 and 128, whole and not.
TOKENS = (1, 2, 8, 16, 24, 33, 64, 128)
# Bounds of one more number of tokens, another for each case: a kernel may have a path for any.
DRAWN = (3, 256)
# Of these a case has 1, 33 and so many others where calls are slow.
ALWAYS, FEW = (1, 33), 3
# Bits of a full significand.
SIGNIFICANT = {torch.float16: 11, torch.bfloat16: 8, torch.float32: 24}
# Binades that full significands lie in, below 1.
BINADES = 4
# The largest sum of sizes that activations are scaled to.
SIZE = 16.0
# Exponents that leave activations normal numbers, their products with a code too.
EXPONENTS = {torch.float16: (-4, 14), torch.bfloat16: (-80, 100), torch.float32: (-80, 100)}


def tokens_of(label: str, *, few: bool = False) -> tuple[int, ...]:
    """:data:`TOKENS` and the one that is drawn for ``label``; with ``few`` some of these, others for each
    ``label``."""
    low, high = DRAWN
    others = [count for count in range(low, high) if count not in TOKENS]
    every = (*TOKENS, others[int(raw_ints(f"tokens/{label}", 1, len(others))[0])])
    if not few:
        return every
    rest = [count for count in every if count not in ALWAYS]
    first = int(raw_ints(f"few/{label}", 1, len(rest))[0])
    chosen = {rest[(first + i * len(rest) // FEW) % len(rest)] for i in range(FEW)}
    return tuple(count for count in every if count in ALWAYS or count in chosen)


def inputs(label: str, tokens: int, w: np.ndarray, dtype: torch.dtype) -> tuple[np.ndarray, ...]:
    """Each x float64 [M, K] that a product of so many tokens is tried with.

    Tokens are in turn sparse, dense with full significands, and dense with eight bits. One token takes
    three calls, one of each; more take one.

    Args:
        label: what is drawn is a function of it and the sizes.
        w: float64 [K, N], finite.
    """
    few = activations(label, tokens, w, dtype)
    full = _dense(label, tokens, w, dtype)
    single = one_term(label, tokens, w, dtype)
    if tokens == 1:
        return few, full, single
    x = few
    x[0::3], x[1::3] = single[0::3], full[1::3]
    return (x,)


def activations(label: str, tokens: int, w: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """x float64 [M, K]: eight bits each, either sign, scaled by a power of two so that the largest
    sum |x||w| is just under 16 (as near as the dtype lets it). A function of ``label`` and the sizes."""
    shape = (tokens, w.shape[0])
    drawn = raw_ints(f"activations/{label}/{tokens}", tokens * w.shape[0], 511) - 255
    return drawn.reshape(shape) / 256.0 * _scale(np.abs(w).sum(axis=0), dtype)


def one_term(label: str, tokens: int, w: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """x float64 [M, K] with one number in each token, of a full significand, scaled as the others.

    y has one term then, and so the bound of one: rounding x is beyond it, however large K is.
    """
    x = np.zeros((tokens, w.shape[0]))
    largest = np.abs(w).max(axis=1)
    usable = np.flatnonzero(largest)
    if not usable.size:
        return x
    rows = usable[raw_ints(f"rows/{label}/{tokens}", tokens, usable.size)]
    values = _full(f"one/{label}/{tokens}", tokens, dtype)
    for token, k in enumerate(rows):
        x[token, k] = values[token] * _scale(largest[k : k + 1], dtype)
    return x


def _dense(label: str, tokens: int, w: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    drawn = _full(f"full/{label}/{tokens}", tokens * w.shape[0], dtype).reshape(tokens, w.shape[0])
    return drawn * _scale(np.abs(w).sum(axis=0), dtype)


def _full(label: str, count: int, dtype: torch.dtype) -> np.ndarray:
    """float64 [count]: odd significands of the dtype's width, in the four binades below 1, either sign."""
    bits = SIGNIFICANT[dtype]
    half = 2 ** (bits - 1)
    significand = half + (raw_ints(f"{label}/bits", count, half) | 1)
    rest = raw_ints(f"{label}/rest", count, 2 * BINADES)
    return np.where(rest % 2, -1.0, 1.0) * significand * 2.0 ** -(bits + rest // 2)


def _scale(sizes: np.ndarray, dtype: torch.dtype) -> float:
    """The power of two that takes the largest size to just under :data:`SIZE`, as far as the dtype goes."""
    largest = float(sizes.max(initial=0.0))
    if not largest:
        return 1.0
    low, high = EXPONENTS[dtype]
    return 2.0 ** min(high, max(low, math.floor(math.log2(SIZE / largest))))
