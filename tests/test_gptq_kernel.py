"""kernels/gptq.py: decodes to the bits of the exact model, and refuses bad input by name."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import numpy as np
import pytest
import torch

from kernels._packed import map_tensors
from kernels.gptq import GPTQWeight, Zeros, dequantize
from oracles.spec import gptq as spec
from tests.gptq_weights import ORDERS, Order, make, mismatches, with_codes, with_zeros
from tests.kernel_weights import DEVICE, same_bits

if DEVICE.type == "cpu":
    from conformance import interpreter

    interpreter.correct()

DTYPES = [torch.float16, torch.bfloat16, torch.float32]
CONVENTIONS: tuple[Zeros, ...] = ("v1", "v1-nowrap", "v2")

# The interpreter multiplies with NumPy, which warns where hardware gives inf or NaN in silence.
pytestmark = pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning")
dtype_ids = {"ids": lambda dtype: str(dtype).removeprefix("torch.")}


def decode(weight: GPTQWeight, dtype: torch.dtype = torch.float32, **options: Any) -> torch.Tensor:
    """The kernel's answer for a weight on the CPU."""
    there = map_tensors(weight, lambda name, tensor: tensor.to(DEVICE))
    return dequantize(there, dtype=dtype, **{"cols": 64, "num_warps": 1, **options}).cpu()


# --- the same bits as the exact model ---------------------------------------------------


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("zeros", CONVENTIONS)
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_conventions_and_orders(bits: int, zeros: Zeros, order: Order):
    weight = make(bits, zeros=zeros, order=order)
    weight.validate(deep=True)
    assert mismatches(weight, decode(weight)) == 0


@pytest.mark.parametrize("group_size", [-1, 1, 5, 16, 24, 32, 64, 100], ids="g{}".format)
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("order", ["none", "permuted"])
def test_groups_around_words_and_tiles(bits: int, group_size: int, order: Order):
    """Groups that split a word, a tile, neither; a short last one; one that covers it all."""
    weight = make(bits, rows=96, group_size=group_size, order=order)
    assert mismatches(weight, decode(weight, packed_rows=2)) == 0


@pytest.mark.parametrize(
    ("bits", "rows", "cols"),
    [(2, 1, 1), (2, 33, 17), (4, 7, 9), (4, 41, 33), (8, 3, 5), (8, 18, 66), (3, 32, 32), (3, 64, 96)],
)
@pytest.mark.parametrize("order", ["none", "permuted"])
def test_sizes_around_words(bits: int, rows: int, cols: int, order: Order):
    weight = make(bits, rows=rows, cols=cols, order=order)
    assert mismatches(weight, decode(weight)) == 0


@pytest.mark.parametrize("packed_rows", [1, 2, 4])
@pytest.mark.parametrize("cols", [4, 16, 32, 128])
@pytest.mark.parametrize(("bits", "n"), [(2, 37), (3, 64), (4, 37), (8, 37)])
def test_tile_edges(bits: int, n: int, cols: int, packed_rows: int):
    """At 3 bit, tiles of 4 and 16 columns start inside a word of zeros."""
    weight = make(bits, rows=64, cols=n, group_size=-1)
    assert mismatches(weight, decode(weight, cols=cols, packed_rows=packed_rows)) == 0


@pytest.mark.parametrize("dtype", DTYPES, **dtype_ids)
@pytest.mark.parametrize("scale_dtype", DTYPES, **dtype_ids)
@pytest.mark.parametrize("bits", [4, 8])
def test_dtypes(bits: int, scale_dtype: torch.dtype, dtype: torch.dtype):
    weight = make(bits, scale_dtype=scale_dtype)
    got = decode(weight, dtype)
    assert got.dtype == dtype
    assert mismatches(weight, got) == 0


SPECIAL = [0.0, -0.0, 1.0, -1.0, 6e-8, -6e-8, 6e-5, 5000.0, 65504.0, -65504.0, 1e-40, 1e-45, 1.2e-38]
SPECIAL += [3e38, -3e38, 1e37, float("inf"), float("-inf"), float("nan")]


