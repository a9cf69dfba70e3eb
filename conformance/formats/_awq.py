"""Dimensions of the AWQ layouts' cases, on the words route and for what AutoAWQ's packers take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from conformance.dims import Choice, Patterned
from conformance.formats import _grouped
from conformance.formats._grouped import DTYPES, Size
from conformance.patterns import Pattern

STORED = {
    "mid": False,
    "ramp": False,
    "down": False,
    "maxq": False,
    "below": True,
    "random": True,
    "top": True,
}


def _divisors(drawn: Mapping[str, Any]) -> tuple[int, ...]:
    """Group sizes of awq_cols: one group, the divisors of K, and one that spans it."""
    rows = drawn["K"]
    # A program decodes rows of one group, so that small groups are many programs.
    return (-1, *(size for size in range(rows, 0, -1) if rows % size == 0 and rows // size <= 8), 128)


def _rows(drawn: Mapping[str, Any]) -> tuple[int, ...]:
    """K of awq_rows: whole groups and whole words."""
    size = drawn["g"]
    if size == -1:
        return (32, 64, 128, 16, 136, 152, 256)
    return tuple(
        rows for n in (1, 2, 3, 5, 8, 9, 17) if (rows := n * size) % 8 == 0 and (n < 3 or rows <= 600)
    )


def _chunks(drawn: Mapping[str, Any]) -> tuple[int, ...]:
    """K of awq_quads: whole groups and whole chunks of 64."""
    size = drawn["g"]
    if size == -1:
        return (64, 128, 192, 320)
    return tuple(rows for n in range(1, 33) if (rows := n * size) % 64 == 0 and (rows <= 320 or n == 1))


ORDINARY = Patterned("zp", Pattern("random", 0), known=STORED)
COLS_DIMS = (
    Size("K", 64, lambda drawn: (8, 32, 1, 2, 15, 16, 31, 33, 37, 48, 64)),
    Size("N", 32, lambda drawn: (8, 32, 16, 24, 40, 64, 72, 120, 128, 136, 256)),
    Size("g", 32, _divisors, minimum=-1),
    ORDINARY,
    _grouped.SCALE_DTYPE,
    _grouped.WORDS,
    _grouped.SCALES,
)
PADDED_GROUP = Size("g", 32, lambda drawn: (-1, 32, 64, 128, 16, 132, 136, 200), minimum=-1)
ROWS_DIMS = (
    PADDED_GROUP,
    Size("K", 64, _rows),
    Size("N", 8, lambda drawn: (8, 1, 16, 2, 3, 4, 5, 9, 24)),
    ORDINARY,
    _grouped.SCALE_DTYPE,
    _grouped.WORDS,
    _grouped.SCALES,
)
QUADS_DIMS = (
    Size("g", 32, lambda drawn: (-1, 32, 64, 16, 128, 160, 192), minimum=-1),
    Size("K", 64, _chunks),
    Size("N", 8, lambda drawn: (8, 4, 16, 12, 20)),
    # Where they come from: zero * scale as AutoAWQ stores it, or any float16. ``least`` is the smallest
    # one of either sign, which is asked for by name.
    Patterned(
        "zp",
        Pattern("random", 0),
        known={**STORED, "free": True, "least": False},
        generated=(*STORED, "free"),
    ),
    _grouped.WORDS,
    _grouped.SCALES,
)

# AutoAWQ's packers. Scales are stored in float16 whatever they are given in.
_PACKED = (_grouped.PACK_SCALES, Choice("sdtype", "fp16", choices=tuple(DTYPES), generated=("fp16",)))
COLS_PACK = (*_PACKED, Size("N", 32, lambda drawn: (32, 64, 96)))
ROWS_PACK = (
    *_PACKED,
    Size("g", 32, lambda drawn: (-1, 32, 64, 128, 160), minimum=-1),
    Size(
        "K",
        64,
        lambda drawn: (32, 64, 128, 160) if drawn["g"] == -1 else tuple(drawn["g"] * n for n in (1, 2, 3)),
    ),
    Size("N", 8, lambda drawn: (8, 16, 24)),
)
QUADS_PACK = (
    _PACKED[0],
    Size("g", 32, lambda drawn: (-1, 32, 64, 128, 192), minimum=-1),
    Size("N", 8, lambda drawn: (8, 16)),
    Patterned("zp", Pattern("random", 0), known={**STORED, "free": True}, generated=tuple(STORED)),
)
