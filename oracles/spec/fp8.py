"""Numbers of fp8 e4m3fn, from the text of the OCP 8-bit Floating Point Specification; no library's cast."""

from __future__ import annotations

import numpy as np


def _table() -> np.ndarray:
    """float64 [256]: sign, 4 bits of exponent with bias 7, 3 of mantissa; all ones is NaN."""
    code = np.arange(256)
    exponent, mantissa = code >> 3 & 15, code & 7
    size = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10.0))
    size[code & 127 == 127] = np.nan
    return np.where(code >= 128, -size, size)


VALUES = _table()
LARGEST = 448.0
# Sizes of the codes 0..126 in order, and where one rounds up to the next; exact in float64.
_SIZES = VALUES[:127]
_TIES = (_SIZES[:-1] + _SIZES[1:]) / 2


def decode(codes: np.ndarray) -> np.ndarray:
    """float64 values of codes uint8."""
    return VALUES[codes]


def encode(values: np.ndarray) -> np.ndarray:
    """Codes uint8 of float values: to nearest, ties to even, saturating; NaN is 0x7F with its sign."""
    with np.errstate(invalid="ignore"):  # of a signalling NaN
        size = np.abs(values.astype(np.float64))
    size = np.minimum(np.nan_to_num(size, nan=0.0, posinf=np.inf), LARGEST)
    below = np.searchsorted(_TIES, size, side="left")
    # An even code below the tie keeps it, as "left" does; an odd one gives it up.
    tie = (below < _TIES.size) & (_TIES[np.minimum(below, _TIES.size - 1)] == size)
    code = np.where(tie & (below % 2 == 1), below + 1, below)
    code = np.where(np.isnan(values), 127, code)
    return (code | np.where(np.signbit(values), 128, 0)).astype(np.uint8)
