"""How far a right matrix product may be from the exact one. Derived in ``docs/gemm-bounds.md``.

For a sum of n products in any order, with unit roundoff u of the accumulator,
|error| <= gamma(n, u) * sum |x||w|, gamma(n, u) = n u / (1 - n u); then come the scale of the weight, the
partial sums of a split K and the rounding of the output.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import torch

# Unit roundoff (round to nearest) and smallest subnormal number.
UNIT = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float32: 2.0**-24}
SUBNORMAL = {torch.float16: 2.0**-24, torch.bfloat16: 2.0**-133, torch.float32: 2.0**-149}
LARGEST = {dtype: float(torch.finfo(dtype).max) for dtype in UNIT}
# Below it a float32 or bfloat16 unit may flush to zero, as AVX512-BF16 does.
FLUSHED = 2.0**-126
# Matrix units align the terms of a block to the largest and cut the rest off, without rounding.
TRUNCATING = 2.0**-22
# Roundings between a weight that is scaled first and one whose scale is applied to a product or a sum: two
# factors at most (llm_int8: absmax and 1/127), once in the weight that is given and once in the kernel.
SCALINGS = 4


@dataclasses.dataclass(frozen=True)
class Accumulation:
    """How a kernel may sum.

    Attributes:
        dtype: of the accumulator.
        splits: partial sums over K that are rounded to the output dtype and added in it; 1 for none.
        truncating: float32 sums are those of a matrix unit, which truncates.
        rounded_terms: each product is rounded to the output dtype before it is added.
    """

    dtype: torch.dtype = torch.float32
    splits: int = 1
    truncating: bool = False
    rounded_terms: bool = False

    @property
    def unit(self) -> float:
        return TRUNCATING if self.truncating and self.dtype is torch.float32 else UNIT[self.dtype]

    def __str__(self) -> str:
        name = str(self.dtype).removeprefix("torch.")
        words = f"{name} accumulation in any order"
        if self.truncating and self.dtype is torch.float32:
            words += ", truncating"
        if self.rounded_terms:
            words += ", rounded products"
        return words + (f", {self.splits} partial sums" if self.splits > 1 else "")


FLOAT32 = Accumulation()


@dataclasses.dataclass(frozen=True)
class Bounded:
    """The exact product float64 [M, N] and how far a right one may be from it, float64 [M, N].

    ``bound`` is inf where nothing can be said: n u >= 1, or a sum that may overflow the output.
    """

    exact: np.ndarray
    bound: np.ndarray


def gamma(n: int, unit: float) -> float:
    """n u / (1 - n u); inf where that means nothing."""
    return n * unit / (1 - n * unit) if n * unit < 1 else math.inf


def product(x: np.ndarray, w: np.ndarray, out: torch.dtype, how: Accumulation | None = None) -> Bounded:
    """The exact x @ w and the bound of a right product.

    Args:
        x: float64 [M, K], finite, exact values of the activations.
        w: float64 [K, N], finite, exact values of the weight as it is multiplied.
        out: dtype of the output.
        how: float32 accumulation without a split if None.

    Raises:
        ValueError: shapes that do not fit, or less than one partial sum.
    """
    how = how or FLOAT32
    if x.ndim != 2 or w.ndim != 2 or x.shape[1] != w.shape[0]:
        raise ValueError(f"x and w: expected [M, K] and [K, N], found {list(x.shape)} and {list(w.shape)}")
    if how.splits < 1:
        raise ValueError(f"splits: expected at least 1, found {how.splits}")
    exact = x @ w
    size = np.abs(x) @ np.abs(w)
    # Adding a zero is exact: other terms alone cost a rounding.
    n_terms = np.count_nonzero(x, axis=1)[:, None]
    with np.errstate(invalid="ignore", over="ignore"):
        # What a scale that is applied elsewhere changes of the terms, in float32.
        scaled = _times(gamma(SCALINGS, UNIT[torch.float32]), size)
        scaled = scaled + np.abs(x).sum(axis=1, keepdims=True) * SUBNORMAL[torch.float32]
        size = size + scaled
        # What rounding the terms adds, to the sum and to the sizes that are then added up.
        terms = UNIT[out] * size + n_terms * SUBNORMAL[out] / 2 if how.rounded_terms else 0.0
        summed = _times(_gammas(_in_blocks(n_terms, x.shape[1], how), how.unit), size + terms)
        summed = summed + terms + n_terms * _lost(how.dtype) + scaled
        if how.splits > 1:
            parts = np.minimum(how.splits, n_terms)
            summed = summed + _times(_gammas(parts, UNIT[out]), size + summed) + parts * SUBNORMAL[out] / 2
        error = summed
        if out is not how.dtype:
            error = error + UNIT[out] * (np.abs(exact) + summed) + SUBNORMAL[out] / 2
        # The reference is itself a sum, in float64.
        error = error + _times(gamma(x.shape[1], 2.0**-53), size)
        # Partial sums may be as large as the sum of the sizes.
        limit = min(LARGEST[out], LARGEST[how.dtype])
        error = np.where(size + error < limit, error, np.inf)
    return Bounded(exact, error)


def _gammas(counts: np.ndarray, unit: float) -> np.ndarray:
    """:func:`gamma` of each of [M, 1]."""
    return np.array([[gamma(int(n), unit)] for n in counts[:, 0]]).reshape(counts.shape)


def _in_blocks(n_terms: np.ndarray, n_inner: int, how: Accumulation) -> np.ndarray:
    """Terms to count: a matrix unit may meet each in a block of its own, which costs at most what two do."""
    return np.minimum(2 * n_terms, n_inner) if how.unit == TRUNCATING else n_terms


def _times(factor: float | np.ndarray, size: np.ndarray) -> np.ndarray:
    return np.where(size > 0, factor * size, 0.0)


def _lost(dtype: torch.dtype) -> float:
    """What underflow takes from a product, two scalings of it, and the addition that takes it up."""
    return SUBNORMAL[dtype] / 2 if dtype is torch.float16 else 4 * FLUSHED


def visible(x: np.ndarray, steps: np.ndarray, bound: np.ndarray) -> np.ndarray:
    """bool [K, N]: where a code that is off by one puts some output out of the bound for certain.

    Args:
        x: float64 [M, K].
        steps: float64 [K, N], what one step of the code changes of the weight.
        bound: float64 [M, N], of the right product.
    """
    seen = np.zeros(steps.shape, bool)
    for token in range(x.shape[0]):
        # The wrong product has a bound of its own, larger than the right one's by at most a third of the
        # difference (gamma + u < 1/3): it takes the sum of both to tell them apart.
        seen |= np.abs(x[token])[:, None] * steps > 3 * bound[token][None, :]
        if seen.all():
            break
    return seen
