"""The exact model's rounding, against torch's casts and against rational arithmetic."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch

from oracles.spec.rounding import BIT_DTYPE, float32_to_bfloat16, numpy_bytes, round_to

# mantissa bits without the hidden one, smallest normal exponent, largest exponent
FORMAT = {
    torch.float16: (10, -14, 15),
    torch.bfloat16: (7, -126, 127),
    torch.float32: (23, -126, 127),
}
SIXTEEN_BIT = [torch.float16, torch.bfloat16]
ids = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}.get


def nearest_even(value: float, dtype: torch.dtype) -> int:
    """Bits of ``value`` rounded to nearest, ties to even, in exact rational arithmetic."""
    mantissa_bits, low, high = FORMAT[dtype]
    sign = int(np.signbit(value))
    magnitude = abs(Fraction(float(value)))
    exponent = low
    while exponent < high + 1 and magnitude >= Fraction(2) ** (exponent + 1):
        exponent += 1
    step = Fraction(2) ** (exponent - mantissa_bits)
    units = round(magnitude / step)  # Fraction rounds halves to even
    # A significand that rounds up to the next power of two carries into the exponent.
    bits = ((exponent - low) << mantissa_bits) + units
    infinity = (high - low + 2) << mantissa_bits
    width = mantissa_bits + (high - low + 3).bit_length()
    return (sign << (width - 1)) | min(bits, infinity)


def torch_cast(values: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    cast = torch.from_numpy(values).to(dtype)
    width = (torch.int16, np.uint16) if dtype.itemsize == 2 else (torch.int32, np.uint32)
    return cast.view(width[0]).numpy().view(width[1])


def decode(bits: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """float64 values of 16-bit patterns (exact)."""
    return torch.from_numpy(bits.view(np.int16).copy()).view(dtype).double().numpy()


def midpoints(dtype: torch.dtype) -> tuple[np.ndarray, np.ndarray]:
    """Every finite non-negative pattern, and the float64 midpoint to its successor.

    The successor of the largest finite value is 2**(largest exponent + 1), where rounding
    goes over to infinity.
    """
    mantissa_bits, low, high = FORMAT[dtype]
    patterns = np.arange((high - low + 2) << mantissa_bits, dtype=np.uint16)
    values = decode(patterns, dtype)
    return patterns, (values + np.append(values[1:], 2.0 ** (high + 1))) / 2


def agree(values: np.ndarray, dtype: torch.dtype) -> bool:
    """``round_to`` gives torch's bits; of a NaN only that it is one."""
    got, want = round_to(values, dtype), torch_cast(values, dtype)
    nan = np.isnan(values)
    infinity = {torch.float16: 0x7C00, torch.bfloat16: 0x7F80, torch.float32: 0x7F800000}[dtype]
    magnitude = got & got.dtype.type(np.iinfo(got.dtype).max >> 1)
    return bool(np.array_equal(got[~nan], want[~nan]) and (magnitude[nan] > infinity).all())


LOW_HALVES = [0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF]


@pytest.mark.parametrize("low", LOW_HALVES, ids=hex)
def test_float32_to_bfloat16_around_every_tie(low: int):
    """All 65536 upper halves: subnormals, overflow, infinities and NaN are among them."""
    values = ((np.arange(1 << 16, dtype=np.uint32) << 16) | np.uint32(low)).view(np.float32)
    assert agree(values, torch.bfloat16)
    assert np.array_equal(round_to(values, torch.bfloat16), float32_to_bfloat16(values))


@pytest.mark.parametrize("toward", [-np.inf, 0.0, np.inf], ids=["below", "tie", "above"])
def test_float32_to_float16_around_every_tie(toward: float):
    _, middle = midpoints(torch.float16)
    values = middle.astype(np.float32)
    assert np.array_equal(values, middle)  # a tie of float16 is a float32
    if toward:
        values = np.nextafter(values, np.float32(toward))
    for signed in (values, -values):
        assert agree(signed, torch.float16)


@pytest.mark.parametrize("dtype", SIXTEEN_BIT, ids=ids)
def test_float64_around_every_tie_is_rounded_once(dtype: torch.dtype):
    """One float64 step beside a tie: by way of float32 it becomes the tie, then the wrong side."""
    patterns, middle = midpoints(dtype)
    up, even = patterns + np.uint16(1), patterns + (patterns & np.uint16(1))
    sign = np.uint16(0x8000)
    for values, want in (
        (middle, even),
        (np.nextafter(middle, np.inf), up),
        (np.nextafter(middle, -np.inf), patterns),
    ):
        assert np.array_equal(round_to(values, dtype), want)
        assert np.array_equal(round_to(-values, dtype), want | sign)
    twice = round_to(np.nextafter(middle, np.inf).astype(np.float32), dtype)
    assert (twice != up).sum() > patterns.size // 3, "the values do not tell one rounding from two"


