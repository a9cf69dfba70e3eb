"""Random bytes that are the same on every machine and with every version of every library.

Only a bit generator's raw output is used: NumPy keeps those streams stable, unlike the
distribution methods, and no global or device random state is touched.
"""

from __future__ import annotations

import hashlib
import threading

import numpy as np

# One generator a thread, put to each label's key: a new one would first ask the system for entropy.
_held = threading.local()
_ZEROS = np.zeros(4, np.uint64)
_WORD, _HALF, _BYTE = np.dtype("<u8"), np.dtype("<u4"), np.dtype("u1")
_ZEROS.setflags(write=False)


def _philox(key: np.ndarray) -> np.random.Philox:
    """``np.random.Philox(key=key)``, the thread's own."""
    if not hasattr(_held, "philox"):
        _held.philox = np.random.Philox(key=0)
    found: np.random.Philox = _held.philox
    found.state = {
        "bit_generator": "Philox",
        "state": {"counter": _ZEROS, "key": key},
        "buffer": _ZEROS,
        "buffer_pos": 4,
        "has_uint32": 0,
        "uinteger": 0,
    }
    return found


def raw_bytes(label: str, count: int) -> np.ndarray:
    """``count`` random bytes, a pure function of ``label``: uint8 [count], writable."""
    key = np.frombuffer(hashlib.sha256(label.encode()).digest(), _WORD, 2)
    words = _philox(key).random_raw(-(-count // 8))
    return np.asarray(words, dtype=_WORD).view(_BYTE)[:count]


def raw_ints(label: str, count: int, bound: int) -> np.ndarray:
    """``count`` integers in [0, bound): int64. The modulo bias (below bound / 2**32) is harmless here."""
    words = raw_bytes(label, 4 * count).view(_HALF)
    if 0 < bound <= 2**32 and bound & (bound - 1) == 0:
        return (words & np.uint32(bound - 1)).astype(np.int64)
    return words.astype(np.int64) % bound
