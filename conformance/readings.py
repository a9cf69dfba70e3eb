"""What an error looks like, in the classic readings: scale, zero-point, sign, zero, saturation, precision.

A reading is a description of the wrong elements that are finite on both sides, and points to where to
look. It names no cause: that is :mod:`conformance.diagnose`, which reproduces the output.

g is got, w is want, both rounded once: u = 2**-(significant bits) relative, and half the smallest
subnormal where that is more. A relation that holds of the unrounded values then holds of g and w to
within the sum of their roundings, which is the only slack here. It is derived for each element, and
an element whose slack is too wide to tell (over 1/8 of a step) has no say. Every relation is claimed
of two different elements at least, and of all of them or not at all. A factor and an offset take two
different w to tell them apart: with one alone, as in a constant weight, either would do.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import torch

# Bits of the significand, the implicit one included.
SIGNIFICANT = {torch.float16: 11, torch.bfloat16: 8, torch.float32: 24}
SMALLEST = {torch.float16: 2.0**-24, torch.bfloat16: 2.0**-133, torch.float32: 2.0**-149}
# An error in steps is a whole number by chance in 1/4 of the cases at most, with a slack of 1/8.
WIDEST = 0.125
# Times its slack that an error is at least before a line through it says more than its roundings.
CLEAR = 8


@dataclasses.dataclass(frozen=True)
class Reading:
    """``kind``: one of the words below, or ``none``. ``words``: the reading for people, or empty.

    rounding, zero, sign, saturation, proportional, factor-each-token, factor-each-channel, offset-steps,
    offset, whole-steps, scale-each, zero-each, linear-each, growing. ``number``: the factor, the steps or
    the level it is about.
    """

    kind: str
    words: str = ""
    number: float | None = None


def read(
    got: np.ndarray,
    want: np.ndarray,
    ulp: np.ndarray,
    dtype: torch.dtype,
    *,
    steps: np.ndarray | None = None,
    shared: np.ndarray | None = None,
    lines: Mapping[str, np.ndarray] | None = None,
) -> Reading:
    """Reading of the wrong elements.

    Args:
        got, want: float64 [n], finite.
        ulp: int64 [n], their distance.
        steps: float64 [n], local step of each, where codes are evenly spaced.
        shared: int [n], a label that is equal where the scale is.
        lines: int [n] each, ``token`` and ``channel`` of a product, each of which has a scale.
    """
    if got.size == 0:
        return Reading("none")
    if not ulp.any():
        return Reading("sign-of-zero", "the sign of zeros alone")
    if (got == 0).all():
        return Reading("zero", "got 0 everywhere there: not written, masked out, or a scale of 0")
    most = int(ulp.max())
    if most <= 2:
        return Reading("rounding", f"{most} ULP at most: reads like a rounding step", float(most))
    if (got == -want).all():
        return Reading("sign", "got the negated value: reads like a sign fault")
    if got.size == 1:
        return Reading("none")
    slack = _slack(got, dtype) + _slack(want, dtype)
    with np.errstate(all="ignore"):
        return (
            _saturated(got, want)
            or _proportional(got, want, dtype)
            or _by_line(got, want, dtype, lines or {})
            or _in_steps(got, want, slack, steps, shared)
            or _offset(got, want, slack)
            or _each(got, want, dtype, steps, shared)
            or _growing(got, want)
            or Reading("none")
        )


def _slack(value: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """Half an ULP of each value, or a little more."""
    return np.maximum(np.abs(value) * 2.0 ** -SIGNIFICANT[dtype], SMALLEST[dtype] / 2)


def _saturated(got: np.ndarray, want: np.ndarray) -> Reading | None:
    level = np.abs(got)
    beyond = np.ptp(level) == 0 and (np.abs(want) > level).all() and np.unique(np.abs(want)).size > 1
    if not beyond or not ((got < 0) == (want < 0)).all():
        return None
    return Reading("saturation", f"|got| stops at {level[0]:.6g}: reads like saturation", float(level[0]))


def _proportional(got: np.ndarray, want: np.ndarray, dtype: torch.dtype) -> Reading | None:
    at = int(np.abs(want).argmax())
    if want[at] == 0 or np.unique(np.abs(want)).size < 2:
        return None
    factor = got[at] / want[at]
    # The factor itself comes from two rounded numbers.
    unit = 2.0 ** -SIGNIFICANT[dtype]
    slack = _slack(got, dtype) + abs(factor) * _slack(want, dtype) + 2 * unit * np.abs(factor * want)
    if abs(factor - 1) <= 8 * unit or not (np.abs(got - factor * want) <= slack).all():
        return None
    return Reading("proportional", f"got = {factor:.5g} * want: reads like a scale fault", float(factor))


# What has a number for each token, and for each channel.
SCALE_OF = {"token": "activation", "channel": "weight"}


def _by_line(
    got: np.ndarray, want: np.ndarray, dtype: torch.dtype, lines: Mapping[str, np.ndarray]
) -> Reading | None:
    """got = c * want, with one c in each token, or in each channel."""
    for name, line in lines.items():
        if np.unique(line).size > 1 and _Labelled.of(got, want, line).proportional(dtype):
            words = f"each {name} is off by a factor of its own: reads like the {SCALE_OF[name]} scale"
            return Reading(f"factor-each-{name}", words)
    return None


def _in_steps(
    got: np.ndarray,
    want: np.ndarray,
    slack: np.ndarray,
    steps: np.ndarray | None,
    shared: np.ndarray | None,
) -> Reading | None:
    if steps is None:
        return None
    telling = np.isfinite(steps) & (steps > 0) & (slack <= WIDEST * steps)
    if np.count_nonzero(telling) < max(2, got.size / 2):
        return None
    off, tolerance = (got - want)[telling] / steps[telling], (slack / steps)[telling]
    whole, wanted = np.rint(off), want[telling]
    if np.unique(wanted).size < 2:
        return None
    if not (np.abs(off - whole) <= tolerance).all() or not whole.any():
        return None
    size = abs(int(whole[0]))
    unit = "step" if size == 1 else "steps"
    # All of 4 or 8 bits: what the sign bit of a code or a zero is worth, one way or the other.
    fault = "a code or zero read with the wrong sign" if size in (16, 256) else "a zero-point fault"
    if (whole == whole[0]).all():
        words = f"constant offset of {int(whole[0]):+d} {unit}: reads like {fault}"
        return Reading("offset-steps", words, float(whole[0]))
    if (np.abs(whole) == size).all() and np.unique(np.abs(wanted)).size > 1:
        words = f"offset of {size} {unit}, up or down: reads like {fault}"
        return Reading("offset-steps", words, float(size))
    labels = None if shared is None else shared[telling]
    if labels is not None and np.unique(labels).size > 1 and _constant_in(whole, wanted, labels):
        return Reading("zero-each", "a constant number of steps for each scale: reads like wrong zero-points")
    words = f"whole steps, {np.unique(whole).size} different numbers: reads like other codes or zeros"
    return Reading("whole-steps", words)


def _constant_in(values: np.ndarray, wanted: np.ndarray, labels: np.ndarray) -> bool:
    """Whether values of one label are equal, for labels that hold most elements, each with two wants."""
    _, index, counts = np.unique(labels, return_inverse=True, return_counts=True)
    index = index.reshape(-1)
    ends = []
    for numbers in (values, wanted):
        low, high = np.full(counts.size, np.inf), np.full(counts.size, -np.inf)
        np.minimum.at(low, index, numbers)
        np.maximum.at(high, index, numbers)
        ends.append(low == high)
    constant, one_want = ends
    return bool(constant.all()) and int(counts[~one_want].sum()) * 2 >= values.size


def _offset(got: np.ndarray, want: np.ndarray, slack: np.ndarray) -> Reading | None:
    error = got - want
    # The middle of what the element with the least slack admits.
    offset = error[int(slack.argmin())]
    close = np.abs(error - offset) <= slack + slack.min()
    if np.unique(want).size < 2 or not close.all() or not (np.abs(error) > slack).all():
        return None
    return Reading("offset", f"got = want {offset:+.6g}: a constant offset", float(offset))


@dataclasses.dataclass(frozen=True)
class _Labelled:
    """Elements in the order of their labels, and of w in each.

    Attributes:
        g, w: float64 [n].
        label: int [n], numbered from 0.
        first, last: int [labels], where each label begins and ends.
        kinds: int [labels], its different w.
    """

    g: np.ndarray
    w: np.ndarray
    label: np.ndarray
    first: np.ndarray
    last: np.ndarray
    kinds: np.ndarray

    @classmethod
    def of(cls, got: np.ndarray, want: np.ndarray, shared: np.ndarray) -> _Labelled:
        labels, index = np.unique(shared, return_inverse=True)
        index = index.reshape(-1)
        order = np.lexsort((want, index))
        start = np.searchsorted(index[order], np.arange(labels.size))
        stop = np.append(start[1:], index.size)
        g, w, label = got[order], want[order], index[order]
        different = np.ones(w.size, bool)
        different[1:] = (w[1:] != w[:-1]) | (label[1:] != label[:-1])
        kinds = np.add.reduceat(different.astype(np.int64), start)
        return cls(g, w, label, start, stop - 1, kinds)

    def of_most(self, good: np.ndarray, least: int) -> bool:
        """Whether all elements are good whose label has ``least`` different w, and these are most."""
        enough = (self.kinds >= least)[self.label]
        return bool(good[enough].all() and np.count_nonzero(enough) * 2 >= self.w.size)

    def proportional(self, dtype: torch.dtype) -> bool:
        """Whether g = c * w with one c for each label."""
        unit = 2.0 ** -SIGNIFICANT[dtype]
        ends = np.abs(self.w[self.first]) > np.abs(self.w[self.last])
        outer = np.where(ends, self.first, self.last)
        factor = (self.g[outer] / self.w[outer])[self.label]
        slack = _slack(self.g, dtype) + np.abs(factor) * _slack(self.w, dtype)
        near = np.abs(self.g - factor * self.w) <= slack + 2 * unit * np.abs(factor * self.w)
        return self.of_most(near, 2)


def _each(
    got: np.ndarray,
    want: np.ndarray,
    dtype: torch.dtype,
    steps: np.ndarray | None,
    shared: np.ndarray | None,
) -> Reading | None:
    """Relations that hold within each scale: got = a * want, or got = a * want + b."""
    if shared is None:
        return None
    found = _Labelled.of(got, want, shared)
    if found.proportional(dtype):
        return Reading("scale-each", "got = c * want, c constant for each scale: reads like wrong scales")
    g, w, label, first, last = found.g, found.w, found.label, found.first, found.last
    if steps is None or np.median(np.abs(g - w)) <= CLEAR * np.median(_slack(g, dtype) + _slack(w, dtype)):
        return None  # a table has no zero; and a line fits few points that lie within their roundings
    slope = (g[last] - g[first]) / (w[last] - w[first])
    base = g[first] - slope * w[first]
    ends = np.maximum.reduceat(_slack(g, dtype) + np.abs(slope[label]) * _slack(w, dtype), first)
    good = np.abs(g - (slope[label] * w + base[label])) <= 3 * ends[label]
    if found.of_most(good, 3):
        return Reading(
            "linear-each",
            "got = a * want + b for each scale: reads like scale and zero of another group",
        )
    return None


def _growing(got: np.ndarray, want: np.ndarray) -> Reading | None:
    """Errors that are a bounded part of the value over several binades."""
    error, size = np.abs(got - want), np.abs(want)
    kept = (size > 0) & (error > 0)
    if np.count_nonzero(kept) < 16:
        return None
    binade = np.floor(np.log2(size[kept]))
    if np.ptp(binade) < 3 or (error[kept] / size[kept]).max() > 2.0**-4:
        return None
    slope = float(np.polyfit(np.log2(size[kept]), np.log2(error[kept]), 1)[0])
    if not 0.5 <= slope <= 1.5:
        return None
    part = float(np.median(error[kept] / size[kept]))
    words = f"error grows with magnitude, about 2**{np.log2(part):.0f} of it: reads like lost precision"
    return Reading("growing", words, part)
