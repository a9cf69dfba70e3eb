"""kernels/squeezellm.py: decodes to the bits of the exact model, and refuses bad input by name."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest
import torch

from kernels._gather import GATHERS
from kernels._packed import map_tensors
from kernels.squeezellm import SqueezeLLMWeight, dequantize
from tests.kernel_weights import DEVICE, DTYPES, same_bits
from tests.squeezellm_weights import make, mismatches

if DEVICE.type == "cpu":
    from conformance import interpreter

    interpreter.correct()

# The interpreter adds with NumPy, which warns where hardware gives inf or NaN in silence.
pytestmark = pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning")
INF = float("inf")


def decode(weight: SqueezeLLMWeight, dtype: torch.dtype = torch.float32, **options: Any) -> torch.Tensor:
    """The kernel's answer for a weight on the CPU."""
    there = map_tensors(weight, lambda name, tensor: tensor.to(DEVICE))
    return dequantize(there, dtype=dtype, **{"cols": 64, "num_warps": 1, **options}).cpu()


# --- the same bits as the exact model ---------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("full", [0, 2])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("table", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("bits", [3, 4])
def test_parts_and_dtypes(bits: int, table: torch.dtype, sparse: bool, full: int, dtype: torch.dtype):
    weight = make(bits, rows=32, table=table, sparse=sparse, full=full)
    weight.validate(deep=True)
    assert mismatches(weight, decode(weight, dtype)) == 0


@pytest.mark.parametrize(("packed_rows", "cols", "entries"), [(1, 8, 1), (2, 16, 16), (3, 32, 64)])
@pytest.mark.parametrize(("bits", "rows", "n"), [(4, 8, 1), (4, 40, 33), (3, 64, 17)])
def test_tile_edges(bits: int, rows: int, n: int, packed_rows: int, cols: int, entries: int):
    weight = make(bits, rows=rows, cols=n, full=1)
    assert mismatches(weight, decode(weight, packed_rows=packed_rows, cols=cols, entries=entries)) == 0


@pytest.mark.parametrize("bits", [3, 4])
def test_every_slot_of_an_outlier(bits: int):
    """All elements are outliers, codes that straddle words among them."""
    weight = make(bits, rows=64, cols=5, full=1)
    every = {
        "rows": torch.arange(6, dtype=torch.int32) * 64,
        "cols": torch.arange(64, dtype=torch.int32).repeat(5),
        "vals": torch.arange(320, dtype=torch.float32) / 7,
    }
    weight = dataclasses.replace(weight, **every)
    weight.validate(deep=True)
    assert mismatches(weight, decode(weight, entries=32)) == 0


SPECIAL = [INF, -INF, float("nan"), -0.0, 0.0, 1e-45, -1e-40, 65519.0, 65520.0, 3e38, -3e38, 6e-8]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_special_entries(dtype: torch.dtype):
    """Entries that are not finite, subnormal or zero, repeated; met by themselves as outliers."""
    weight = make(4, rows=32, cols=24, full=1)
    table = torch.tensor((SPECIAL * 32)[: 24 * 16]).reshape(24, 16)
    assert weight.vals is not None
    vals = torch.tensor((SPECIAL[::-1] * 99)[: weight.vals.numel()])
    weight = dataclasses.replace(weight, lookup_table=table, vals=vals)
    assert mismatches(weight, decode(weight, dtype)) == 0


def test_negative_zero_stays_where_nothing_is_added():
    weight = make(4, rows=8, cols=3, sparse=True, full=0)
    weight = dataclasses.replace(
        weight, lookup_table=torch.full((3, 16), -0.0), vals=torch.zeros_like(weight.vals)
    )
    got = decode(weight)
    assert same_bits(got[:, 0], torch.full((8,), -0.0))  # no outlier
    assert same_bits(got[:, 1], torch.zeros(8))  # -0 + 0


