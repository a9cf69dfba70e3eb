"""Floats as integers: bit views, ULP distance, printing. Nothing here has a tolerance."""

from __future__ import annotations

import numpy as np
import torch

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
NAMES = {dtype: name for name, dtype in DTYPES.items()}

_INT_VIEW = {
    torch.float16: (torch.int16, np.uint16),
    torch.bfloat16: (torch.int16, np.uint16),
    torch.float32: (torch.int32, np.uint32),
}
_EXPONENT = {torch.float16: 0x7C00, torch.bfloat16: 0x7F80, torch.float32: 0x7F800000}


def to_bits(tensor: torch.Tensor) -> np.ndarray:
    """Bit patterns of a float16, bfloat16 or float32 tensor, on the host, same shape."""
    view, unsigned = _INT_VIEW[tensor.dtype]
    return tensor.detach().contiguous().view(view).cpu().numpy().view(unsigned)


def from_bits(bits: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    """Inverse of :func:`to_bits`; copies."""
    _, unsigned = _INT_VIEW[dtype]
    signed = np.ascontiguousarray(bits, unsigned).view(np.int16 if unsigned is np.uint16 else np.int32)
    return torch.from_numpy(signed.copy()).view(dtype)


def to_float(bits: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """Values of bit patterns as float64 (exact)."""
    if dtype is torch.bfloat16:
        single = (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    else:
        single = np.ascontiguousarray(bits).view(np.float16 if dtype is torch.float16 else np.float32)
    with np.errstate(invalid="ignore"):
        return single.astype(np.float64)


def is_nan(bits: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    magnitude = bits & (2 ** (8 * dtype.itemsize - 1) - 1)
    return magnitude > _EXPONENT[dtype]


def is_finite(bits: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    magnitude = bits & (2 ** (8 * dtype.itemsize - 1) - 1)
    return magnitude < _EXPONENT[dtype]


def same(a: np.ndarray, b: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """Elementwise: equal bits, or both NaN (payloads do not count; the sign of zero does)."""
    equal: np.ndarray = a == b
    return equal if equal.all() else equal | (is_nan(a, dtype) & is_nan(b, dtype))


def all_same(a: np.ndarray, b: np.ndarray, dtype: torch.dtype) -> bool:
    """Whether all elements are :func:`same`."""
    equal = a == b
    # Of a bool array, a third of the time of all().
    return np.count_nonzero(equal) == equal.size or bool(same(a, b, dtype).all())


def ulp_distance(a: np.ndarray, b: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """Number of representable steps between two finite values (int64); +0 and -0 are 0 apart.

    Meaningful where both are finite; callers mask the rest.
    """
    sign = 1 << (8 * dtype.itemsize - 1)

    def ordinal(bits: np.ndarray) -> np.ndarray:
        signed = bits.astype(np.int64)
        return np.where(signed & sign, sign - signed, signed)

    return np.abs(ordinal(a) - ordinal(b))


def show(bits: int, dtype: torch.dtype) -> str:
    """One value with its bits: ``0.2461 (0x33e0)``."""
    value = to_float(np.array([bits], _INT_VIEW[dtype][1]), dtype)[0]
    digits = 2 * dtype.itemsize
    return f"{value:.9g} (0x{int(bits):0{digits}x})"
