"""Compare outputs bit for bit and at two looser gates. Runs nothing and raises nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from conformance.bits import all_same, is_finite, is_nan, same, to_float, ulp_distance

GATES = ("coarse", "element", "exact")


class Comparison(NamedTuple):
    """``got`` against ``want``, all three gates.

    Attributes:
        reference: name of the side that gave ``want``.
        n: elements compared.
        wrong: bool mask of elements whose bits differ (NaN equals NaN) by more than is allowed.
        classes: number of elements where one side is finite and the other is not, or NaN
            meets infinity, or infinities differ in sign.
        max_ulp: largest distance among elements finite on both sides: the ULPs needed.
        max_abs: largest absolute difference among them.
        coarse: all |got - want| <= scale.max() / 2.
        element: all |got - want| <= half the element's own step.
        exact: same bits.
        bounded: other bits, but none beyond the format's proven bound.
    """

    reference: str
    n: int
    wrong: np.ndarray
    classes: int
    max_ulp: int
    max_abs: float
    coarse: bool
    element: bool
    exact: bool
    bounded: bool = False

    @property
    def agrees(self) -> bool:
        """Same bits, or within the format's proven bound."""
        return self.exact or self.bounded

    @property
    def n_wrong(self) -> int:
        return int(np.count_nonzero(self.wrong))

    def passes(self, gate: str, ulp: int | None = None) -> bool:
        """Whether ``gate`` and the looser ones hold.

        ``ulp`` relaxes ``exact`` for values that are finite on both sides: 0 lets only the sign
        of a zero differ, None nothing.
        """
        if not self.coarse:
            return False
        if gate == "coarse":
            return True
        if not self.element:
            return False
        if gate == "element":
            return True
        return self.agrees or (ulp is not None and self.classes == 0 and self.max_ulp <= ulp)


def agreement(reference: str, shape: tuple[int, ...]) -> Comparison:
    """That of an output [shape] with one of the same bits."""
    wrong = np.zeros(shape, bool)
    return Comparison(reference, wrong.size, wrong, 0, 0, 0.0, True, True, True)


def compare(
    reference: str,
    got: np.ndarray,
    want: np.ndarray,
    dtype: torch.dtype,
    steps: np.ndarray | Callable[[], np.ndarray],
    allowed: np.ndarray | None = None,
) -> Comparison:
    """Compare bit patterns of equal shape.

    Args:
        steps: local step of each element, or what gives it, which is called where something differs.
        allowed: bool mask of elements whose bits may differ.
    """
    if all_same(got, want, dtype):
        return agreement(reference, got.shape)
    wrong = ~same(got, want, dtype)
    if allowed is not None:
        differing, wrong = wrong, wrong & ~allowed
        if not wrong.any():
            both = differing & is_finite(got, dtype) & is_finite(want, dtype)
            error = np.abs(to_float(got[both], dtype) - to_float(want[both], dtype))
            ulp = int(ulp_distance(got[both], want[both], dtype).max(initial=0))
            largest_error = float(error.max(initial=0.0))
            return Comparison(reference, got.size, wrong, 0, ulp, largest_error, True, True, False, True)
    index = np.nonzero(wrong)
    steps = steps() if callable(steps) else steps
    g, w, step = got[index], want[index], steps[index]
    finite = is_finite(g, dtype) & is_finite(w, dtype)
    classes = int(np.count_nonzero(~finite))
    gf, wf = to_float(g[finite], dtype), to_float(w[finite], dtype)
    error = np.abs(gf - wf)
    finite_steps = steps[np.isfinite(steps)]
    largest = float(finite_steps.max()) if finite_steps.size else 0.0
    with np.errstate(invalid="ignore"):
        coarse = classes == 0 and bool((error <= largest / 2).all())
        element = classes == 0 and bool((error <= step[finite] / 2).all())
    return Comparison(
        reference,
        got.size,
        wrong,
        classes,
        int(ulp_distance(g[finite], w[finite], dtype).max()) if finite.any() else 0,
        float(error.max()) if error.size else 0.0,
        coarse,
        element,
        False,
    )


def class_words(got: int, want: int, dtype: torch.dtype) -> str:
    """Words for a difference in class: ``NaN instead of a finite value``."""

    def word(bits: int) -> str:
        value = np.array([bits], np.uint16 if dtype.itemsize == 2 else np.uint32)
        if is_nan(value, dtype)[0]:
            return "NaN"
        if is_finite(value, dtype)[0]:
            return "a finite value"
        return "-infinity" if bits >> (8 * dtype.itemsize - 1) else "infinity"

    return f"{word(got)} instead of {word(want)}"
