"""How far an fp8 product may be from the exact one, by output. Derived in ``docs/gemm-bounds.md``.

Where the products of an output are whole multiples of a unit, few enough for any accumulator, its sum is
exact whatever the hardware does, and 0 is allowed. Elsewhere the error of the sum is bounded and followed
through the roundings of the text.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from conformance.gemm_bound import FLUSHED, LARGEST, SUBNORMAL, UNIT, gamma
from conformance.registry import Allowance, Reach
from oracles.spec.gemm_fp8 import Fp8GemmModel, products

SINGLE = UNIT[torch.float32]
# A unit of fp8 tensor cores keeps bits down to 2**-13 of its largest term, of which we count one less.
KEPT = 2.0**12
# Instructions of 32 products that may add up in the tensor core before the sum is kept in float32:
# CUTLASS and DeepGEMM have four.
PROMOTED = 4
TERMS = 32
SMALLEST_NORMAL = 2.0**-6
# An error that rounds to 0 in every dtype, of either sign.
SIGN = 2.0**-160
LARGEST_CODE = 448.0


@dataclasses.dataclass(frozen=True)
class Sums:
    """Sums of products of each block, float64 [KB, M, N] all.

    Attributes:
        exact: the sums.
        size: sums of the products' sizes.
        error: how far a right sum may be off; 0 where it is exact in any order.
    """

    exact: np.ndarray
    size: np.ndarray
    error: np.ndarray


def sums(model: Fp8GemmModel, tensor_cores: bool) -> Sums:
    """The sums of a model and their errors, on fp8 tensor cores or in float32."""
    shape = (model.a.shape[0], model.b.shape[0])
    with np.errstate(all="ignore"):
        rows = [_sums_of(model.a[:, span], model.b[:, span], tensor_cores) for span in model.spans()]
    if not rows:
        return Sums(*(np.zeros((0, *shape)) for _ in range(3)))
    found = Sums(*(np.stack(column) for column in zip(*rows, strict=True)))
    # A diagnosis asks about other sums of the same products, or of some of them: no further off.
    other = model.sums
    return (
        found
        if other is None or other.shape != found.exact.shape
        else dataclasses.replace(found, exact=other)
    )


def _sums_of(a: np.ndarray, b: np.ndarray, tensor_cores: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    exact = products(a, b)
    a, b = np.nan_to_num(np.abs(a)), np.nan_to_num(np.abs(b))
    size = products(a, b)
    unit, largest = _units(a, b)
    if tensor_cores:
        # The exponent of a subnormal code is that of 2**-6, and so may be that of 0.
        held = products(np.maximum(a, SMALLEST_NORMAL), np.maximum(b, SMALLEST_NORMAL))
        lost = PROMOTED * (TERMS + 2) / KEPT * held
        error = lost + gamma(a.shape[1], SINGLE) * (size + lost)
        fits = np.maximum(size, largest) <= KEPT * unit
    else:
        error = gamma(a.shape[1], SINGLE) * size
        fits = size <= unit / SINGLE
    # NaN is NaN in any order.
    return exact, size, np.where(fits | np.isnan(exact), 0.0, error)


def _units(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The largest power of two that divides all products of an output (inf if all are 0), and the
    largest product by its operands' exponents: float64 [M, N]."""
    unit = np.full((a.shape[0], b.shape[0]), np.inf)
    largest = np.zeros_like(unit)
    of_a, of_b = _lowest_bit(a), _lowest_bit(b)
    at_least_a, at_least_b = np.maximum(a, SMALLEST_NORMAL), np.maximum(b, SMALLEST_NORMAL)
    for k in range(a.shape[1]):
        unit = np.minimum(unit, of_a[:, k, None] * of_b[None, :, k])
        largest = np.maximum(largest, at_least_a[:, k, None] * at_least_b[None, :, k])
    return unit, largest


def _lowest_bit(numbers: np.ndarray) -> np.ndarray:
    """Value of the lowest set bit of multiples of 2**-9; inf for 0."""
    whole = (numbers * 2.0**9).astype(np.int64)
    return np.where(whole == 0, np.inf, (whole & -whole) * 2.0**-9)


