"""Comparison is of bits: signs of zero, infinities and every last place count, NaN payloads do not."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance.bits import DTYPES, from_bits, is_finite, is_nan, same, show, to_bits, to_float, ulp_distance
from conformance.compare import class_words, compare

EVERY = list(DTYPES.values())
quick = settings(max_examples=100, deadline=None, database=None)


def bits(values, dtype=torch.float16) -> np.ndarray:
    return to_bits(torch.tensor(values, dtype=dtype))


def unsigned(dtype):
    return np.uint16 if dtype.itemsize == 2 else np.uint32


@pytest.mark.parametrize("dtype", EVERY)
def test_bits_there_and_back(dtype):
    raw = np.arange(0, 2**16, 7).astype(unsigned(dtype)) * (1 if dtype.itemsize == 2 else 65537)
    assert (to_bits(from_bits(raw, dtype)) == raw).all()
    values = from_bits(raw, dtype)
    assert (np.isnan(to_float(raw, dtype)) == is_nan(raw, dtype)).all()
    assert (is_finite(raw, dtype) == torch.isfinite(values).numpy()).all()
    finite = is_finite(raw, dtype)
    assert (to_float(raw, dtype)[finite] == values.double().numpy()[finite]).all()


@pytest.mark.parametrize("dtype", EVERY)
def test_same(dtype):
    inf, nan = float("inf"), float("nan")
    got = bits([0.0, -0.0, 1.0, inf, inf, nan, nan, -inf], dtype)
    want = bits([0.0, 0.0, 1.0, inf, -inf, nan, 1.0, -inf], dtype)
    assert same(got, want, dtype).tolist() == [True, False, True, True, False, True, False, True]
    quiet = bits([nan], dtype)
    assert same(quiet, quiet ^ 1, dtype).all()
    assert same(quiet, quiet ^ (1 << (8 * dtype.itemsize - 1)), dtype).all()


@pytest.mark.parametrize("dtype", EVERY)
def test_ulp_distance_across_zero(dtype):
    one_less = np.array([1], unsigned(dtype))
    negative = one_less | unsigned(dtype)(1 << (8 * dtype.itemsize - 1))
    zeros = bits([0.0, -0.0], dtype)
    assert ulp_distance(zeros[:1], zeros[1:], dtype).tolist() == [0]
    assert ulp_distance(one_less, zeros[:1], dtype).tolist() == [1]
    assert ulp_distance(one_less, zeros[1:], dtype).tolist() == [1]
    assert ulp_distance(one_less, negative, dtype).tolist() == [2]
    largest = bits([torch.finfo(dtype).max, torch.finfo(dtype).min], dtype)
    assert ulp_distance(largest[:1], largest[1:], dtype)[0] == 2 * int(largest[0])


@quick
@given(st.sampled_from(EVERY), st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
def test_ulp_distance_orders_as_the_values_do(dtype, a, b):
    kind = unsigned(dtype)
    x, y = np.array([a], np.uint32).astype(kind), np.array([b], np.uint32).astype(kind)
    if not (is_finite(x, dtype).all() and is_finite(y, dtype).all()):
        return
    distance = int(ulp_distance(x, y, dtype)[0])
    assert distance == int(ulp_distance(y, x, dtype)[0])
    assert (distance == 0) == bool(to_float(x, dtype)[0] == to_float(y, dtype)[0])


def gates(got, want, step, dtype=torch.float16):
    got, want = bits(got, dtype), bits(want, dtype)
    found = compare("spec", got, want, dtype, np.full(got.shape, step))
    return found, (found.coarse, found.element, found.exact)


def test_equal():
    found, passed = gates([1.0, float("nan"), -0.0], [1.0, float("nan"), -0.0], 0.0)
    assert passed == (True, True, True)
    assert (found.n, found.n_wrong, found.max_ulp, found.classes) == (3, 0, 0, 0)


def test_sign_of_zero_is_wrong_by_no_ulp():
    found, passed = gates([0.0, 1.0], [-0.0, 1.0], 0.1)
    assert passed == (True, True, False)
    assert (found.n_wrong, found.max_ulp, found.max_abs) == (1, 0, 0.0)


def test_one_ulp():
    found, passed = gates([1.0009765625], [1.0], 0.1)
    assert passed == (True, True, False)
    assert found.max_ulp == 1
    assert not found.passes("exact")
    assert found.passes("exact", ulp=1)
    assert found.passes("element")


def test_half_a_step_is_the_edge_of_the_looser_gates():
    assert gates([1.5], [1.0], 1.0)[1] == (True, True, False)
    assert gates([1.5009765625], [1.0], 1.0)[1] == (False, False, False)


def test_coarse_uses_the_largest_step_and_element_its_own():
    got, want = bits([1.5, 8.0]), bits([1.0, 8.0])
    found = compare("spec", got, want, torch.float16, np.array([0.5, 4.0]))
    assert (found.coarse, found.element) == (True, False)
    assert found.passes("coarse")
    assert not found.passes("element")


@pytest.mark.parametrize(
    ("got", "want"),
    [
        (float("nan"), 1.0),
        (1.0, float("nan")),
        (float("inf"), 1.0),
        (65504.0, float("inf")),
        (float("inf"), float("-inf")),
        (float("nan"), float("inf")),
    ],
)
def test_another_class_passes_no_gate(got, want):
    found, passed = gates([got], [want], 1e9)
    assert passed == (False, False, False)
    assert found.classes == 1
    assert not found.passes("exact", ulp=10**9)


def test_nonfinite_steps_do_not_open_the_gates():
    found = compare("spec", bits([3.0, 1.0]), bits([1.0, 1.0]), torch.float16, np.array([1.0, np.inf]))
    assert (found.coarse, found.element) == (False, False)
    found = compare("spec", bits([3.0]), bits([1.0]), torch.float16, np.array([np.nan]))
    assert (found.coarse, found.element) == (False, False)


def test_class_words():
    nan, inf, minus, one = (int(b) for b in bits([float("nan"), float("inf"), float("-inf"), 1.0]))
    assert class_words(nan, inf, torch.float16) == "NaN instead of infinity"
    assert class_words(inf, minus, torch.float16) == "infinity instead of -infinity"
    assert class_words(one, nan, torch.float16) == "a finite value instead of NaN"


def test_values_are_shown_with_their_bits():
    assert show(0x3C00, torch.float16) == "1 (0x3c00)"
    assert show(0x8000, torch.bfloat16) == "-0 (0x8000)"
    assert show(0x3DCCCCCD, torch.float32) == "0.100000001 (0x3dcccccd)"


def test_no_elements():
    empty = np.zeros((0, 3), np.uint16)
    found = compare("spec", empty, empty, torch.float16, np.zeros((0, 3)))
    assert (found.n, found.exact) == (0, True)
