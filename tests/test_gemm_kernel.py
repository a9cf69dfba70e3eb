"""Contract of the int8 GEMM kernels: tiles, tails, empty operands, and what they refuse."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import numpy as np
import pytest
import torch

from kernels._packed import map_tensors
from kernels.gemm_accumulate import Int8Operands, accumulate, accumulate_bytes, as_bytes
from kernels.gemm_dynamic import DynamicGemmInput, matmul_dynamic
from kernels.gemm_epilogue import EpilogueInput, epilogue
from kernels.gemm_int8 import Int8GemmInput, matmul
from oracles.spec import gemm as spec
from tests.kernel_weights import DEVICE, DTYPES, bits

ORDERS = ("a-w", "w-a", "product", "absmax")
INF = float("inf")

if DEVICE.type == "cpu":
    from conformance import interpreter

    interpreter.correct()

# The interpreter computes with NumPy, which warns where hardware gives inf or NaN in silence.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def ints(label: int, *shape: int, low: int = -128, high: int = 128) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(label))


def floats(label: int, *shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(label)) + 0.25


def on_device(weight: Any) -> Any:
    return map_tensors(weight, lambda _, tensor: tensor.to(DEVICE))


def operands(
    m: int = 5, n: int = 7, k: int = 37, *, unsigned: bool = False, layout: Any = "NK"
) -> Int8Operands:
    a = ints(1, m, k, low=0, high=256).to(torch.uint8) if unsigned else ints(1, m, k).to(torch.int8)
    b = ints(2, n, k).to(torch.int8)
    return on_device(Int8Operands(a, b.t().contiguous() if layout == "KN" else b, layout))


def gemm(
    m: int = 5,
    n: int = 7,
    k: int = 37,
    *,
    unsigned: bool = False,
    layout: Any = "NK",
    zero: str = "token",
    bias: torch.dtype | None = torch.float32,
    order: Any = "a-w",
) -> Int8GemmInput:
    pair = operands(m, n, k, unsigned=unsigned, layout=layout)
    low = 0 if unsigned else -128
    zeros = ints(5, m if zero == "token" else 1, low=low, high=low + 256).to(torch.int32)
    return on_device(
        Int8GemmInput(
            pair.a,
            pair.b,
            floats(3, m),
            floats(4, n),
            None if zero == "none" else zeros,
            None if bias is None else floats(6, n).to(bias),
            layout,
            order,
        )
    )


def epilogue_input(**changes: Any) -> EpilogueInput:
    weight = EpilogueInput(
        ints(1, 5, 7, low=-(2**31), high=2**31).to(torch.int32),
        floats(3, 5),
        floats(4, 7),
        ints(5, 5).to(torch.int32),
        ints(6, 7, low=-9999, high=9999).to(torch.int32),
        floats(7, 7),
    )
    return on_device(dataclasses.replace(weight, **changes))


def dynamic(**changes: Any) -> DynamicGemmInput:
    weight = DynamicGemmInput(floats(1, 5, 37) - 0.75, ints(2, 7, 37).to(torch.int8), floats(3, 7))
    return on_device(dataclasses.replace(weight, **changes))


# --- values ---------------------------------------------------------------------------------------

TILES = [(16, 16, 32), (64, 16, 64), (16, 128, 32)]


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("unsigned", [False, True])
@pytest.mark.parametrize("layout", ["NK", "KN"])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (17, 33, 65), (3, 18, 100), (16, 16, 32), (2, 3, 0)])
def test_accumulators_in_any_tile(tile, unsigned, layout, m, n, k):
    weight = operands(m, n, k, unsigned=unsigned, layout=layout)
    got = accumulate(weight, block_m=tile[0], block_n=tile[1], block_k=tile[2])
    assert got.dtype == torch.int32
    assert np.array_equal(got.cpu().numpy(), spec.unpack_operands(weight).sums())


@pytest.mark.parametrize(
    ("a", "b", "k"),
    [
        (torch.int8, -128, 131071),  # the last K at which nothing can leave int32
        (torch.int8, -128, 131072),
        (torch.uint8, 255, 65793),
        (torch.uint8, 255, 65794),
    ],
)
def test_sums_wrap_where_int32_ends(a, b, k):
    weight = on_device(
        Int8Operands(torch.full((1, k), b, dtype=a), torch.full((1, k), -128, dtype=torch.int8))
    )
    exact = b * -128 * k
    leaves = not -(2**31) <= exact < 2**31
    assert leaves == (k in (131072, 65794))
    wrapped = (exact + 2**31) % 2**32 - 2**31
    assert int(accumulate(weight, block_m=16, block_n=16, block_k=4096)) == wrapped
    if leaves:
        with pytest.raises(ValueError, match=rf"^a: expected .* within int32, found {exact} at \[0, 0\]$"):
            weight.validate(deep=True)
    else:
        weight.validate(deep=True)


def test_bytes_are_lowest_first_and_exact_in_every_dtype():
    numbers = torch.tensor([[0x12345678, -1, -(2**31), 255]], dtype=torch.int32)
    want = [[[0x78, 0x56, 0x34, 0x12], [255] * 4, [0, 0, 0, 128], [255, 0, 0, 0]]]
    for dtype in DTYPES:
        got = as_bytes(numbers, dtype)
        assert got.dtype == dtype
        assert got.tolist() == want


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("zero", ["none", "token", "tensor"])
@pytest.mark.parametrize("bias", [None, torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_the_whole_is_its_two_steps(order, zero, bias):
    """``matmul`` in one launch gives the bits of ``accumulate`` and then ``epilogue``."""
    for unsigned in (False, True):
        weight = gemm(unsigned=unsigned, zero=zero, bias=bias, order=order)
        kept = torch.full((5, 7), 7, dtype=torch.int32, device=DEVICE)
        for dtype in DTYPES:
            got = matmul(weight, dtype=dtype, accumulators=kept)
            sums = None if zero == "none" else weight.b.sum(dim=1, dtype=torch.int32)
            then = EpilogueInput(
                accumulate(Int8Operands(weight.a, weight.b)),
                weight.a_scale,
                weight.w_scale,
                weight.a_zero,
                sums,
                weight.bias,
                order,
            )
            assert torch.equal(kept, then.acc)
            assert torch.equal(bits(got), bits(epilogue(then, dtype=dtype)))
            assert torch.equal(bits(got), bits(matmul(weight, dtype=dtype)))


@pytest.mark.parametrize("k", [0, 1, 3, 31, 33, 64])
@pytest.mark.parametrize("m", [1, 16, 17])
def test_zero_point_is_as_if_it_were_taken_off_first(k, m):
    weight = gemm(m, 7, k)
    assert weight.a_zero is not None
    exact = (weight.a.cpu().long() - weight.a_zero.cpu().long()[:, None]) @ weight.b.cpu().long().t()
    model = spec.unpack_gemm(weight).epilogue()
    assert np.array_equal(model.corrected(), exact.numpy())
    got = matmul(weight, dtype=torch.float32, block_m=16, block_n=16, block_k=32)
    assert np.array_equal(got.cpu().numpy(), model.values())


def test_without_inner_dimension_the_output_is_the_bias():
    weight = gemm(3, 5, 0, bias=torch.float16)
    assert weight.bias is not None
    got = matmul(weight, dtype=torch.float16)
    assert torch.equal(got, weight.bias.expand(3, 5))


def test_strided_inputs_and_outputs():
    weight = gemm(16, 16, 64)
    strided = map_tensors(weight, lambda _, t: torch.stack([t, t], dim=-1).flatten(-2)[..., ::2])
    out = torch.empty(16, 33, device=DEVICE)[:, 1::2]
    assert matmul(strided, dtype=torch.float32, out=out) is out
    assert torch.equal(out, matmul(weight, dtype=torch.float32))


@pytest.mark.parametrize("rule", ["scale", "full", "absmax", "minmax"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dynamic_equals_the_spec(rule, dtype):
    weight = dynamic(rule=rule, order="absmax" if rule == "absmax" else "a-w")
    got = matmul_dynamic(weight, dtype=torch.float32)
    assert np.array_equal(got.cpu().numpy(), spec.unpack_dynamic(weight).values())
    assert matmul_dynamic(weight, dtype=dtype).dtype == dtype


# --- refusals -------------------------------------------------------------------------------------

BAD: list[tuple[Any, Any, dict[str, Any], type[Exception], str]] = [
    (
        operands,
        accumulate_bytes,
        {"a": torch.zeros(5, 37)},
        TypeError,
        "a: expected dtype one of int8, uint8, found float32",
    ),
    (
        operands,
        accumulate_bytes,
        {"a": torch.zeros(37, dtype=torch.int8)},
        ValueError,
        "a: expected 2 dimensions, found shape [37]",
    ),
    (
        operands,
        accumulate_bytes,
        {"b": torch.zeros(7, 36, dtype=torch.int8)},
        ValueError,
        "a: expected 36 columns, as b has K = 36, found 37",
    ),
    (
        operands,
        accumulate_bytes,
        {"b": torch.zeros(7, 37, dtype=torch.uint8)},
        TypeError,
        "b: expected dtype int8, found uint8",
    ),
    (
        operands,
        accumulate_bytes,
        {"b_layout": "nk"},
        ValueError,
        "b_layout: expected one of NK, KN, found 'nk'",
    ),
    (
        gemm,
        matmul,
        {"a_scale": torch.ones(4)},
        ValueError,
        "a_scale: expected shape [1] or [5], found [4]",
    ),
    (
        gemm,
        matmul,
        {"w_scale": torch.ones(7, dtype=torch.float16)},
        TypeError,
        "w_scale: expected dtype float32, found float16",
    ),
    (
        gemm,
        matmul,
        {"a_zero": torch.zeros(5, dtype=torch.int8)},
        TypeError,
        "a_zero: expected dtype int32, found int8",
    ),
    (gemm, matmul, {"bias": torch.zeros(5)}, ValueError, "bias: expected shape [7], found [5]"),
    (
        gemm,
        matmul,
        {"order": "wa"},
        ValueError,
        "order: expected one of a-w, w-a, product, absmax, found 'wa'",
    ),
    (
        epilogue_input,
        epilogue,
        {"acc": torch.zeros(5, 7)},
        TypeError,
        "acc: expected dtype int32, found float32",
    ),
    (
        epilogue_input,
        epilogue,
        {"a_zero": None},
        TypeError,
        "sums: expected None without a_zero, found a tensor",
    ),
    (epilogue_input, epilogue, {"sums": None}, TypeError, "sums: expected a tensor, found NoneType"),
    (
        dynamic,
        matmul_dynamic,
        {"x": torch.zeros(5, 36)},
        ValueError,
        "x: expected 37 columns, as b has K = 37, found 36",
    ),
    (
        dynamic,
        matmul_dynamic,
        {"rule": "scales"},
        ValueError,
        "rule: expected one of scale, full, absmax, minmax, found 'scales'",
    ),
    (
        dynamic,
        matmul_dynamic,
        {"signed": False},
        ValueError,
        "signed: expected True with rule scale, found False",
    ),
]


@pytest.mark.parametrize(("make", "run", "changes", "error", "sentence"), BAD, ids=[row[4] for row in BAD])
def test_bad_input(make, run, changes, error, sentence):
    moved = {k: v.to(DEVICE) if isinstance(v, torch.Tensor) else v for k, v in changes.items()}
    weight = dataclasses.replace(make(), **moved)
    with pytest.raises(error, match=f"^{re.escape(sentence)}$"):
        run(weight, dtype=torch.float16)


@pytest.mark.parametrize("run", [accumulate_bytes, epilogue, matmul, matmul_dynamic])
def test_another_packed_type_is_refused(run):
    with pytest.raises(TypeError, match=r"^weight: expected \w+, found str$"):
        run("weight", dtype=torch.float16)


@pytest.mark.parametrize(
    ("option", "value"), [("block_m", 8), ("block_n", 24), ("block_k", 16), ("num_warps", 3)]
)
def test_tile_sizes_that_cannot_be_launched(option, value):
    with pytest.raises(ValueError, match=rf"^{option}: expected .*, found {value}$"):
        matmul(gemm(), dtype=torch.float16, **{option: value})


@pytest.mark.parametrize("field", ["a_scale", "w_scale", "bias"])
@pytest.mark.parametrize("value", [INF, float("nan")])
def test_deep_validation_of_floats(field, value):
    for weight in (gemm(), epilogue_input()):
        getattr(weight, field)[1] = value
        weight.validate()
        with pytest.raises(
            ValueError, match=rf"^{field}: expected finite values, found {value} at flat index 1$"
        ):
            weight.validate(deep=True)


def test_accumulators_that_do_not_fit():
    weight = gemm()
    with pytest.raises(TypeError, match=r"^accumulators: expected int32, found torch.float32$"):
        matmul(weight, dtype=torch.float32, accumulators=torch.zeros(5, 7, device=DEVICE))
    with pytest.raises(ValueError, match=r"^accumulators: expected contiguous \[5, 7\], found \[7, 5\]"):
        matmul(weight, dtype=torch.float32, accumulators=torch.zeros(7, 5, dtype=torch.int32, device=DEVICE))


def test_out_that_overlaps_an_input():
    weight = epilogue_input()
    with pytest.raises(ValueError, match=r"^out: expected .*, found an overlap with acc$"):
        epilogue(weight, dtype=torch.float32, out=weight.acc.view(torch.float32))
