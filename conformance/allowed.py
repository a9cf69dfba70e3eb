"""Which elements of an output a format's proven bound allows to differ from the exact model's."""

from __future__ import annotations

import numpy as np
import torch

from conformance.bits import same, to_float
from conformance.registry import Allowance, Reach
from oracles.spec.rounding import round_to


def within(bits: np.ndarray, reach: Reach, dtype: torch.dtype) -> np.ndarray:
    """bool mask: outputs that a right one, rounded once to ``dtype``, may be.

    Rounding keeps order, so that a right output lies between the rounded ends of its reach.
    """
    found = to_float(bits, dtype)
    with np.errstate(invalid="ignore", over="ignore"):
        low, high = (
            to_float(round_to(np.asarray(end, np.float64), dtype), dtype)
            for end in (reach.value - reach.error, reach.value + reach.error)
        )
        between = (low <= found) & (found <= high)
    return np.isinf(reach.error) | ((reach.error > 0) & between)


def allowed(
    allowance: Allowance | None,
    model: object,
    who: str,
    device: str,
    bits: np.ndarray,
    want: np.ndarray,
    dtype: torch.dtype,
) -> np.ndarray | None:
    """bool mask: where an output of ``who`` on ``device`` is right, its bits being those of ``want`` or not;
    None where a format allows no others."""
    if allowance is None:
        return None
    reach = allowance.reach(model, who, device.partition(":")[0])
    return same(bits, want, dtype) | within(bits, reach, dtype)
