"""Correct rounding to the output dtypes, on integer bit patterns.

Results are bit patterns (``uint16`` for fp16 and bf16, ``uint32`` for fp32), because NumPy
has no bfloat16 and because the harness compares bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

BIT_DTYPE = {torch.float16: np.uint16, torch.bfloat16: np.uint16, torch.float32: np.uint32}


def _odd_float32(values: np.ndarray) -> np.ndarray:
    """float64 to float32, rounded to odd: a later rounding to fewer bits is then correct.

    Rounding float64 to nearest float32 first and to bfloat16 next rounds twice, and is
    wrong just beside a tie (S. Boldo, G. Melquiond, "Emulation of FMA and correctly
    rounded sums: proved algorithms using rounding to odd", 2008).
    """
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        nearest = values.astype(np.float32)
    toward_zero = np.abs(nearest.astype(np.float64)) > np.abs(values)
    bits = nearest.view(np.uint32)
    bits = np.where(toward_zero, bits - np.uint32(1), bits).astype(np.uint32)
    truncated = bits.view(np.float32)
    inexact = (truncated.astype(np.float64) != values) & ~np.isnan(values)
    return np.where(inexact, bits | np.uint32(1), bits).astype(np.uint32).view(np.float32)


# Mantissa bits and exponent bias of what is rounded.
_SOURCES = {np.dtype(np.float32): (23, 127), np.dtype(np.float64): (52, 1023)}


def _to_float16(values: np.ndarray) -> np.ndarray:
    """Round float32 or float64 to nearest, ties to even; NaN keeps the upper bits of its payload. Returns
    uint16.

    NumPy's own cast gives the same bits, but reports each overflow and underflow, in 60 ns an element.
    """
    mantissa, bias = _SOURCES[values.dtype]
    word: Any = np.uint32 if mantissa == 23 else np.uint64
    bits: Any = values.view(word)
    drop = word(mantissa - 10)
    magnitude = bits & word(2 ** (8 * values.itemsize - 1) - 1)
    # Plus half a step less one, and one where the last bit that stays is set; less the difference in bias.
    # A carry out of the mantissa goes into the exponent, as it should; out of the largest one it is infinity.
    rebias = (bias - 15) << mantissa
    rounded = np.asarray(magnitude >> drop)  # of an array without dimensions, operations make a scalar
    rounded &= word(1)
    rounded += magnitude
    rounded -= word(rebias - (2 ** (mantissa - 11) - 1))
    rounded >>= drop
    np.minimum(rounded, word(0x7C00), out=rounded)
    small = magnitude < word((bias - 14) << mantissa)
    if small.any():
        # The subnormals of float16 are multiples of 2**-24, as all numbers are in the binade of this one: the
        # addition rounds to them.
        one = values.dtype.type(2.0 ** (mantissa - 24))
        np.copyto(rounded, (magnitude.view(values.dtype) + one).view(word) - one.view(word), where=small)
    infinity = word((2 * bias + 1) << mantissa)
    if magnitude.max(initial=word(0)) > infinity:
        payload = magnitude >> drop & word(0x3FF)
        quiet = np.maximum(payload, word(1)) | word(0x7C00)
        np.copyto(rounded, quiet, where=magnitude > infinity)
    rounded |= bits >> word(8 * values.itemsize - 16) & word(0x8000)
    return rounded.astype(np.uint16)


def float32_to_bfloat16(values: np.ndarray) -> np.ndarray:
    """Round float32 to nearest, ties to even; NaN stays a quiet NaN. Returns uint16."""
    bits = np.asarray(values, dtype=np.float32, order="C").view(np.uint32)
    rounded = (bits.astype(np.uint64) + 0x7FFF + ((bits >> 16) & 1)) >> 16
    quiet_nan = (bits >> 16) | 0x40
    return np.where(np.isnan(values), quiet_nan, rounded).astype(np.uint16)


def round_to(values: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """Round float32 or float64 ``values`` once to ``dtype`` and return the bit patterns.

    Raises:
        TypeError: ``values`` is neither float32 nor float64, or ``dtype`` is no output dtype.
    """
    if values.dtype not in _SOURCES:
        raise TypeError(f"values: expected float32 or float64, found {values.dtype}")
    if dtype not in BIT_DTYPE:
        raise TypeError(f"dtype: expected float16, bfloat16 or float32, found {dtype}")
    values = np.asarray(values, order="C")  # ascontiguousarray would add a dimension to a scalar
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        if dtype is torch.float16:
            return _to_float16(values)
        if dtype is torch.float32:
            return values.astype(np.float32).view(np.uint32)
    single = _odd_float32(values) if values.dtype == np.float64 else values
    return float32_to_bfloat16(single)


def numpy_bytes(tensor: torch.Tensor) -> np.ndarray:
    """The bytes of ``tensor`` in element order: uint8 [numel * itemsize]."""
    dense = tensor.detach().cpu().contiguous()
    # as_strided: of a tensor of one or no element, reshape would keep odd strides.
    return dense.as_strided((dense.numel(),), (1,)).view(torch.uint8).numpy()