def test_an_outlier_meets_the_entry_before_it_is_rounded():
    """1 + 2**-11 is a tie in float16; with 2**-20 more it rounds up."""
    weight = make(4, rows=8, cols=2, full=0)
    weight = dataclasses.replace(
        weight,
        lookup_table=torch.full((2, 16), 1 + 2.0**-11),
        vals=torch.full_like(weight.vals, 2.0**-20),  # type: ignore[arg-type]
    )
    got = decode(weight, torch.float16)
    assert bool((got[:, 0] == 1).all())
    assert bool((got[:, 1] == 1 + 2.0**-10).all())


def test_outlier_first_then_full_row():
    """(1 - 1) + 2**-30 keeps what 1 + (-1 + 2**-30) loses."""
    weight = make(4, rows=8, cols=2, full=0)
    weight = dataclasses.replace(
        weight,
        lookup_table=torch.ones(2, 16),
        vals=torch.full_like(weight.vals, -1.0),  # type: ignore[arg-type]
        full_rows=torch.full((8, 1), 2.0**-30),
        full_row_indices=torch.tensor([1], dtype=torch.int32),
    )
    assert bool((decode(weight)[:, 1] == 2.0**-30).all())


@pytest.mark.parametrize("bits", [3, 4])
@pytest.mark.parametrize(("rows", "cols"), [(0, 8), (32, 0), (0, 0)])
def test_zero_size(bits: int, rows: int, cols: int):
    weight = SqueezeLLMWeight(
        torch.empty(rows * bits // 32, cols, dtype=torch.int32),
        torch.zeros(cols, 2**bits),
        bits,
        rows=torch.zeros(cols + 1, dtype=torch.int32),
        cols=torch.empty(0, dtype=torch.int32),
        vals=torch.empty(0),
        full_rows=torch.empty(rows, 0),
        full_row_indices=torch.empty(0, dtype=torch.int32),
    )
    weight.validate(deep=True)
    assert decode(weight).shape == (rows, cols)


def test_strided_inputs_and_output():
    weight = map_tensors(make(4), lambda name, tensor: tensor.to(DEVICE))

    def spread(name: str, tensor: torch.Tensor) -> torch.Tensor:
        wide = torch.full((*tensor.shape, 2), 9, dtype=tensor.dtype, device=tensor.device)
        wide[..., 0] = tensor
        return wide[..., 0]

    want = dequantize(weight, dtype=torch.float16)
    assert same_bits(dequantize(map_tensors(weight, spread), dtype=torch.float16), want)
    out = torch.empty(64, 48, dtype=torch.float16, device=DEVICE)[:, ::2]
    assert dequantize(weight, dtype=torch.float16, out=out) is out
    assert same_bits(out, want)


@pytest.mark.parametrize("bad", [-1, 64, 2**31 - 1, -(2**31)])
def test_an_outlier_of_no_element_is_left_out(bad: int):
    """Validation without ``deep`` does not see it; the launch must not follow it."""
    weight = make(4, full=0)
    assert weight.cols is not None
    cols = weight.cols.clone()
    cols[5] = bad
    k = int(weight.cols[5])
    around = torch.full((66, 24), 7.0, device=DEVICE)
    got, want = decode(dataclasses.replace(weight, cols=cols), out=around[1:-1]), decode(weight)
    assert bool((around[[0, -1]] == 7).all())
    want[k, 1] = decode(dataclasses.replace(weight, rows=None, cols=None, vals=None))[k, 1]
    assert same_bits(got, want)


@pytest.mark.parametrize("bad", [-1, 24, 2**31 - 1])
def test_a_full_row_of_no_channel_is_left_out(bad: int):
    weight = make(4, sparse=False)
    assert weight.full_row_indices is not None
    indices = weight.full_row_indices.clone()
    indices[1] = bad
    first = dataclasses.replace(
        weight, full_rows=weight.full_rows[:, :1], full_row_indices=weight.full_row_indices[:1]
    )
    assert same_bits(decode(dataclasses.replace(weight, full_row_indices=indices)), decode(first))


@pytest.mark.parametrize("pointers", [[9] * 25, [-5] * 25, [*range(24, -1, -1)], [2**31 - 1] * 25])
def test_damaged_pointers_touch_nothing_outside(pointers: list[int]):
    weight = make(4, full=0)
    damaged = dataclasses.replace(weight, rows=torch.tensor(pointers, dtype=torch.int32))
    dense = decode(dataclasses.replace(weight, rows=None, cols=None, vals=None))
    got = decode(damaged)
    assert got.shape == dense.shape
    assert not bool(got.isnan().any())
    if len(set(pointers)) == 1:  # no channel has an entry
        assert same_bits(got, dense)


# --- bad input --------------------------------------------------------------------------

# make(): 4 bit, K = 64, N = 24: 8 rows of words, tables [24, 16], two full rows.
BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"bits": 2}, ValueError, "bits: expected 3 or 4, found 2"),
    ({"bits": 4.0}, TypeError, "bits: expected an int, found float"),
    ({"bits": 3}, ValueError, "qweight: expected rows in multiples of 3 at 3 bit, found 8"),
    ({"qweight": torch.zeros(8, 24)}, TypeError, "qweight: expected dtype int32, found float32"),
    (
        {"qweight": torch.zeros(192, dtype=torch.int32)},
        ValueError,
        "qweight: expected 2 dimensions, found shape [192]",
    ),
    ({"lookup_table": torch.ones(24, 8)}, ValueError, "lookup_table: expected shape [24, 16], found [24, 8]"),
    (
        {"lookup_table": torch.ones(16, 24)},
        ValueError,
        "lookup_table: expected shape [24, 16], found [16, 24]",
    ),
    (
        {"lookup_table": torch.ones(24, 16, dtype=torch.bfloat16)},
        TypeError,
        "lookup_table: expected dtype one of float32, float16, found bfloat16",
    ),
    ({"rows": None}, TypeError, "rows: expected a tensor (there is cols), found NoneType"),
    ({"vals": None}, TypeError, "vals: expected a tensor (there is rows), found NoneType"),
    (
        {"full_rows": None},
        TypeError,
        "full_rows: expected a tensor (there is full_row_indices), found NoneType",
    ),
    ({"rows": torch.zeros(24, dtype=torch.int32)}, ValueError, "rows: expected shape [25], found [24]"),
    ({"rows": torch.zeros(65, dtype=torch.int32)}, ValueError, "rows: expected shape [25], found [65]"),
    ({"rows": torch.zeros(25)}, TypeError, "rows: expected dtype int32, found float32"),
    ({"cols": torch.zeros(3, dtype=torch.int64)}, TypeError, "cols: expected dtype int32, found int64"),
    (
        {"cols": torch.zeros(1, 3, dtype=torch.int32)},
        ValueError,
        "cols: expected 1 dimension, found shape [1, 3]",
    ),
    ({"vals": torch.zeros(3)}, ValueError, "vals: expected shape [{nnz}], found [3]"),
    (
        {"full_rows": torch.zeros(2, 64)},
        ValueError,
        "full_rows: expected shape [64, 2], found [2, 64]",
    ),
    (
        {"full_row_indices": torch.zeros(3, dtype=torch.int32)},
        ValueError,
        "full_rows: expected shape [64, 3], found [64, 2]",
    ),
    (
        {"full_row_indices": torch.zeros(2, 1, dtype=torch.int32)},
        ValueError,
        "full_row_indices: expected 1 dimension, found shape [2, 1]",
    ),
    (
        {"full_rows": torch.zeros(64, 2, device="meta")},
        ValueError,
        "full_rows: expected device cpu (the device of qweight), found meta",
    ),
]