def kernel_reach(model: Fp8GemmModel, tensor_cores: bool) -> Reach:
    """What a kernel that follows the text may give: sums by :func:`sums`, then the roundings in order."""
    found = sums(model, tensor_cores)
    value: np.ndarray = np.zeros(found.exact.shape[1:])
    error, largest = np.zeros_like(value), np.zeros_like(value)
    with np.errstate(all="ignore"):
        for block, exact in enumerate(found.exact):
            a, w = model.scales_at(block)
            part, off = _times(
                exact,
                found.error[block],
                a if model.a_blocked else None,
                w if model.w_blocked else None,
                model.order,
            )
            value, error = _rounded(value + part, error + off)
            largest = np.maximum(largest, np.maximum(np.abs(part) + off, np.abs(value) + error))
        if not model.a_blocked or not model.w_blocked:
            value, error = _times(
                value,
                error,
                None if model.a_blocked else model.a_scale[0][:, None],
                None if model.w_blocked else model.w_scale[0][None, :],
                model.order,
            )
        if model.bias is not None:
            value, error = _rounded(value + model.bias.astype(np.float64), error)
        largest = np.maximum(largest, np.abs(value) + error)
    error = np.where(_surely_nan(model), 0.0, _judged(value, error, largest))
    exact = (found.error == 0).all(axis=0)
    # Products that are all 0: -0 alone if the sum begins with the first of them, +0 if it begins with 0.
    unsigned = exact & (found.size == 0).all(axis=0) & (value == 0)
    return Reach(value, np.where(unsigned, SIGN, np.where(exact, 0.0, error)))


def oracle_reach(model: Fp8GemmModel, tensor_cores: bool) -> Reach:
    """What ``torch._scaled_mm`` may give, which multiplies by the scales before or after the sum, in an
    order of its own, and flushes subnormal numbers if it likes."""
    found = sums(model, tensor_cores)
    value: np.ndarray = np.zeros(found.exact.shape[1:])
    error, largest = np.zeros_like(value), np.zeros_like(value)
    rounds = gamma(model.a.shape[1] + len(found.exact) + 6, SINGLE)
    with np.errstate(all="ignore"):
        for block, (span, exact) in enumerate(zip(model.spans(), found.exact, strict=True)):
            a, w = (scale.astype(np.float64) for scale in model.scales_at(block))
            both = np.abs(a * w)
            size = found.size[block] + found.error[block]
            value = value + a * w * exact
            error = error + both * (found.error[block] + rounds * size)
            # A scaled code may underflow, on either side, and so may the product.
            rows, columns = (np.nan_to_num(np.abs(x[:, span])).sum(axis=1) for x in (model.a, model.b))
            error = error + FLUSHED * (2 + np.abs(a) * (rows[:, None] + size) + np.abs(w) * (columns + size))
            most = np.maximum(np.maximum(np.abs(a), np.abs(w)), np.maximum(both, 1))
            largest = np.maximum(largest, most * (size + LARGEST_CODE))
        if model.bias is not None:
            value, error = _rounded(value + model.bias.astype(np.float64), error)
    return Reach(value, np.where(_surely_nan(model), 0.0, _judged(value, error, largest)))


def _surely_nan(model: Fp8GemmModel) -> np.ndarray:
    """bool [M, N]: outputs with a NaN among their operands, scales or bias, whatever overflows before."""
    rows = np.isnan(model.a).any(axis=1) | np.isnan(model.a_scale).any(axis=0)
    columns = np.isnan(model.b).any(axis=1) | np.isnan(model.w_scale).any(axis=0)
    if model.bias is not None:
        columns = columns | np.isnan(model.bias)
    return rows[:, None] | columns[None, :]


def _times(
    value: np.ndarray, error: np.ndarray, a: np.ndarray | None, w: np.ndarray | None, order: str
) -> tuple[np.ndarray, np.ndarray]:
    """Value and error after products with up to two scales, each rounded."""
    scales = [scale for scale in (a, w) if scale is not None]
    if order == "w-a":
        scales.reverse()
    if order == "product" and len(scales) == 2:
        scales = [scales[0] * scales[1]]
    for scale in scales:
        wide = scale.astype(np.float64)
        value, error = _rounded(value * wide, error * np.abs(wide))
    return value, error


def _rounded(value: np.ndarray, error: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The same after one rounding to float32; the value, which stays as it is, is itself one of float64."""
    return value, error + 2 * SINGLE * (np.abs(value) + error) + SUBNORMAL[torch.float32]


def _judged(value: np.ndarray, error: np.ndarray, largest: np.ndarray) -> np.ndarray:
    """inf where a step may overflow: nothing is said of such an output."""
    sure = np.isfinite(value) & np.isfinite(error) & (largest + error < LARGEST[torch.float32] / 4)
    return np.where(sure, error, np.inf)


def reach(model: Fp8GemmModel, who: str, device: str) -> Reach:
    """Of the kernel (``kernel``) or of an oracle, on a device's type."""
    return (kernel_reach if who == "kernel" else oracle_reach)(model, device != "cpu")


ALLOWANCE = Allowance(
    reach,
    "fp8 tensor cores align the products of an instruction to the largest and cut off what is below 14 bits; "
    "float32 sums are rounded in an order of their own; a sum of zeros has the sign of where it begins",
)
