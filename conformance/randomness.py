"""Random bytes that are the same on every machine and with every version of every library.

Only a bit generator's raw output is used: NumPy keeps those streams stable, unlike the
distribution methods, and no global or device random state is touched.
"""

from __future__ import annotations

import hashlib

import numpy as np


def raw_bytes(label: str, count: int) -> np.ndarray:
    """``count`` random bytes, a pure function of ``label``: uint8 [count], writable."""
    key = int.from_bytes(hashlib.sha256(label.encode()).digest()[:16], "little")
    words = np.random.Philox(key=key).random_raw(-(-count // 8))
    return np.frombuffer(np.asarray(words, dtype="<u8").tobytes(), dtype=np.uint8)[:count].copy()


def raw_ints(label: str, count: int, bound: int) -> np.ndarray:
    """``count`` integers in [0, bound): int64. The modulo bias (below bound / 2**32) is harmless here."""
    words = raw_bytes(label, 4 * count).view("<u4").astype(np.int64)
    return words % bound