@pytest.mark.parametrize("dtype", DTYPES, **dtype_ids)
@pytest.mark.parametrize("scale_dtype", DTYPES, **dtype_ids)
def test_extreme_scales(scale_dtype: torch.dtype, dtype: torch.dtype):
    """Subnormal, zero, negative, overflowing and non-finite: as the exact model, sign of zero included."""
    weight = make(4, cols=32, scale_dtype=scale_dtype, zeros="v2")
    row = torch.tensor((SPECIAL * 2)[:32], dtype=torch.float64).to(scale_dtype)
    weight = dataclasses.replace(weight, scales=row.repeat(4, 1))
    weight = with_zeros(weight, np.full((4, 32), 7))
    codes = np.tile(np.arange(16)[:, None], (4, 32))  # each scale meets code == zero
    assert mismatches(with_codes(weight, codes), decode(with_codes(weight, codes), dtype)) == 0


def test_zero_times_a_large_scale_is_not_formed():
    """q = z = 15, s = 5000: z * s overflows float16, (q - z) * s is 0.

    https://github.com/vllm-project/vllm/pull/55532
    """
    weight = make(4, zeros="v2")
    weight = dataclasses.replace(weight, scales=torch.full_like(weight.scales, 5000.0))
    weight = with_codes(with_zeros(weight, np.full((4, 32), 15)), np.full((64, 32), 15))
    assert same_bits(decode(weight, torch.float16), torch.zeros(64, 32, dtype=torch.float16))


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_a_stored_zero_of_maxq(bits: int):
    """Each convention says something else; the fields beside it are not touched."""
    maxq = 2**bits - 1
    fields = np.tile([maxq, 0, maxq, maxq, 1, 2, 3, maxq], 4)[None, :]
    weight = dataclasses.replace(make(bits, group_size=-1), scales=torch.ones(1, 32))
    weight = with_codes(with_zeros(weight, fields), np.zeros((64, 32), dtype=np.int64))
    zero = {"v1": (fields + 1) % 2**bits, "v1-nowrap": fields + 1, "v2": fields}
    for zeros in CONVENTIONS:
        got = decode(dataclasses.replace(weight, zeros=zeros))
        assert np.array_equal(-got.numpy(), np.repeat(zero[zeros], 64, axis=0))


def test_float32_scales_round_the_product_to_float32_first():
    """A product just above a float16 tie: exact, it rounds up; float32 takes it to the tie, and down."""
    tie = 1 + 2.0**-11
    step = np.nextafter(np.float32(tie / 5), np.float32(1))
    exact, single = 5 * float(step), float(np.float32(5) * step)
    assert single == tie < exact
    weight = with_codes(make(4, zeros="v2", scale_dtype=torch.float32), np.full((64, 32), 5))
    weight = dataclasses.replace(weight, scales=torch.full((4, 32), float(step)))
    got = decode(with_zeros(weight, np.zeros((4, 32))), torch.float16)
    assert bool((got == 1).all())


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_padding_is_not_read(bits: int):
    weight = make(bits, rows=64, cols=32) if bits == 3 else make(bits, rows=33, cols=17)
    ones = 2**bits - 1
    model = spec.unpack(weight)
    rows, columns = weight.qweight.shape[0] * 32 // bits, weight.qzeros.shape[1] * 32 // bits
    for padding in (0, ones):
        codes = np.full((rows, weight.output_shape[1]), padding)
        codes[: weight.output_shape[0]] = model.codes
        stored = np.full((weight.n_groups, columns), padding)
        stored[:, : weight.output_shape[1]] = model.stored
        assert same_bits(decode(with_codes(with_zeros(weight, stored), codes)), decode(weight))


def test_minus_one_is_one_group_over_all_rows():
    weight = make(4, group_size=-1)
    assert weight.scales.shape[0] == 1
    assert same_bits(decode(weight), decode(dataclasses.replace(weight, group_size=64)))


