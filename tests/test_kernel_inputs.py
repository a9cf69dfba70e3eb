"""Bad input is refused before anything is launched, by a sentence that names the field."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from kernels import nf4
from kernels._packed import map_tensors
from tests.kernel_weights import (
    BLOCKWISE,
    DEVICE,
    DTYPES,
    FORMATS,
    FOUR_BIT,
    bits,
    change,
    dequantize,
    make,
    same_bits,
)

CANARY = 7.0


@dataclasses.dataclass(frozen=True)
class Bad:
    """One wrong field: what it becomes, and the error that names it."""

    formats: list[str]
    field: str
    why: str
    function: Callable[[Any], Any]
    error: type[Exception]
    found: str
    nested: bool = False


def to(dtype: torch.dtype) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda tensor: tensor.to(dtype)


def meta(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to("meta")


def shorter(tensor: torch.Tensor) -> torch.Tensor:
    return tensor[:-1]


def longer(tensor: torch.Tensor) -> torch.Tensor:
    return torch.cat([tensor, tensor[:1]])


# The weights of tests/kernel_weights.py are [5, 40] in blocks of 32: 200 elements, 100
# bytes of 4-bit codes, 7 blocks, 4 blocks of blocks.
BAD = [
    Bad(FOUR_BIT, "packed", "int16", to(torch.int16), TypeError, "int16"),
    Bad(FOUR_BIT, "packed", "flat", lambda t: t.reshape(-1), ValueError, r"\[100\]"),
    Bad(FOUR_BIT, "packed", "too short", shorter, ValueError, r"\[99, 1\]"),
    Bad(FOUR_BIT, "packed", "too long", longer, ValueError, r"\[101, 1\]"),
    Bad(["blockwise8"], "packed", "int8", to(torch.int8), TypeError, "int8"),
    Bad(["blockwise8"], "packed", "transposed", lambda t: t.T, ValueError, r"\[40, 5\]"),
    Bad(["blockwise8"], "packed", "too short", shorter, ValueError, r"\[4, 40\]"),
    Bad(BLOCKWISE, "packed", "numpy", lambda t: t.cpu().numpy(), TypeError, "ndarray"),
    Bad(BLOCKWISE, "packed", "None", lambda t: None, TypeError, "NoneType"),
    Bad(BLOCKWISE, "absmax", "float16", to(torch.float16), TypeError, "float16"),
    Bad(BLOCKWISE, "absmax", "float64", to(torch.float64), TypeError, "float64"),
    Bad(BLOCKWISE, "absmax", "codes without nested", to(torch.uint8), TypeError, "uint8"),
    Bad(BLOCKWISE, "absmax", "too short", shorter, ValueError, r"\[6\]"),
    Bad(BLOCKWISE, "absmax", "too long", longer, ValueError, r"\[8\]"),
    Bad(BLOCKWISE, "absmax", "column", lambda t: t[:, None], ValueError, r"\[7, 1\]"),
    Bad(BLOCKWISE, "absmax", "other device", meta, ValueError, "meta"),
    Bad(BLOCKWISE, "absmax", "not codes", to(torch.float32), TypeError, "float32", nested=True),
    Bad(BLOCKWISE, "codebook", "float16", to(torch.float16), TypeError, "float16"),
    Bad(BLOCKWISE, "codebook", "other device", meta, ValueError, "meta"),
    Bad(FOUR_BIT, "codebook", "too long", longer, ValueError, r"\[17\]"),
    Bad(FOUR_BIT, "codebook", "too short", shorter, ValueError, r"\[15\]"),
    Bad(["blockwise8"], "codebook", "too long", longer, ValueError, r"\[257\]"),
    Bad(["blockwise8"], "codebook", "16 entries", lambda t: t[:16], ValueError, r"\[16\]"),
    Bad(BLOCKWISE, "blocksize", "16", lambda size: 16, ValueError, "16"),
    Bad(BLOCKWISE, "blocksize", "8192", lambda size: 8192, ValueError, "8192"),
    Bad(BLOCKWISE, "blocksize", "48", lambda size: 48, ValueError, "48"),
    Bad(BLOCKWISE, "blocksize", "zero", lambda size: 0, ValueError, "0"),
    Bad(BLOCKWISE, "blocksize", "negative", lambda size: -32, ValueError, "-32"),
    Bad(BLOCKWISE, "blocksize", "float", lambda size: 32.0, TypeError, "float"),
    Bad(BLOCKWISE, "shape[1]", "negative", lambda size: (5, -40), ValueError, "-40"),
    Bad(BLOCKWISE, "shape[1]", "float", lambda size: (5, 40.0), TypeError, "float"),
    Bad(BLOCKWISE, "shape", "int", lambda size: 200, TypeError, "int"),
    Bad(BLOCKWISE, "nested", "dict", dataclasses.asdict, TypeError, "dict", nested=True),
    Bad(BLOCKWISE, "nested.codebook", "float16", to(torch.float16), TypeError, "float16", nested=True),
    Bad(BLOCKWISE, "nested.codebook", "too short", shorter, ValueError, r"\[255\]", nested=True),
    Bad(BLOCKWISE, "nested.absmax", "bfloat16", to(torch.bfloat16), TypeError, "bfloat16", nested=True),
    Bad(BLOCKWISE, "nested.absmax", "too short", shorter, ValueError, r"\[3\]", nested=True),
    Bad(BLOCKWISE, "nested.absmax", "too long", longer, ValueError, r"\[5\]", nested=True),
    Bad(BLOCKWISE, "nested.absmax", "other device", meta, ValueError, "meta", nested=True),
    # A bfloat16 offset read through a float32 pointer was a real fault upstream.
    Bad(BLOCKWISE, "nested.offset", "bfloat16", to(torch.bfloat16), TypeError, "bfloat16", nested=True),
    Bad(BLOCKWISE, "nested.offset", "float", lambda t: 0.5, TypeError, "float", nested=True),
    Bad(BLOCKWISE, "nested.offset", "vector", lambda t: t[None], ValueError, r"\[1\]", nested=True),
    Bad(BLOCKWISE, "nested.offset", "other device", meta, ValueError, "meta", nested=True),
    Bad(BLOCKWISE, "nested.blocksize", "zero", lambda size: 0, ValueError, "0", nested=True),
    Bad(BLOCKWISE, "nested.blocksize", "three", lambda size: 3, ValueError, "3", nested=True),
    Bad(BLOCKWISE, "nested.blocksize", "bool", lambda size: True, TypeError, "bool", nested=True),
    Bad(["llm_int8"], "codes", "uint8", to(torch.uint8), TypeError, "uint8"),
    Bad(["llm_int8"], "codes", "float32", to(torch.float32), TypeError, "float32"),
    Bad(["llm_int8"], "codes", "flat", lambda t: t.reshape(-1), ValueError, r"shape \[200\]"),
    Bad(["llm_int8"], "codes", "three dimensions", lambda t: t[None], ValueError, r"shape \[1, 5, 40\]"),
    Bad(["llm_int8"], "codes", "None", lambda t: None, TypeError, "NoneType"),
    Bad(["llm_int8"], "absmax", "float16", to(torch.float16), TypeError, "float16"),
    Bad(["llm_int8"], "absmax", "too short", shorter, ValueError, r"\[4\]"),
    Bad(["llm_int8"], "absmax", "too long", longer, ValueError, r"\[6\]"),
    Bad(["llm_int8"], "absmax", "column", lambda t: t[:, None], ValueError, r"\[5, 1\]"),
    Bad(["llm_int8"], "absmax", "other device", meta, ValueError, "meta"),
]


def sentence(field: str, found: str) -> re.Pattern[str]:
    """The whole message: one line that names the field, what was expected and what was found."""
    return re.compile(rf"{re.escape(field)}: expected [^\n]+, found {found}[^\n]*")


def fresh_out(shape: tuple[int, ...] = (5, 40), dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.full(shape, CANARY, dtype=dtype, device=DEVICE)


@pytest.mark.parametrize(
    ("name", "bad"),
    [pytest.param(name, bad, id=f"{name}-{bad.field}-{bad.why}") for bad in BAD for name in bad.formats],
)
def test_wrong_field_is_named_and_nothing_is_written(name: str, bad: Bad):
    weight = change(make(name, nested=bad.nested), bad.field.partition("[")[0], bad.function)
    out = fresh_out()
    with pytest.raises(bad.error) as caught:
        dequantize(name, weight, dtype=torch.float16, out=out)
    assert sentence(bad.field, bad.found).fullmatch(str(caught.value))
    assert same_bits(out, fresh_out())


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.int8, torch.float8_e4m3fn, "float16", None], ids=str)
def test_output_dtype_that_is_not_supported(name: str, dtype: Any):
    with pytest.raises(TypeError) as caught:
        dequantize(name, make(name), dtype=dtype)
    assert sentence("dtype", "").fullmatch(str(caught.value))


OUT = {
    "float32": (lambda: fresh_out(dtype=torch.float32), TypeError, "float32"),
    "numpy": (lambda: fresh_out().cpu().numpy(), TypeError, "ndarray"),
    "transposed": (lambda: fresh_out((40, 5)), ValueError, r"\[40, 5\]"),
    "flat": (lambda: fresh_out((200,)), ValueError, r"\[200\]"),
    "other device": (lambda: fresh_out().to("meta"), ValueError, "meta"),
    "rows on one another": (lambda: fresh_out((1, 40)).expand(5, 40), ValueError, r"strides \[0, 1\]"),
    "columns on one another": (lambda: fresh_out((5, 1)).expand(5, 40), ValueError, r"strides \[1, 0\]"),
    "rows that share columns": (
        lambda: fresh_out((200,)).as_strided((5, 40), (20, 1)),
        ValueError,
        r"strides \[20, 1\]",
    ),
}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("key", OUT)
def test_out_that_does_not_fit(name: str, key: str):
    make_out, error, found = OUT[key]
    out = make_out()
    with pytest.raises(error) as caught:
        dequantize(name, make(name), dtype=torch.float16, out=out)
    assert sentence("out", found).fullmatch(str(caught.value))
    if isinstance(out, torch.Tensor) and out.device == DEVICE:
        assert bool((out == CANARY).all())


@pytest.mark.parametrize(
    ("name", "field"),
    [
        *((name, field) for name in BLOCKWISE for field in ("packed", "absmax", "codebook")),
        *((name, f"nested.{field}") for name in BLOCKWISE for field in ("codebook", "absmax", "offset")),
        ("llm_int8", "codes"),
        ("llm_int8", "absmax"),
    ],
    ids=lambda value: value,
)
def test_out_that_overlaps_an_input(name: str, field: str):
    # The output is 400 bytes; the input lies in its last ones, where an early check of
    # the first address alone would miss it.
    memory = torch.zeros(4096, dtype=torch.uint8, device=DEVICE)
    out = memory[:400].view(torch.float16).reshape(5, 40)

    def into_out(tensor: torch.Tensor) -> torch.Tensor:
        size = tensor.numel() * tensor.element_size()
        place = memory[396 : 396 + size].view(tensor.dtype).reshape(tensor.shape)
        return place.copy_(tensor)

    weight = change(make(name, nested=field.startswith("nested")), field, into_out)
    before = memory.clone()
    with pytest.raises(
        ValueError, match=r"^out: expected .*, found an overlap with " + re.escape(field) + "$"
    ):
        dequantize(name, weight, dtype=torch.float16, out=out)
    assert torch.equal(memory, before)


@pytest.mark.parametrize("name", FORMATS)
def test_out_next_to_an_input_is_no_overlap(name: str):
    weight = make(name)
    field = "codes" if name == "llm_int8" else "packed"
    codes = getattr(weight, field)
    size = codes.numel()
    memory = torch.zeros(size + 400, dtype=torch.uint8, device=DEVICE)
    memory[:size] = codes.reshape(-1).view(torch.uint8)
    beside = change(weight, field, lambda t: memory[:size].view(t.dtype).reshape(t.shape))
    out = memory[size:].view(torch.float16).reshape(5, 40)
    got = dequantize(name, beside, dtype=torch.float16, out=out)
    assert got is out
    assert same_bits(got, dequantize(name, weight, dtype=torch.float16))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")], ids=str)
@pytest.mark.parametrize(
    ("name", "field"),
    [
        *((name, field) for name in BLOCKWISE for field in ("absmax", "codebook")),
        *((name, f"nested.{field}") for name in BLOCKWISE for field in ("codebook", "absmax", "offset")),
        ("llm_int8", "absmax"),
    ],
    ids=str,
)
def test_deep_validation_finds_a_value_that_is_not_finite(name: str, field: str, value: float):
    weight = make(name, nested=field.startswith("nested"))
    weight.validate(deep=True)

    def spoil(tensor: torch.Tensor) -> torch.Tensor:
        spoiled = tensor.clone()
        spoiled.reshape(-1)[-1] = value
        return spoiled

    spoiled = change(weight, field, spoil)
    spoiled.validate()  # does not read values, so it does not wait for a device
    with pytest.raises(ValueError, match=rf"^{re.escape(field)}: expected finite values, found {value} at "):
        spoiled.validate(deep=True)


@pytest.mark.parametrize("storage", [torch.float16, torch.bfloat16, torch.int32, torch.float32], ids=str)
@pytest.mark.parametrize("name", FOUR_BIT)
def test_storage_dtype_that_does_not_divide_the_bytes(name: str, storage: torch.dtype):
    weight = make(name, (5, 5))  # 25 elements, 13 bytes
    padded = torch.zeros(16, 1, dtype=torch.uint8, device=DEVICE).view(-1).view(storage)[:, None]
    with pytest.raises(ValueError, match=r"^packed: expected .*13 bytes, found "):
        dequantize(name, dataclasses.replace(weight, packed=padded), dtype=torch.float16)


@pytest.mark.parametrize("name", FORMATS)
def test_weight_of_another_format(name: str):
    other = make("fp4" if name != "fp4" else "nf4")
    with pytest.raises(TypeError) as caught:
        dequantize(name, other, dtype=torch.float16)
    assert sentence("weight", type(other).__name__).fullmatch(str(caught.value))


@pytest.mark.parametrize("name", FORMATS)
def test_weight_on_a_device_that_runs_no_kernel(name: str):
    weight = map_tensors(make(name), lambda field, tensor: meta(tensor))
    with pytest.raises(ValueError, match=r"^weight: expected .*, found meta"):
        dequantize(name, weight, dtype=torch.float16)


@pytest.mark.parametrize("lanes", [0, -1, 3, 48], ids=str)
@pytest.mark.parametrize("name", BLOCKWISE)
def test_tile_size_that_is_no_power_of_two(name: str, lanes: int):
    out = fresh_out()
    with pytest.raises(ValueError) as caught:
        dequantize(name, make(name), dtype=torch.float16, out=out, lanes=lanes)
    assert sentence("lanes", str(lanes)).fullmatch(str(caught.value))
    assert same_bits(out, fresh_out())


@pytest.mark.parametrize(("option", "value"), [("cols", 0), ("cols", 24), ("rows", 0), ("rows", -1)])
def test_llm_int8_tile_size_that_cannot_be_launched(option: str, value: int):
    out = fresh_out()
    with pytest.raises(ValueError) as caught:
        dequantize("llm_int8", make("llm_int8"), dtype=torch.float16, out=out, **{option: value})
    assert sentence(option, str(value)).fullmatch(str(caught.value))
    assert same_bits(out, fresh_out())


def test_a_valid_weight_passes_every_check():
    """The tables above start from these: their refusals are not of something else."""
    for name in FORMATS:
        for dtype in DTYPES:
            out = fresh_out(dtype=dtype)
            dequantize(name, make(name), dtype=dtype, out=out)
            assert not bool((bits(out) == bits(fresh_out(dtype=dtype))).all())
    assert make("nf4").output_shape == (5, 40)
    assert isinstance(make("nf4"), nf4.NF4Weight)
