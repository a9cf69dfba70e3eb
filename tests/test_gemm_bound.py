"""The bound of a product: no right order of summation leaves it, and one wrong code does."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from conformance import gemm_bound
from conformance.bits import to_float
from conformance.fused_activations import activations
from conformance.gemm_bound import FLOAT32, TRUNCATING, UNIT, Accumulation, gamma, product, visible
from oracles.spec.rounding import round_to
from tests.harness_runs import FORMATS

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
NUMPY = {torch.float32: np.float32, torch.float16: np.float16}
Terms = np.ndarray  # [K, M, N] of the accumulator's dtype


def sequential(terms: Terms) -> np.ndarray:
    total = np.zeros(terms.shape[1:], terms.dtype)
    for term in terms:
        total = total + term
    return total


def backwards(terms: Terms) -> np.ndarray:
    return sequential(terms[::-1])


def pairwise(terms: Terms) -> np.ndarray:
    while len(terms) > 1:
        even = len(terms) // 2 * 2
        terms = np.concatenate([terms[0:even:2] + terms[1:even:2], terms[even:]])
    return terms[0]


def blocked(terms: Terms) -> np.ndarray:
    return sequential(np.stack([sequential(terms[i : i + 16]) for i in range(0, len(terms), 16)]))


def largest_first(terms: Terms) -> np.ndarray:
    """The order that loses most: what is small comes when the sum is large."""
    order = np.argsort(-np.abs(terms), axis=0)
    return sequential(np.take_along_axis(terms, order, axis=0))


def same_sign_first(terms: Terms) -> np.ndarray:
    return sequential(np.sort(terms, axis=0)[::-1])


ORDERS = (sequential, backwards, pairwise, blocked, largest_first, same_sign_first)


def rounded(values: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    return to_float(round_to(values, dtype), dtype)


def drawn(seed: int, n_inner: int, dtype: torch.dtype, scale: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    x = rounded(random.standard_normal((3, n_inner)), dtype)
    w = rounded(random.standard_normal((n_inner, 4)) * scale, dtype)
    return x, w


def summed(
    x: np.ndarray, w: np.ndarray, how: Accumulation, order: Callable[[Terms], np.ndarray], out: torch.dtype
) -> np.ndarray:
    """A right product in some order, as a kernel computes it, float64."""
    kind = NUMPY[how.dtype]
    terms = x.astype(kind).T[:, :, None] * w.astype(kind)[:, None, :]
    if how.splits == 1:
        return rounded(order(terms).astype(np.float64), out)
    total = np.zeros(terms.shape[1:])
    for part in range(how.splits):
        partial = rounded(order(terms[part :: how.splits]).astype(np.float64), out)
        total = rounded(total + partial, out)
    return total


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("out", DTYPES)
@pytest.mark.parametrize(("n_inner", "scale"), [(1, 1.0), (2, 1.0), (33, 0.01), (257, 1.0), (1024, 0.05)])
def test_no_order_leaves_the_bound(order, out, n_inner, scale):
    for seed in range(5):
        x, w = drawn(seed, n_inner, out, scale)
        right = product(x, w, out)
        assert (np.abs(summed(x, w, FLOAT32, order, out) - right.exact) <= right.bound).all()


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    "how", [Accumulation(torch.float16), Accumulation(torch.float16, 4), Accumulation(splits=8)]
)
def test_nor_with_fewer_bits_or_partial_sums(order, how):
    for seed in range(5):
        x, w = drawn(seed, 96, torch.float16, 0.02)
        right = product(x, w, torch.float16, how)
        assert np.isfinite(right.bound).all()
        assert (np.abs(summed(x, w, how, order, torch.float16) - right.exact) <= right.bound).all()


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("scale", [1.0, 2.0**-10, 2.0**-18])
def test_rounded_products_are_in_the_bound_that_allows_them(order, scale):
    """Subnormal products included; without the allowance some output is beyond the bound."""
    beyond = 0
    for seed in range(5):
        x, w = drawn(seed, 96, torch.float16, scale)
        terms = rounded(x.T[:, :, None] * w[:, None, :], torch.float16).astype(np.float32)
        got = rounded(order(terms).astype(np.float64), torch.float16)
        allowed = product(x, w, torch.float16, Accumulation(rounded_terms=True))
        assert (np.abs(got - allowed.exact) <= allowed.bound).all()
        beyond += int((np.abs(got - allowed.exact) > product(x, w, torch.float16).bound).sum())
    assert beyond


def test_float16_accumulation_has_to_be_asked_for():
    x, w = drawn(1, 512, torch.float16)
    got = summed(x, w, Accumulation(torch.float16), sequential, torch.float16)
    for how, passes in ((FLOAT32, False), (Accumulation(torch.float16), True)):
        right = product(x, w, torch.float16, how)
        assert bool((np.abs(got - right.exact) <= right.bound).all()) is passes


def test_cut_off_sums_are_in_the_bound_of_matrix_units():
    """Terms cut off at the last bit of the largest, as matrix units do, in blocks of four."""
    x, w = drawn(2, 256, torch.float16)
    terms = x.T[:, :, None] * w[:, None, :]
    total = np.zeros(terms.shape[1:])
    for start in range(0, len(terms), 4):
        block = np.concatenate([total[None], terms[start : start + 4]])
        unit = 2.0 ** (np.floor(np.log2(np.abs(block).max(axis=0))) - 23)
        total = np.trunc(np.trunc(block / unit).sum(axis=0)) * unit
        coarse = 2.0 ** (np.floor(np.log2(np.maximum(np.abs(total), 2.0**-100))) - 23)
        total = np.trunc(total / coarse) * coarse
    right = product(x, w, torch.float32, Accumulation(truncating=True))
    assert (np.abs(total - right.exact) <= right.bound).all()
    assert 4 * UNIT[torch.float32] == TRUNCATING


def scaled_later(place: str, x: np.ndarray, c: np.ndarray, s: np.ndarray, order: Callable) -> np.ndarray:
    """float32 products of x [M, K], codes [K, N] and two factors [2, N], scaled at some place."""
    x, c, s = x.astype(np.float32), c.astype(np.float32), s.astype(np.float32)
    terms = x.T[:, :, None] * c[:, None, :]
    if place == "term":
        return order(terms * s[0] * s[1])
    if place == "sum":
        return order(terms) * s[0] * s[1]
    return order(terms * s[0]) * s[1]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("place", ["term", "sum", "both"])
@pytest.mark.parametrize("n_inner", [1, 2, 33])
@pytest.mark.parametrize("size", [1.0, 2.0**-70])
def test_a_scale_that_is_applied_later_is_in_the_bound(order, place, n_inner, size, monkeypatch):
    """Subnormal weights included; without the allowance some output of few terms is beyond the bound."""
    beyond = 0
    for seed in range(20):
        random = np.random.default_rng(seed)
        x = rounded(random.standard_normal((3, n_inner)), torch.float32)
        c = random.integers(-127, 128, (n_inner, 4)).astype(np.float64)
        s = rounded(random.random((2, 4)) * size, torch.float32)
        w = (c.astype(np.float32) * s[0].astype(np.float32) * s[1].astype(np.float32)).astype(np.float64)
        got = scaled_later(place, x, c, s, order).astype(np.float64)
        with monkeypatch.context() as without:
            right = product(x, w, torch.float32)
            without.setattr(gemm_bound, "SCALINGS", 0)
            beyond += int((np.abs(got - right.exact) > product(x, w, torch.float32).bound).sum())
        assert (np.abs(got - right.exact) <= right.bound).all()
    if n_inner < 3 and size == 1:
        assert beyond


@pytest.mark.parametrize("truncating", [False, True])
def test_terms_of_zero_cost_nothing(truncating):
    x, w = drawn(4, 4096, torch.float32)
    sparse = np.zeros_like(x)
    places = (5, 1000, 4095)
    for token, k in enumerate(places):
        sparse[token, k] = x[token, k]
    bound = product(sparse, w, torch.float32, Accumulation(truncating=truncating)).bound
    for token, k in enumerate(places):
        single = product(x[token : token + 1, k : k + 1], w[k : k + 1], torch.float32)
        assert (single.bound <= bound[token]).all()
        assert (bound[token] < (9 if truncating else 1.01) * single.bound[0]).all()


@pytest.mark.parametrize("scale", [2.0**-130, 2.0**-140])
def test_flushed_terms_are_in_the_bound(scale):
    x, w = drawn(3, 64, torch.bfloat16)
    w = rounded(w * scale, torch.bfloat16)
    right = product(x, w, torch.bfloat16)
    assert (np.abs(right.exact) <= right.bound).all()


# --- the other side: what is wrong is seen -----------------------------------------------------


@pytest.mark.parametrize("name", ["gptq", "awq_cols"])
@pytest.mark.parametrize("fault", ["code", "group"])
def test_one_step_is_seen_where_it_is_said_to_be(name, fault):
    """One code off by one, or one group's scale of the next group: out of the bound."""
    fmt = FORMATS[name]
    weight = fmt.words(fmt.parse("K=64,N=16,g=16" + (",zeros=v2" if name == "gptq" else "")))
    model = fmt.unpack(weight)
    w, steps = rounded(model.values(), torch.float16), model.steps()
    wrong = w.copy()
    x = activations("test", 8, w, torch.float16)
    right = product(x, w, torch.float16)
    seen = visible(x, steps, right.bound)
    assert seen.mean() > 0.5
    if fault == "code":
        places = np.argwhere(seen)[::37]
    else:
        places = np.argwhere(seen)[:1]
    for k, n in places:
        wrong = w.copy()
        if fault == "code":
            wrong[k, n] += steps[k, n]
        else:
            wrong[:16, n] *= model.scales[1, n] / model.scales[0, n]
        got = rounded(x @ wrong, torch.float16)
        assert (np.abs(got - right.exact) > right.bound).any()


