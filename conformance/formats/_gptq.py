"""Dimensions of gptq's cases, on the words route and for what upstream's packers take."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from conformance.dims import Choice, Patterned, Pick
from conformance.formats import _grouped
from conformance.formats._grouped import DTYPES, Dependent, Size
from conformance.patterns import Pattern
from kernels import gptq

ORDERS = {
    "none": False,
    "sequential": False,
    "perm": True,
    "unequal": True,
    "repeated": True,
    "missing": True,
}
STORED = {
    "mid": False,
    "ramp": False,
    "down": False,
    "maxq": False,
    "below": True,
    "random": True,
    "top": True,
}


def codes_of_words(bits: int) -> int:
    """Codes of the smallest run of whole words."""
    return 32 if bits == 3 else 32 // bits


def _rows(drawn: Mapping[str, Any]) -> tuple[int, ...]:
    """K: around words, groups and tiles, primes; many multiples of 32, for AutoGPTQ's sake."""
    if drawn["bits"] == 3:
        return (32, 32, 32, 64)
    word, size = codes_of_words(drawn["bits"]), drawn["g"]
    near = () if size < 2 else (size - 1, size, size + 1, 2 * size, 2 * size + word + 1, 3 * size)
    edges = (word, 32, 1, 2, word - 1, word + 1, 2 * word, 31, 32, 33, 37, 61, 64)
    # A row costs a millisecond in the interpreter, two in activation order.
    short = tuple(rows for rows in (*edges, *near) if 0 < rows <= 65)
    return (*short, 129) if size == 128 else short


def _cols(drawn: Mapping[str, Any]) -> tuple[int, ...]:
    """N: as K, and G, where transposed scales have the same shape."""
    if drawn["bits"] == 3:
        return (32, 64, 96, 128)
    word, size = codes_of_words(drawn["bits"]), drawn["g"]
    groups = 1 if size < 1 else -(-drawn["K"] // size)
    return (word, 32, 64, 1, 2, 3, 7, 9, 15, 17, 31, 32, 33, 37, 61, 64, 96, 131, groups)


# A 3-bit case costs three times as much: 32 rows at least, most of them in activation order.
BITS = Choice("bits", 4, choices=(4, 2, 3, 8), generated=(4, 2, 8, 4, 3, 2, 8))
PACKER = Choice(
    "packer", "gptqmodel", choices=("gptqmodel", "autogptq", "autogptq-old"), generated=("gptqmodel",)
)
GROUP = Size("g", 32, lambda drawn: (-1, 32, 16, 64, 128, 8, 1, 5, 20, 24, 32, 16), minimum=-1)
ROWS = Size("K", 64, _rows)
COLS = Size("N", 32, _cols)
ORDER = Patterned("act", Pattern("none"), known=ORDERS, generated=("none", *ORDERS))
ZEROS = Choice("zeros", "v1", choices=gptq.ZERO_CONVENTIONS)
PATTERN = Patterned("zp", Pattern("random", 0), known=STORED)
DIMS = (
    PACKER,
    BITS,
    GROUP,
    ROWS,
    COLS,
    ORDER,
    ZEROS,
    PATTERN,
    _grouped.SCALE_DTYPE,
    _grouped.WORDS,
    _grouped.SCALES,
)


# --- pack route: what each packer writes ------------------------------------------------------


def _conventions(drawn: Mapping[str, Any]) -> tuple[str, ...]:
    if drawn["packer"] == "gptqmodel":
        return ("v1", "v2")
    return ("v1",) if drawn["packer"] == "autogptq-old" and drawn["bits"] != 3 else ("v1-nowrap",)


def _pack_rows(drawn: Mapping[str, Any]) -> tuple[int, ...]:
    if drawn["packer"] == "gptqmodel":
        return _rows(drawn)
    sizes: tuple[int, ...] = (32, 64)
    if drawn["packer"] == "autogptq-old" and drawn["g"] > 0:
        sizes = tuple(size for size in (32, 64, 128) if size % drawn["g"] == 0)
    return sizes


@dataclasses.dataclass(frozen=True)
class _PackOrder(Patterned):
    """AutoGPTQ's old layer ignores g_idx."""

    def draw(self, pick: Pick, drawn: Mapping[str, Any]) -> Pattern:
        return Pattern("none") if drawn["packer"] == "autogptq-old" else super().draw(pick, drawn)


PACK_DIMS = (
    dataclasses.replace(PACKER, generated=None),
    Size("g", 32, lambda drawn: (-1, 32, 16, 64, 128), minimum=-1),
    Size("K", 64, _pack_rows),
    Size("N", 32, lambda drawn: _cols(drawn) if drawn["packer"] == "gptqmodel" else (32, 64, 96)),
    _PackOrder("act", Pattern("none"), known=ORDERS),
    Dependent("zeros", "v1", choices=gptq.ZERO_CONVENTIONS, narrow=_conventions),
    Dependent(
        "sdtype",
        "fp16",
        choices=tuple(DTYPES),
        narrow=lambda drawn: ("fp16",) if drawn["packer"] == "gptqmodel" else tuple(DTYPES),
    ),
    _grouped.PACK_SCALES,
)