@pytest.mark.parametrize("shape", [(0, 32), (64, 0), (0, 0)], ids=str)
@pytest.mark.parametrize("group_size", [-1, 16])
def test_zero_size(shape: tuple[int, int], group_size: int):
    rows, cols = shape
    groups = 0 if rows == 0 else (1 if group_size == -1 else 4)
    weight = GPTQWeight(
        qweight=torch.empty(rows // 8, cols, dtype=torch.int32),
        qzeros=torch.empty(groups, cols // 8, dtype=torch.int32),
        scales=torch.zeros(groups, cols),
        g_idx=None,
        bits=4,
        group_size=group_size,
        zeros="v2",
    )
    assert decode(weight).shape == shape


@pytest.mark.parametrize("order", ["none", "permuted"])
def test_strided_inputs(order: Order):
    def spread(name: str, tensor: torch.Tensor) -> torch.Tensor:
        wide = torch.full((*tensor.shape, 2), 9, dtype=tensor.dtype, device=tensor.device)
        wide[..., 0] = tensor
        return wide[..., 0]

    weight = map_tensors(make(order=order), lambda name, tensor: tensor.to(DEVICE))
    got = dequantize(map_tensors(weight, spread), dtype=torch.float16)
    assert same_bits(got, dequantize(weight, dtype=torch.float16))


@pytest.mark.parametrize("group", [-1, -4, 4, 2**31 - 1, -(2**31)])
def test_a_row_of_no_group_is_nan_and_the_others_are_right(group: int):
    weight = make(order="permuted")
    assert weight.g_idx is not None
    g_idx = weight.g_idx.clone()
    g_idx[9] = group
    got, want = decode(dataclasses.replace(weight, g_idx=g_idx)), decode(weight)
    assert bool(got[9].isnan().all())
    want[9] = got[9]
    assert same_bits(got, want)


@pytest.mark.parametrize(("packed_rows", "group"), [(1, -1), (2, 1), (1, 2**31 - 1)])
# Row 31 is the sign bit of a packed row's mask at 3 bit; whole packed rows.
@pytest.mark.parametrize("rows", [[31, 40], list(range(32, 64))], ids=["two", "packed"])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_so_it_is_where_all_others_are_of_one_group(bits: int, rows: list[int], packed_rows: int, group: int):
    weight = make(bits, rows=96, cols=96, group_size=-1)
    g_idx = torch.zeros(96, dtype=torch.int32)
    want = decode(dataclasses.replace(weight, g_idx=g_idx))
    assert same_bits(want, decode(weight))
    g_idx[rows] = group
    got = decode(dataclasses.replace(weight, g_idx=g_idx), packed_rows=packed_rows)
    assert bool(got[rows].isnan().all())
    want[rows] = got[rows]
    assert same_bits(got, want)


# --- bad input --------------------------------------------------------------------------

# make(): 4 bit, K = 64, N = 32, groups of 16: G = 4, 8 rows of words, 4 words of zeros.
BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"bits": 5}, ValueError, "bits: expected 2, 3, 4 or 8, found 5"),
    ({"bits": "4"}, TypeError, "bits: expected an int, found str"),
    ({"group_size": 0}, ValueError, "group_size: expected -1 or at least 1, found 0"),
    ({"group_size": -2}, ValueError, "group_size: expected at least -1, found -2"),
    ({"group_size": 16.0}, TypeError, "group_size: expected an int, found float"),
    ({"group_size": 32}, ValueError, "scales: expected shape [2, 32], found [4, 32]"),
    ({"group_size": -1}, ValueError, "scales: expected shape [1, 32], found [4, 32]"),
    ({"zeros": "v3"}, ValueError, "zeros: expected one of v1, v1-nowrap, v2, found 'v3'"),
    ({"in_features": -8}, ValueError, "in_features: expected at least 0, found -8"),
    ({"in_features": 65}, ValueError, "qweight: expected shape [9, 32], found [8, 32]"),
    ({"in_features": 56}, ValueError, "qweight: expected shape [7, 32], found [8, 32]"),
    ({"qweight": None}, TypeError, "qweight: expected a tensor, found NoneType"),
    ({"qweight": torch.zeros(8, 32)}, TypeError, "qweight: expected dtype int32, found float32"),
    (
        {"qweight": torch.zeros(256, dtype=torch.int32)},
        ValueError,
        "qweight: expected 2 dimensions, found shape [256]",
    ),
    ({"scales": torch.ones(32, 4)}, ValueError, "scales: expected shape [4, 32], found [32, 4]"),
    (
        {"scales": torch.ones(4, 32, dtype=torch.float64)},
        TypeError,
        "scales: expected dtype one of float16, bfloat16, float32, found float64",
    ),
    # Zeros of the AWQ and compressed-tensors kind: transposed, or one an element.
    (
        {"qzeros": torch.zeros(4, 4, dtype=torch.int32)[:3]},
        ValueError,
        "qzeros: expected shape [4, 4], found [3, 4]",
    ),
    (
        {"qzeros": torch.zeros(4, 32, dtype=torch.int32)},
        ValueError,
        "qzeros: expected shape [4, 4], found [4, 32]",
    ),
    ({"qzeros": torch.zeros(4, 4, dtype=torch.int8)}, TypeError, "qzeros: expected dtype int32, found int8"),
    ({"g_idx": torch.zeros(63, dtype=torch.int32)}, ValueError, "g_idx: expected shape [64], found [63]"),
    ({"g_idx": torch.zeros(64, dtype=torch.int64)}, TypeError, "g_idx: expected dtype int32, found int64"),
    (
        {"scales": torch.ones(4, 32, device="meta")},
        ValueError,
        "scales: expected device cpu (the device of qweight), found meta",
    ),
]