@pytest.mark.parametrize(("changes", "error", "sentence"), BAD, ids=[sentence for _, _, sentence in BAD])
def test_bad_input(changes: dict[str, Any], error: type[Exception], sentence: str):
    good = make()
    assert good.cols is not None
    sentence = sentence.replace("{nnz}", str(good.cols.numel()))
    weight = dataclasses.replace(good, **changes)
    out = torch.full((64, 24), 7.0, dtype=torch.float16)
    with pytest.raises(error, match=f"^{re.escape(sentence)}$"):
        dequantize(weight, dtype=torch.float16, out=out)
    assert bool((out == 7).all())


# Channel 0 has no outliers, channel 1 has entries 0..63.
DEEP: list[tuple[str, int, float, str]] = [
    ("rows", 0, 1, "rows: expected 0 at the start, found 1"),
    ("rows", 2, -3, "rows: expected pointers that do not descend, found -3 after 0 at channel 1"),
    ("rows", -1, 9999, "rows: expected {nnz} (nnz) at the end, found 9999"),
    ("cols", 3, 64, "cols: expected 0 <= row < 64, found 64 at position 3"),
    ("cols", 3, -1, "cols: expected 0 <= row < 64, found -1 at position 3"),
    ("cols", 3, 2, "cols: expected ascending rows within a channel, found 2 twice at entry 3 (channel 1)"),
    ("cols", 3, 7, "cols: expected ascending rows within a channel, found 4 after 7 at entry 4 (channel 1)"),
    ("full_row_indices", 1, 24, "full_row_indices: expected 0 <= channel < 24, found 24 at position 1"),
    ("full_row_indices", 1, -1, "full_row_indices: expected 0 <= channel < 24, found -1 at position 1"),
    ("vals", 5, INF, "vals: expected finite values, found inf at flat index 5"),
    ("lookup_table", 0, INF, "lookup_table: expected finite values, found inf at flat index 0"),
    ("full_rows", 0, float("nan"), "full_rows: expected finite values, found nan at flat index 0"),
]


