"""Which elements of an output a format's proven bound allows to differ from the exact model's."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np
import torch

from conformance.bits import same, to_float
from conformance.registry import Allowance, Reach
from conformance.verdict import Verdict
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


class Leeway(NamedTuple):
    """Bool masks: outputs that may be right, and those among them of which the bound says nothing, whatever
    their bits: a kernel does not choose what is compared."""

    right: np.ndarray
    silent: np.ndarray


def leeway(
    allowance: Allowance | None,
    model: object,
    who: str,
    device: str,
    bits: np.ndarray,
    want: np.ndarray,
    dtype: torch.dtype,
) -> Leeway | None:
    """Where an output of ``who`` on ``device`` may be right, its bits being those of ``want`` or not;
    None where a format allows no others."""
    if allowance is None:
        return None
    reach = allowance.reach(model, who, device.partition(":")[0])
    equal = same(bits, want, dtype)
    return Leeway(equal | within(bits, reach, dtype), np.isinf(reach.error))


def right(one: Leeway | None) -> np.ndarray | None:
    """Where an output is right, and so may differ."""
    return None if one is None else one.right


def both(one: Leeway | None, other: Leeway | None) -> np.ndarray | None:
    """Where both of two outputs are right, and so may differ."""
    return None if one is None or other is None else one.right & other.right


def without_silent(verdict: Verdict, silent: np.ndarray) -> Verdict:
    """A verdict that counts no output of which the bound says nothing, and rests on none."""
    count = int(np.count_nonzero(silent))
    if verdict.failed or not count:
        return verdict
    text = f"{count} of {silent.size} outputs are not judged: a step of theirs may overflow"
    kind, text = ("UNJUDGED", text) if count == silent.size else (verdict.kind, f"{verdict.summary}; {text}")
    return dataclasses.replace(verdict, kind=kind, summary=text, elements=silent.size - count)