def test_a_long_sum_hides_one_step():
    """The bound grows with K, the fault does not: one-hot activations are the test then."""
    random = np.random.default_rng(5)
    shares = []
    for n_inner in (64, 1024, 16384):
        w = rounded(random.integers(-7, 8, (n_inner, 2)) * 0.01, torch.bfloat16)
        x = activations("test", 4, w, torch.bfloat16)
        shares.append(visible(x, np.full(w.shape, 0.01), product(x, w, torch.bfloat16).bound).mean())
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0.5 > shares[-1]
    one_hot = np.eye(16384)[:1]
    assert visible(one_hot, np.full(w.shape, 0.01), product(one_hot, w, torch.bfloat16).bound)[0].all()


# --- values --------------------------------------------------------------------------------------


def test_gamma():
    assert gamma(0, 2.0**-24) == 0
    assert gamma(1, 0.5) == 1
    assert math.isinf(gamma(2048, 2.0**-11))


def test_a_sum_without_meaning_is_unbounded():
    x, w = np.ones((1, 4096)), np.ones((4096, 1))
    assert np.isinf(product(x, w, torch.float16, Accumulation(torch.float16)).bound).all()
    assert np.isinf(product(np.full((1, 2), 6e4), np.ones((2, 1)), torch.float16).bound).all()


def test_wrong_arguments():
    with pytest.raises(
        ValueError, match=r"x and w: expected \[M, K\] and \[K, N\], found \[1, 2\] and \[3, 1\]"
    ):
        product(np.ones((1, 2)), np.ones((3, 1)), torch.float16)
    with pytest.raises(ValueError, match="splits: expected at least 1, found 0"):
        product(np.ones((1, 1)), np.ones((1, 1)), torch.float16, Accumulation(splits=0))