@pytest.mark.parametrize(("changes", "error", "sentence"), BAD, ids=[sentence for _, _, sentence in BAD])
def test_bad_input(changes: dict[str, Any], error: type[Exception], sentence: str):
    weight = dataclasses.replace(make(), **changes)
    with pytest.raises(error, match=f"^{re.escape(sentence)}$"):
        weight.validate()
    with pytest.raises(error, match=f"^{re.escape(sentence)}$"):
        dequantize(weight, dtype=torch.float16)


def test_three_bit_needs_whole_triples():
    weight = make(3)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"in_features": 40}, "in_features: expected a multiple of 32 at 3 bit, found 40"),
        (
            {"in_features": None, "qweight": weight.qweight[:5]},
            "qweight: expected rows in multiples of 3 at 3 bit, found 5",
        ),
        (
            {"qweight": weight.qweight[:, :20]},
            "qweight: expected columns in multiples of 32 at 3 bit, found 20",
        ),
    ]
    for changes, sentence in cases:
        with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
            dataclasses.replace(weight, **changes).validate()


@pytest.mark.parametrize(
    ("field", "position", "value", "sentence"),
    [
        ("g_idx", 5, -1, "g_idx: expected 0 <= group < 4, found -1 at row 5"),
        ("g_idx", 63, 4, "g_idx: expected 0 <= group < 4, found 4 at row 63"),
        ("scales", (1, 2), float("inf"), "scales: expected finite values, found inf at flat index 34"),
        ("scales", (3, 31), float("nan"), "scales: expected finite values, found nan at flat index 127"),
    ],
)
def test_values_are_checked_on_request_only(field: str, position: Any, value: float, sentence: str):
    weight = make(order="permuted")
    tensor = getattr(weight, field).clone()
    tensor[position] = value
    weight = dataclasses.replace(weight, **{field: tensor})
    weight.validate()
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        weight.validate(deep=True)


def test_another_packed_type_is_refused():
    with pytest.raises(TypeError, match=r"^weight: expected GPTQWeight, found str$"):
        dequantize("weight", dtype=torch.float16)  # type: ignore[arg-type]


def test_in_features_defaults_to_all_codes_of_the_words():
    weight = make(4, rows=64)
    assert dataclasses.replace(weight, in_features=None).output_shape == (64, 32)
    assert (
        make(3, rows=64).output_shape == dataclasses.replace(make(3, rows=64), in_features=None).output_shape
    )
