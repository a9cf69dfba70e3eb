"""Whether a kernel is right: a wrong one gets no figure.

The answer at benchmark sizes is torch's (:mod:`benchmarks.references`), and that one is compared
with the exact NumPy model at a small size of the same variant, dtype and group size first.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import numpy as np
import torch

from benchmarks import references, weights
from benchmarks.cases import BenchCase
from benchmarks.subjects import unpack
from conformance.bits import DTYPES, to_bits
from oracles.spec.rounding import round_to

_INT = {2: torch.int16, 4: torch.int32}
# Quiet NaN with a payload that no arithmetic gives.
_POISON = {torch.float16: 0x7E5A, torch.bfloat16: 0x7FE5, torch.float32: 0x7FC5A5A5}
SMALL = 256  # rows and columns; larger where a group is


def bits_of(tensor: torch.Tensor) -> torch.Tensor:
    """The bit patterns as integers, on the device."""
    return tensor.view(_INT[tensor.element_size()])


def poison(out: torch.Tensor) -> None:
    """Fill ``out`` with a NaN that no kernel writes."""
    bits_of(out).fill_(_POISON[out.dtype])


def difference(got: torch.Tensor, want: torch.Tensor) -> str:
    """How the bits differ, or an empty string. NaN are compared by their bits too: no reference has any."""
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"expected {want.dtype} {list(want.shape)}, found {got.dtype} {list(got.shape)}"
    wrong = bits_of(got.contiguous()) != bits_of(want.contiguous())
    count = int(wrong.sum())
    if not count:
        return ""
    at = int(wrong.reshape(-1).int().argmax())
    place = [int(index) for index in np.unravel_index(at, tuple(want.shape))]
    found, expected = got.reshape(-1)[at], want.reshape(-1)[at]
    unwritten = int((bits_of(got.contiguous()) == _POISON[got.dtype]).sum())
    more = f", {unwritten} not written" if unwritten else ""
    return (
        f"{count} of {want.numel()} elements differ{more}, first {place}: "
        f"got {float(found):.9g}, want {float(expected):.9g}"
    )


def small(case: BenchCase) -> BenchCase:
    """The case at a size that the exact model decodes at once."""
    side = max(SMALL, case.group if case.format not in ("nf4", "fp4", "blockwise8") else 0)
    return dataclasses.replace(case, rows=side, cols=side)


def reference_fault(case: BenchCase, device: torch.device) -> str:
    """Why torch's answer cannot be trusted for this variant, dtype and group size, or an empty string."""
    return _reference_fault(small(case), device)


@functools.lru_cache(maxsize=1024)
def _reference_fault(case: BenchCase, device: torch.device) -> str:
    weight = weights.make(case, device, seed=2)
    dtype = DTYPES[case.dtype]
    want = round_to(unpack(case.format, weight).values(), dtype)
    got = to_bits(references.formula(weight, dtype))
    count = int(np.count_nonzero(got != want))
    return f"torch's formula: {count} of {want.size} elements differ from the exact model" if count else ""


def verdict(call: Callable[[], object], out: torch.Tensor, want: torch.Tensor) -> str:
    """Run ``call``, which is to write ``out``, and say what is wrong with it, or an empty string."""
    poison(out)
    call()
    return difference(out, want)
