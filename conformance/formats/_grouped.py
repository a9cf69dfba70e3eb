"""What gptq and the three AWQ layouts share: dimensions, fields in words, floats of the pack route."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import torch

from conformance.dims import Choice, Dim, Patterned, Pick, one_of
from conformance.errors import UsageError
from conformance.patterns import (
    FINITE_SCALES,
    SCALE_PATTERNS,
    WORD_PATTERNS,
    Pattern,
    scale_values,
    word_bytes,
)
from conformance.randomness import raw_bytes, raw_ints
from conformance.steps import NEAR, distance, near_sizes, smaller_sizes

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}

WORDS = Patterned("words", Pattern("random", 0), known=WORD_PATTERNS)
SCALES = Patterned("scales", Pattern("ordinary", 0), known=SCALE_PATTERNS, generated=FINITE_SCALES)
# Scales that upstream's packers can divide by, and whose products stay inside float16.
PACK_SCALES = dataclasses.replace(SCALES, generated=("one", "ordinary", "negative", "small"))
SCALE_DTYPE = Choice("sdtype", "fp16", choices=tuple(DTYPES))


@dataclasses.dataclass(frozen=True)
class Size(Dim):
    """An integer; ``sizes`` gives those that are drawn, simplest first, from what was drawn before."""

    sizes: Callable[[Mapping[str, Any]], tuple[int, ...]]
    minimum: int = 0
    is_size: ClassVar[bool] = True

    def parse(self, text: str) -> int:
        number = text.removeprefix("-") if self.minimum < 0 else text
        if not number.isdecimal() or int(text) < self.minimum:
            raise UsageError(f"{self.name}: expected an integer of at least {self.minimum}, found {text!r}")
        return int(text)

    def draw(self, pick: Pick, drawn: Mapping[str, Any]) -> int:
        return one_of(pick, self.sizes(drawn))

    def _drawn(self, case: Mapping[str, Any]) -> tuple[int, ...]:
        return tuple(size for size in self.sizes(case) if size >= max(1, self.minimum))

    def neighbours(self, value: Any, case: Mapping[str, Any]) -> Iterator[tuple[int, Any]]:
        """Sizes around it and those that are drawn with the other dimensions; and the marker -1."""
        if value < 0:
            yield from ((NEAR, size) for size in dict.fromkeys((self.default, *self._drawn(case))))
            return
        if self.minimum < 0:
            yield NEAR, self.minimum
        for size in near_sizes(value, max(1, self.minimum), (self.default, *self._drawn(case))):
            yield distance(value, size), size

    def simpler(self, value: Any, case: Mapping[str, Any]) -> Iterator[Any]:
        """The marker -1, then smaller sizes."""
        if value >= 0:
            if self.minimum < 0:
                yield self.minimum
            yield from smaller_sizes(value, max(1, self.minimum))


@dataclasses.dataclass(frozen=True)
class Dependent(Choice):
    """A choice that is narrowed by what was drawn before."""

    narrow: Callable[[Mapping[str, Any]], tuple[Any, ...]] = lambda drawn: ()

    def draw(self, pick: Pick, drawn: Mapping[str, Any]) -> Any:
        return one_of(pick, self.narrow(drawn))

    def neighbours(self, value: Any, case: Mapping[str, Any]) -> Iterator[tuple[int, Any]]:
        allowed = self.narrow(case)
        return ((far, choice) for far, choice in super().neighbours(value, case) if choice in allowed)


def pack_fields(fields: np.ndarray, bits: int, n_words: int, junk: str) -> np.ndarray:
    """Fields [R, n] as a dense little-endian stream along the last axis: int32 [R, n_words].

    The bits behind the last field are random, a function of ``junk``: they are padding.
    """
    n_rows, count = fields.shape
    stream = raw_bytes(f"padding/{junk}", n_rows * n_words * 32).reshape(n_rows, n_words * 32) & 1
    of_each = (fields[..., None] >> np.arange(bits)) & 1
    stream[:, : count * bits] = of_each.reshape(n_rows, count * bits)
    return np.packbits(stream, axis=1, bitorder="little").view("<i4").astype(np.int32)


def words(
    pattern: Pattern, shape: tuple[int, int], dtype: torch.dtype = torch.int32, bits: int = 4
) -> torch.Tensor:
    """Packed words of ``shape``: any bit pattern."""
    data = word_bytes(pattern, shape[0] * shape[1] * dtype.itemsize, bits)
    # Viewed by NumPy: torch refuses to view an empty tensor whose stride is 0.
    return torch.from_numpy(data.view(np.int32 if dtype.itemsize == 4 else np.int16)).reshape(shape)


def fields(pattern: Pattern, n_groups: int, n_cols: int, bits: int) -> np.ndarray:
    """Zero fields int64 [G, N], as they are stored.

    ======== ==========================================================================
    mid      the middle of the range everywhere: a symmetric weight
    ramp     0, 1, 2, ... along a row; the next group starts one further
    down     the same, counting down from the largest
    maxq     the largest value everywhere
    below    random, the largest value excepted
    random   random over the full range
    top      as random, with half of them the largest value
    ======== ==========================================================================
    """
    shape, top = (n_groups, n_cols), 2**bits - 1
    along = np.arange(n_cols, dtype=np.int64)[None, :] + np.arange(n_groups, dtype=np.int64)[:, None]
    label = f"zeros/{pattern.name}/{pattern.number}"
    if pattern.name == "mid":
        return np.full(shape, 2 ** (bits - 1), np.int64)
    if pattern.name == "maxq":
        return np.full(shape, top, np.int64)
    if pattern.name == "ramp":
        return along % (top + 1)
    if pattern.name == "down":
        return top - along % (top + 1)
    bound = top if pattern.name == "below" else top + 1
    found = raw_ints(label, n_groups * n_cols, bound).reshape(shape)
    if pattern.name == "top":
        found[raw_ints(label + "/top", found.size, 2).reshape(shape) == 1] = top
    return found


def scales(case: Any, shape: tuple[int, int], dtype: torch.dtype) -> torch.Tensor:
    """Scales of the case's profile, each (group, column) its own."""
    return scale_values(case["scales"], shape[0] * shape[1], dtype).reshape(shape)


