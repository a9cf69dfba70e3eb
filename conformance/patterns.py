"""Patterns: a name with an optional integer, ``ramp`` or ``random(7)``, and the data they stand for.

Ordered from simple to wild, which is the order in which failures shrink.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import torch

from conformance.errors import UsageError
from conformance.randomness import raw_bytes, raw_ints


class Pattern(NamedTuple):
    """A pattern's name and its seed or position (None for patterns without one)."""

    name: str
    number: int | None = None

    def __str__(self) -> str:
        return self.name if self.number is None else f"{self.name}({self.number})"


# name -> whether a number in parentheses follows
WORD_PATTERNS = {"zeros": False, "ones": False, "top": False, "onehot": True, "ramp": False, "random": True}
SCALE_PATTERNS = {
    "one": False,
    "ordinary": True,
    "ties": True,
    "tiny": True,
    "subnormal": True,
    "zero": False,
    "negative": True,
    "small": True,
    "huge": True,
    "over": True,
    "mixed": True,
    "inf": True,
    "nan": True,
}
FINITE_SCALES = tuple(name for name in SCALE_PATTERNS if name not in ("inf", "nan"))


def parse_pattern(field: str, text: str, known: dict[str, bool]) -> Pattern:
    """Parse ``name`` or ``name(number)``.

    Raises:
        UsageError: unknown name, or a number missing or left over.
    """
    match = re.fullmatch(r"([a-z_]+)(?:\(([0-9]{1,18})\))?", text)
    if not match or match[1] not in known:
        raise UsageError(f"{field}: expected one of {', '.join(known)}, found {text!r}")
    if (match[2] is not None) != known[match[1]]:
        want = "a number in parentheses" if known[match[1]] else "no number"
        raise UsageError(f"{field}: expected {want} after {match[1]}, found {text!r}")
    return Pattern(match[1], None if match[2] is None else int(match[2]))


def word_bytes(pattern: Pattern, count: int, bits: int = 8) -> np.ndarray:
    """Packed bytes uint8 [count] of codes of ``bits`` bits. Every bit pattern is legal input.

    ``ramp`` counts 0, 1, 2, ... through the first sixteen codes of 4-bit bytes (high nibble
    first; what follows has a carry in it) and through the bytes otherwise; ``top`` sets the top
    bit of every code (-128, where codes are signed bytes); ``onehot(k)`` sets bit k (modulo the
    size) and no other.
    """
    if pattern.name == "zeros":
        return np.zeros(count, np.uint8)
    if pattern.name == "ones":
        return np.full(count, 255, np.uint8)
    if pattern.name == "top":
        if 8 % bits == 0:
            return np.full(count, sum(1 << bit for bit in range(bits - 1, 8, bits)), np.uint8)
        return np.packbits(np.arange(8 * count) % bits == bits - 1, bitorder="little")
    if pattern.name == "onehot":
        data = np.zeros(count, np.uint8)
        if count:
            position = (pattern.number or 0) % (8 * count)
            data[position // 8] = 1 << (position % 8)
        return data
    if pattern.name == "ramp":
        step, first = (0x22, 0x01) if bits == 4 else (1, 0)
        return ((np.arange(count, dtype=np.int64) * step + first) & 255).astype(np.uint8)
    return raw_bytes(f"words/{pattern.number}", count)


# dtype -> (bits of the exponent, bits of the mantissa, integer views)
_FLOAT_FORMATS = {
    torch.float16: (5, 10, np.uint16, np.int16),
    torch.bfloat16: (8, 7, np.uint16, np.int16),
    torch.float32: (8, 23, np.uint32, np.int32),
}
# Patterns of scales whose elements are of several kinds, or of either sign.
_TOSSED = ("ties", "negative", "huge", "over", "mixed", "inf", "nan")


def scale_values(pattern: Pattern, count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Scales [count] of ``dtype``, put together from exponent and mantissa bits.

    Every scale is different (but for ``one``, ``zero`` and a few of ``ties``), so that a wrong index shows.

    =========== =====================================================================
    one, zero   the same value everywhere
    ordinary    2**-10 to 2**-3, log-uniform
    ties        the same, half-way between two bfloat16 or two float16 numbers
    tiny        the smallest normal numbers of ``dtype``
    subnormal   subnormal numbers of ``dtype``
    negative    ordinary magnitudes, either sign
    small       2**-26 to 2**-14: products are subnormal in float16
    huge        up to the edge of overflow of float16, or of ``dtype``
    over        past the edge of float16, and the last binade of ``dtype``
    mixed       any sign, wide range, zeros of either sign and subnormals among them
    inf, nan    ordinary, with one in four replaced
    =========== =====================================================================
    """
    exponent_bits, mantissa_bits, view, signed_view = _FLOAT_FORMATS[dtype]
    bias = 2 ** (exponent_bits - 1) - 1
    top = 2**exponent_bits - 2  # largest exponent field of a finite number
    name, label = pattern.name, f"scales/{pattern.name}/{pattern.number}"
    exponent: np.ndarray | int
    mantissa: np.ndarray | int = 0
    sign: np.ndarray | int = 0

    def between(low: int, high: int) -> np.ndarray:
        # Both ends are exponents of normal numbers of the dtype, whatever was asked for.
        low, high = (min(top, max(1, end + bias)) for end in (low, high))
        return low + raw_ints(label + "/exponent", count, max(1, high - low + 1))

    if name not in ("one", "zero"):
        mantissa = raw_ints(label + "/mantissa", count, 2**mantissa_bits)
    coin = raw_ints(label + "/coin", count, 256) if name in _TOSSED else np.zeros(0, np.int64)
    if name in ("ordinary", "inf", "nan"):
        exponent = between(-10, -4)
    elif name == "ties":
        exponent = between(-10, -4)
        lost = np.maximum(mantissa_bits - np.where(coin & 1, 7, 10), 0)
        mantissa = (mantissa >> lost << lost) | (1 << lost >> 1)
    elif name == "one":
        exponent = bias
    elif name == "zero":
        exponent = 0
    elif name == "tiny":
        exponent = 1
    elif name == "subnormal":
        exponent, mantissa = 0, mantissa | 1
    elif name == "negative":
        exponent, sign = between(-10, -4), coin & 1
    elif name == "small":
        exponent = between(-26, -14)
    elif name == "huge":
        exponent = np.where(coin & 1, between(13, 15), min(top, 100 + bias))
    elif name == "over":
        exponent = np.where(coin & 1, between(16, 18), top)
    else:
        exponent, sign = between(-30, 15), coin & 1
        exponent = np.where(coin < 32, 0, exponent)
        mantissa = np.where(coin < 16, 0, mantissa)
    if name in ("inf", "nan"):
        special = coin % 4 == 0
        if count:
            special[int(coin[0]) % count] = True
        exponent = np.where(special, top + 1, exponent)
        mantissa = np.where(special, 0 if name == "inf" else 1 << (mantissa_bits - 1), mantissa)
        sign = np.where(special, (coin >> 2) & 1, sign)
    bits = np.empty(count, view)
    bits[:] = (sign << (exponent_bits + mantissa_bits)) | (exponent << mantissa_bits) | mantissa
    return torch.from_numpy(bits.view(signed_view)).view(dtype)