@pytest.mark.parametrize("dtype", FORMAT, ids=ids)
def test_float64_against_rational_arithmetic(dtype: torch.dtype):
    """Random bit patterns, with exponents from below the subnormals to beyond overflow."""
    mantissa_bits, low, high = FORMAT[dtype]
    raw = np.random.PCG64(20).random_raw(3000)
    exponent = 1023 + low - mantissa_bits - 4 + raw % (high - low + mantissa_bits + 8)
    mantissa = np.random.PCG64(21).random_raw(3000) & np.uint64((1 << 52) - 1)
    # A third of the values are ties or one float64 step beside one.
    tie = np.uint64(1 << (51 - mantissa_bits))
    mantissa[::3] = (mantissa[::3] & ~(tie * 2 - 1)) | tie
    mantissa[::9] -= np.uint64(1)
    mantissa[3::9] += np.uint64(1)
    values = ((raw & np.uint64(1 << 63)) | (exponent << np.uint64(52)) | mantissa).view(np.float64)
    want = [nearest_even(value, dtype) for value in values]
    assert round_to(values, dtype).tolist() == want


@pytest.mark.parametrize("source", [np.float32, np.float64], ids=["from fp32", "from fp64"])
@pytest.mark.parametrize("dtype", FORMAT, ids=ids)
def test_edges(dtype: torch.dtype, source: type):
    mantissa_bits, low, high = FORMAT[dtype]
    largest = (2.0 - 2.0**-mantissa_bits) * 2.0**high
    smallest = 2.0 ** (low - mantissa_bits)
    magnitudes = [0.0, smallest, 2.0**low, 2.0**low - smallest, 1.0, largest, np.inf]
    with np.errstate(over="ignore", under="ignore"):
        values = np.array(magnitudes + [-m for m in magnitudes], source)
    want = [nearest_even(v, dtype) if np.isfinite(v) else None for v in values]
    got = round_to(values, dtype).tolist()
    assert [g for g, w in zip(got, want, strict=True) if w is not None] == [w for w in want if w is not None]
    assert agree(values, dtype)
    assert agree(np.array([np.nan, -np.nan], source), dtype)


@pytest.mark.parametrize("dtype", SIXTEEN_BIT, ids=ids)
def test_overflow_begins_at_the_tie(dtype: torch.dtype):
    mantissa_bits, low, high = FORMAT[dtype]
    tie = (2.0 - 2.0 ** -(mantissa_bits + 1)) * 2.0**high
    infinity = (high - low + 2) << mantissa_bits
    values = np.array([np.nextafter(tie, 0), tie, 1e300])
    assert round_to(values, dtype).tolist() == [infinity - 1, infinity, infinity]


def test_nan_whose_payload_is_in_the_low_half_stays_nan():
    """Cutting such a pattern off would give infinity."""
    values = np.array([0x7F800001, 0xFF800001, 0x7FFFFFFF], np.uint32).view(np.float32)
    assert float32_to_bfloat16(values).tolist() == [0x7FC0, 0xFFC0, 0x7FFF]


@pytest.mark.parametrize("dtype", FORMAT, ids=ids)
def test_shape_and_strides_are_kept(dtype: torch.dtype):
    values = np.arange(24.0).reshape(4, 6)
    assert np.array_equal(round_to(values[:, ::2].T, dtype), round_to(values, dtype)[:, ::2].T)
    assert round_to(np.float64(1.5).reshape(()), dtype).shape == ()
    assert round_to(np.empty((0, 3)), dtype).shape == (0, 3)


def test_other_types_are_refused():
    with pytest.raises(TypeError, match=r"^values: expected float32 or float64, found float16$"):
        round_to(np.zeros(1, np.float16), torch.float16)
    with pytest.raises(TypeError, match=r"^dtype: expected float16, bfloat16 or float32, found torch.int8$"):
        round_to(np.zeros(1), torch.int8)


def test_bytes_are_in_element_order():
    tensor = torch.tensor([[0x0201, 0x0403], [0x0605, 0x0807]], dtype=torch.int16)
    assert numpy_bytes(tensor).tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert numpy_bytes(tensor.T).tolist() == [1, 2, 5, 6, 3, 4, 7, 8]


@pytest.mark.parametrize("source", [np.float32, np.float64])
def test_nan_of_float16_keeps_its_sign_and_is_never_infinity(source: type):
    word, sign = (np.uint32, 31) if source is np.float32 else (np.uint64, 63)
    infinity = np.array([np.inf], source).view(word)[0]
    bits = infinity | np.array([1, 2 ** (sign - 9 if source is np.float32 else 51)], word)
    values = np.concatenate([bits, bits | word(1 << sign)]).astype(word).view(source)
    assert np.isnan(values).all()
    assert round_to(values, torch.float16).tolist() == [0x7C01, 0x7E00, 0xFC01, 0xFE00]


@pytest.mark.parametrize("dtype", BIT_DTYPE)
@pytest.mark.parametrize("value", [1.0, 1e-7, 1e9, np.nan])
def test_a_scalar_stays_an_array(dtype: torch.dtype, value: float):
    found = round_to(np.array(value), dtype)
    assert isinstance(found, np.ndarray)
    assert found.tolist() == round_to(np.array([value]), dtype)[0]