def steps_above_zero(pattern: Pattern, shape: tuple[int, int], bits: int) -> np.ndarray:
    """Where in its group's range each float weight lies: float64 0 .. maxq, so that no code is clamped."""
    n, top = shape[0] * shape[1], 2**bits - 1
    if pattern.name == "zeros":
        unit = np.zeros(n)
    elif pattern.name == "ones":
        unit = np.full(n, float(top))
    elif pattern.name == "onehot":
        unit = np.zeros(n)
        unit[(pattern.number or 0) % n] = top
    elif pattern.name == "ramp":
        unit = np.arange(n) % (16 * top + 1) / 16
    else:
        unit = raw_ints(f"floats/{pattern.number}", n, 2**24) * (top / (2**24 - 1))
    return unit.reshape(shape)


@dataclasses.dataclass(frozen=True)
class Rounded:
    """A float weight ready to be quantized to nearest, with its groups' parameters.

    Attributes:
        floats: float64 [K, N], within what codes 0..maxq can reach.
        scales: float64 [G, N], exact in the dtype that is stored.
        zeros: int64 [G, N].
    """

    floats: np.ndarray
    scales: np.ndarray
    zeros: np.ndarray


def round_to_nearest(
    values: np.ndarray, group: np.ndarray, n_groups: int, bits: int, *, symmetric: bool, least_zero: int
) -> Rounded:
    """Scales and zeros of a real weight [K, N] by the extremes of each group, scales in float16.

    What is further out than the codes reach (by less than a step: the zero and the scale are
    rounded) is clipped here and not left to the packer, since AutoGPTQ's and AutoAWQ's do not clamp.
    """
    top = 2**bits - 1
    low = np.zeros((n_groups, values.shape[1]))
    high = low.copy()
    for g in range(n_groups):
        rows = values[group == g]
        if rows.size:
            low[g] = np.minimum(rows.min(axis=0), 0)
            high[g] = np.maximum(rows.max(axis=0), 0)
    if symmetric:
        high = np.maximum(high, -low)
        low = -high
    step = ((high - low) / top).astype(np.float16).astype(np.float64)
    step[step == 0] = 1.0
    if symmetric:
        zeros = np.full(step.shape, 2 ** (bits - 1), np.int64)
    else:
        zeros = np.clip(np.rint(-low / step), least_zero, top).astype(np.int64)
    bottom = (-zeros * step)[group]
    ceiling = ((top - zeros) * step)[group]
    return Rounded(np.clip(values, bottom, ceiling), step, zeros)


def slack(bits: int) -> float:
    """In steps, by how much float32 arithmetic of a packer can move a weight across a tie:
    round((W + zero * scale) / scale) rounds three times, at no more than twice 2**bits steps."""
    return 2.0 ** (bits - 22)


WHY = (
    "half of the stored scale; the packer computes (W + zero * scale) / scale in float32, whose roundings "
    "move a weight at most 2**(bits - 22) of a step across a tie"
)