@pytest.mark.parametrize(("field", "position", "value", "sentence"), DEEP, ids=[row[3] for row in DEEP])
def test_deep_validation(field: str, position: int, value: float, sentence: str):
    weight = make()
    assert weight.cols is not None
    tensor = getattr(weight, field).clone()
    tensor.view(-1)[position] = value
    weight = dataclasses.replace(weight, **{field: tensor})
    weight.validate()  # reads no values
    sentence = sentence.replace("{nnz}", str(weight.cols.numel()))
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        weight.validate(deep=True)


def test_one_channel_in_two_full_rows():
    weight = dataclasses.replace(make(), full_row_indices=torch.tensor([7, 7], dtype=torch.int32))
    with pytest.raises(
        ValueError, match=r"^full_row_indices: expected each channel once, found 7 again at position 1$"
    ):
        weight.validate(deep=True)


@pytest.mark.parametrize(
    ("option", "value"),
    [("packed_rows", 0), ("cols", 24), ("entries", 3), ("entries", 0), ("num_warps", 3)],
)
def test_tile_sizes_that_cannot_be_launched(option: str, value: int):
    with pytest.raises(ValueError, match=rf"^{option}: expected .*, found {value}$"):
        dequantize(make(), dtype=torch.float16, **{option: value})


@pytest.mark.skipif(not GATHERS, reason="this Triton has no gather that compiles")
def test_rows_that_are_decoded_at_once_are_a_power_of_two():
    dense = dataclasses.replace(make(), full_rows=None, full_row_indices=None)
    with pytest.raises(ValueError, match=r"^packed_rows: expected a power of two, found 3$"):
        dequantize(dense, dtype=torch.float16, packed_rows=3)
    one_by_one = dequantize(dense, dtype=torch.float16, packed_rows=3, gather=0)
    assert torch.equal(one_by_one, dequantize(dense, dtype=torch.float16))


def test_another_packed_type_is_refused():
    with pytest.raises(TypeError, match=r"^weight: expected SqueezeLLMWeight, found str$"):
        dequantize("weight", dtype=torch.float16)  # type: ignore[arg-type]


@pytest.mark.parametrize("field", ["qweight", "lookup_table", "rows", "vals", "full_rows"])
def test_out_that_overlaps_an_input(field: str):
    weight = map_tensors(make(), lambda name, tensor: tensor.to(DEVICE))
    tensor = getattr(weight, field)
    memory = torch.zeros(64 * 24 + 4096, dtype=torch.float32, device=DEVICE)
    place = memory[64 * 24 - 1 :][: tensor.numel()].view(tensor.dtype).reshape(tensor.shape)
    inside = dataclasses.replace(weight, **{field: place.copy_(tensor)})
    with pytest.raises(ValueError, match=rf"^out: expected .*, found an overlap with {field}$"):
        dequantize(inside, dtype=torch.float32, out=memory[: 64 * 24].reshape(64, 24))
