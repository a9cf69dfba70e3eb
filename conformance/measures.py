"""How large an error is and what shape it has: measures of a comparison, in pure NumPy.

``got`` and ``want`` are bit patterns. g and w are their values as float64, which is exact.

=================== ===============================================================================
absolute error      \\|g - w\\|: largest, and mean over all finite elements, right ones included
relative error      \\|g - w\\| / max(\\|w\\|, epsilon); epsilon is the smallest normal number of the
                    dtype, below which spacing is constant and a ratio says nothing
SNR in dB           20 log10(rms(w) / rms(g - w)); inf when equal, -inf when every w is 0
ULP                 representable steps between g and w; bins 0, 1, 2, 3-4, 5-8, ...
error by magnitude  elements of each binade of \\|w\\|: count, mean relative, mean absolute error
concentration       see :mod:`conformance.localize`
=================== ===============================================================================

Elements that are not finite on both sides are left out of all sums and bins; those that differ are
counted by class (:attr:`Measures.classes`). The sign of a zero is an error of 0 and counted apart.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from conformance.axes import LINES
from conformance.bits import is_finite, is_nan, same, to_float, ulp_distance
from conformance.localize import Concentration, concentration, most_telling
from conformance.readings import Reading, read

# Labels that say what belongs together (one scale, one packed word) and are no places to look at.
HELPERS = ("scale", "word")
SENTENCE = 200


@dataclasses.dataclass(frozen=True)
class UlpBin:
    """Elements whose distance is ``low`` to ``high`` ULP."""

    low: int
    high: int
    count: int

    @property
    def label(self) -> str:
        return f"{self.low}" if self.low == self.high else f"{self.low}-{self.high}"


@dataclasses.dataclass(frozen=True)
class Binade:
    """Elements with 2**exponent <= |want| < 2**(exponent + 1); ``exponent`` None for want = 0."""

    exponent: int | None
    count: int
    mean_abs: float
    mean_rel: float


@dataclasses.dataclass(frozen=True)
class Measures:
    """Error measures of one output.

    Attributes:
        compared, wrong: elements, and those whose bits differ (NaN equals NaN).
        finite: elements that are finite on both sides: what the sums are about.
        classes: differing elements that are not finite on both sides, by what was got and wanted.
        zero_sign: elements that differ in the sign of a zero alone.
        max_abs, mean_abs, max_rel, mean_rel, epsilon, snr_db: see the module's text.
        ulp: histogram of distances; bins without elements are left out.
        magnitude: error by binade of |want|, smallest first.
        axes: concentration on each axis, in the order given.
        reading: what kind of fault the numbers look like.
    """

    compared: int
    wrong: int
    finite: int
    classes: Mapping[str, int]
    zero_sign: int
    max_abs: float
    mean_abs: float
    max_rel: float
    mean_rel: float
    epsilon: float
    snr_db: float
    ulp: tuple[UlpBin, ...]
    magnitude: tuple[Binade, ...]
    axes: tuple[Concentration, ...]
    reading: Reading

    def to_json(self) -> dict[str, Any]:
        """For ``json.dumps``; an infinite SNR is the text ``inf`` or ``-inf``."""
        record = dataclasses.asdict(self)
        record["classes"] = dict(self.classes)
        record["snr_db"] = self.snr_db if math.isfinite(self.snr_db) else str(self.snr_db)
        record["axes"] = [axis.to_json() for axis in self.axes]
        record["sentence"] = self.sentence()
        return record

    def sentence(self, explained: bool = False) -> str:
        """One line of less than 200 characters; without what the error reads like where a cause
        explains it."""
        if not self.wrong:
            return "no element differs"
        parts = []
        if self.finite and not self.max_abs:
            parts.append(
                "finite values are equal"
            )  # whose SNR is infinite, which reads as if nothing were wrong
        elif self.finite:
            parts += [f"SNR {self.snr_db:.1f} dB", f"max |error| {self.max_abs:.3g}"]
        where = most_telling(self.axes)
        spread = self._spread() if where is None else where.words()
        parts.append(f"{_percent(self.wrong, self.compared)} wrong" + (f", {spread}" if spread else ""))
        if self.classes:
            name, count = max(self.classes.items(), key=lambda item: item[1])
            parts.append(f"{count} times {name}" + (" and others" if len(self.classes) > 1 else ""))
        if self.reading.words:
            parts.append(self.reading.words.partition(": reads like")[0] if explained else self.reading.words)
        while len("; ".join(parts)) >= SENTENCE and len(parts) > 1:
            parts.pop(0)  # the numbers are in the JSON; what they mean stays
        return "; ".join(parts)[: SENTENCE - 1]

    def _spread(self) -> str:
        tested = [axis for axis in self.axes if axis.method != "none"]
        return "evenly spread" if tested and all(axis.verdict == "uniform" for axis in tested) else ""


def measure(
    got_bits: np.ndarray,
    want_bits: np.ndarray,
    dtype: torch.dtype,
    *,
    axes: Mapping[str, np.ndarray],
    steps: np.ndarray | None = None,
) -> Measures:
    """Measure ``got`` against ``want``.

    Args:
        got_bits, want_bits: bit patterns of equal shape, uint16 or uint32.
        dtype: float16, bfloat16 or float32.
        axes: integer labels of that shape, what shares a scale first (:mod:`conformance.axes`).
            ``scale`` (one label a scale) and ``word`` (one a packed word) are no axes to
            locate on; ``scale`` serves the readings.
        steps: local quantization step of each element where codes are evenly spaced, else None.

    Raises:
        ValueError: shapes that differ.
    """
    for name, other in {"want": want_bits, "steps": steps, **axes}.items():
        if other is not None and other.shape != got_bits.shape:
            raise ValueError(f"{name}: expected shape {list(got_bits.shape)}, found {list(other.shape)}")
    wrong = ~same(got_bits, want_bits, dtype)
    both = is_finite(got_bits, dtype) & is_finite(want_bits, dtype)
    g, w = to_float(got_bits[both], dtype), to_float(want_bits[both], dtype)
    error = np.abs(g - w)
    epsilon = float(torch.finfo(dtype).tiny)
    relative = error / np.maximum(np.abs(w), epsilon)
    distance = ulp_distance(got_bits[both], want_bits[both], dtype)
    shared = axes.get("scale", next(iter(axes.values()), None))
    at = wrong & both
    reading = read(
        to_float(got_bits[at], dtype),
        to_float(want_bits[at], dtype),
        ulp_distance(got_bits[at], want_bits[at], dtype),
        dtype,
        steps=None if steps is None else np.asarray(steps, np.float64)[at],
        shared=None if shared is None else shared[at],
        lines={name: axes[name][at] for name in LINES if name in axes and got_bits.ndim == 2},
    )
    n = max(g.size, 1)
    return Measures(
        compared=got_bits.size,
        wrong=int(np.count_nonzero(wrong)),
        finite=int(g.size),
        classes=_classes(got_bits[wrong & ~both], want_bits[wrong & ~both], dtype),
        zero_sign=int(np.count_nonzero(at)) - int(np.count_nonzero(distance)),
        max_abs=float(error.max(initial=0.0)),
        mean_abs=float(error.sum() / n),
        max_rel=float(relative.max(initial=0.0)),
        mean_rel=float(relative.sum() / n),
        epsilon=epsilon,
        snr_db=_snr(w, error),
        ulp=_ulp_bins(distance),
        magnitude=_binades(np.abs(w), error, relative),
        axes=tuple(
            concentration(name, labels, wrong) for name, labels in axes.items() if name not in HELPERS
        ),
        reading=reading,
    )


def _percent(part: int, whole: int) -> str:
    """``37 %``; a count where percent would round to 0, or where the whole is small."""
    share = 100 * part / whole
    return f"{share:.0f} %" if share >= 1 and whole >= 100 else f"{part} of {whole}"


def _snr(want: np.ndarray, error: np.ndarray) -> float:
    # Scaled first: squares of bfloat16 extremes times a large count stay inside float64, those
    # of small ones do not.
    noise, signal = float(np.abs(error).max(initial=0.0)), float(np.abs(want).max(initial=0.0))
    if noise == 0:
        return math.inf
    if signal == 0:
        return -math.inf
    ratio = math.sqrt(float(np.mean((want / signal) ** 2)) / float(np.mean((error / noise) ** 2)))
    return 20 * (math.log10(ratio) + math.log10(signal) - math.log10(noise))


def _ulp_bins(distance: np.ndarray) -> tuple[UlpBin, ...]:
    # Bin 0 holds 0; bin b holds 2**(b - 2) + 1 to 2**(b - 1): float64 log2 is exact at powers of two,
    # and distances are below 2**33.
    index = np.zeros(distance.shape, np.int64)
    index[distance > 0] = np.ceil(np.log2(distance[distance > 0])).astype(np.int64) + 1
    counts = np.bincount(index) if index.size else np.zeros(0, np.int64)
    found = []
    for b in np.flatnonzero(counts):
        low = 0 if b == 0 else 1 if b == 1 else 2 ** (int(b) - 2) + 1
        found.append(UlpBin(low, 0 if b == 0 else 2 ** (int(b) - 1), int(counts[b])))
    return tuple(found)


def _binades(size: np.ndarray, error: np.ndarray, relative: np.ndarray) -> tuple[Binade, ...]:
    exponent = np.frexp(size)[1].astype(np.int64) - 1
    zero = size == 0
    low = int(exponent[~zero].min()) if (~zero).any() else 0
    index = np.where(zero, 0, exponent - low + 1)
    counts = np.bincount(index) if index.size else np.zeros(0, np.int64)
    absolute = np.bincount(index, error, minlength=counts.size)
    ratio = np.bincount(index, relative, minlength=counts.size)
    return tuple(
        Binade(
            None if i == 0 else low + int(i) - 1,
            int(counts[i]),
            float(absolute[i] / counts[i]),
            float(ratio[i] / counts[i]),
        )
        for i in np.flatnonzero(counts)
    )


def _classes(got: np.ndarray, want: np.ndarray, dtype: torch.dtype) -> dict[str, int]:
    def kind(bits: np.ndarray) -> np.ndarray:
        infinite = np.where(bits >> (8 * dtype.itemsize - 1), "-infinity", "infinity")
        number = np.where(is_finite(bits, dtype), "a finite value", infinite)
        return np.where(is_nan(bits, dtype), "NaN", number)

    pairs = np.char.add(np.char.add(kind(got), " instead of "), kind(want)) if got.size else np.zeros(0, "U1")
    names, counts = np.unique(pairs, return_counts=True)
    return {str(name): int(count) for name, count in zip(names, counts, strict=True)}
