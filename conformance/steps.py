"""Integers near a size and below it: what a size is changed to when one dimension is varied."""

from __future__ import annotations

from collections.abc import Iterable

# Words, warps and tiles end at multiples of these.
UNITS = (8, 16, 32, 64, 128)

# How far a change goes; the smallest are tried first.
BY_ONE, TO_DEFAULT, NEAR, FAR, FURTHER = range(5)


def _powers(value: int) -> tuple[int, int]:
    """The powers of two just below and just above a positive ``value``."""
    below = 1 << max(0, (value - 1).bit_length() - 1)
    return below, 1 << value.bit_length()


def distance(value: int, other: int) -> int:
    """How far a size is moved: :data:`BY_ONE`, :data:`NEAR` (to 8), :data:`FAR` (64) or :data:`FURTHER`."""
    moved = abs(other - value)
    return BY_ONE if moved <= 1 else NEAR if moved <= 8 else FAR if moved <= 64 else FURTHER


def near_sizes(value: int, least: int = 1, extra: Iterable[int] = ()) -> tuple[int, ...]:
    """Sizes around ``value``, nearest first, the smaller of two first.

    One less and one more, the multiples of each unit and the powers of two on both sides, half of
    it, and ``extra``; none below ``least``, none of them ``value``.
    """
    found = {value - 1, value + 1, value // 2, *_powers(max(1, value)), *extra}
    for unit in UNITS:
        below = (value - 1) // unit * unit
        found |= {below, value // unit * unit + unit}
    found = {size for size in found if size >= least and size != value}
    return tuple(sorted(found, key=lambda size: (abs(size - value), size)))


def smaller_sizes(value: int, least: int = 1) -> tuple[int, ...]:
    """Sizes below ``value``, smallest first: few, but each step down from ``value`` is there too.

    Small numbers, powers of two and one more, eighths of the way, and the last multiples of each
    unit; one less is the last.
    """
    found = {1, 2, 3, value - 1, value - 2}
    power = 4
    while power < value:
        found |= {power - 1, power, power + 1}
        power *= 2
    found |= {value * part // 8 for part in range(1, 8)}
    for unit in UNITS:
        last = (value - 1) // unit * unit
        found |= {unit, 2 * unit, 3 * unit, last, last - unit, last + 1}
    return tuple(sorted(size for size in found if least <= size < value))
