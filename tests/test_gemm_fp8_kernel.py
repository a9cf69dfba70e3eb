"""Contract of the fp8 GEMM kernel: codes, tiles, tails, scales of every kind, and what it refuses."""

from __future__ import annotations

import dataclasses
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from kernels import Unsupported
from kernels._fp8 import E4M3, blocks, expect_fp8_unit
from kernels._packed import map_tensors
from kernels.gemm_fp8 import Fp8GemmInput, matmul
from oracles.spec.fp8 import VALUES
from oracles.spec.gemm_fp8 import unpack_fp8
from oracles.spec.rounding import round_to
from tests.kernel_weights import DEVICE, DTYPES, bits

if DEVICE.type == "cpu":
    from conformance import interpreter

    interpreter.correct()

# The interpreter computes with NumPy, which warns where hardware gives inf or NaN in silence.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

PERS = ("tensor", "line", "block")
TILES = [(16, 16, 32), (64, 16, 64), (16, 128, 128)]


def whole(label: int, *shape: int) -> torch.Tensor:
    """Whole numbers from -4 to 4, whose sums are exact in any accumulator."""
    drawn = torch.randint(-4, 5, shape, generator=torch.Generator().manual_seed(label))
    return drawn.float().to(E4M3)


def floats(label: int, *shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(label)) + 0.25


def gemm(
    m: int = 5, n: int = 7, k: int = 37, *, a_per: str = "line", w_per: str = "line", **changes: Any
) -> Fp8GemmInput:
    a_scale = {"tensor": (1,), "line": (m,), "block": (m, blocks(k))}[a_per]
    w_scale = {"tensor": (1,), "line": (n,), "block": (blocks(n), blocks(k))}[w_per]
    weight = Fp8GemmInput(
        whole(1, m, k), whole(2, n, k), floats(3, *a_scale), floats(4, *w_scale), floats(5, n)
    )
    return map_tensors(dataclasses.replace(weight, **changes), lambda _, t: t.to(DEVICE))


def want(weight: Fp8GemmInput, dtype: torch.dtype) -> np.ndarray:
    return round_to(unpack_fp8(weight).values(), dtype)


def as_bits(tensor: torch.Tensor) -> np.ndarray:
    view = torch.int32 if tensor.dtype == torch.float32 else torch.int16
    unsigned = np.uint32 if tensor.dtype == torch.float32 else np.uint16
    return tensor.cpu().contiguous().view(view).numpy().view(unsigned)


# --- values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (17, 33, 65), (3, 18, 100), (16, 130, 257), (2, 3, 0)])
def test_tiles_and_tails(tile, m, n, k):
    weight = gemm(m, n, k, a_per="block", w_per="block")
    got = matmul(weight, dtype=torch.float32, block_m=tile[0], block_n=tile[1], block_k=tile[2])
    assert np.array_equal(as_bits(got), want(weight, torch.float32))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("order", ["a-w", "w-a", "product"])
@pytest.mark.parametrize("a_per", PERS)
@pytest.mark.parametrize("w_per", PERS)
def test_scales_of_every_kind(a_per, w_per, order, dtype):
    weight = gemm(3, 130, 160, a_per=a_per, w_per=w_per, order=order)
    assert weight.per == (a_per, w_per)
    assert np.array_equal(as_bits(matmul(weight, dtype=dtype)), want(weight, dtype))


@pytest.mark.parametrize("side", ["a", "b"])
def test_all_codes_against_an_identity(side):
    """256 codes on one side, the other the identity, which leaves each code alone in its sum."""
    codes = torch.arange(256, dtype=torch.uint8).reshape(16, 16)
    # NaN would hide its whole row.
    finite = torch.where(codes & 127 == 127, codes - 1, codes).view(E4M3)
    eye = torch.eye(16).to(E4M3)
    one = torch.ones(1)
    pair = (finite, eye) if side == "a" else (eye, finite)
    weight = map_tensors(Fp8GemmInput(*pair, one, one), lambda _, t: t.to(DEVICE))
    got = matmul(weight, dtype=torch.float32).cpu().numpy()
    values = VALUES[finite.view(torch.uint8).numpy()]
    assert np.array_equal(got, values if side == "a" else values.T)


@pytest.mark.parametrize("code", [0x7F, 0xFF])
def test_nan_codes_are_nan_in_their_rows_alone(code):
    weight = gemm(3, 4, 40)
    raw = weight.a.cpu().view(torch.uint8).clone()
    raw[1, 7] = code
    got = matmul(dataclasses.replace(weight, a=raw.view(E4M3).to(DEVICE)), dtype=torch.float32).cpu()
    assert got[1].isnan().all()
    assert not got[[0, 2]].isnan().any()


def test_strided_inputs_and_output():
    weight = gemm(6, 10, 40, a_per="block", w_per="block")
    wide = torch.zeros(12, 80, dtype=torch.uint8, device=DEVICE)
    wide[::2, ::2] = weight.a.view(torch.uint8)
    out = torch.zeros(6, 20, device=DEVICE)[:, ::2]
    strided = dataclasses.replace(weight, a=wide.view(E4M3)[::2, ::2])
    assert matmul(strided, dtype=torch.float32, out=out) is out
    assert torch.equal(bits(out.contiguous()), bits(matmul(weight, dtype=torch.float32)))


@pytest.mark.parametrize(("m", "n", "k"), [(0, 3, 40), (3, 0, 40), (0, 0, 0)])
def test_no_elements(m, n, k):
    assert matmul(gemm(m, n, k, a_per="block", w_per="block"), dtype=torch.float16).shape == (m, n)


# --- what it refuses ------------------------------------------------------------------------------

BAD = [
    ("a", lambda w: w.a.view(torch.uint8), TypeError, "a: expected dtype float8_e4m3fn, found uint8"),
    ("a", lambda w: w.a.view(torch.int8).view(torch.float8_e4m3fnuz), TypeError, "float8_e4m3fnuz"),
    ("b", lambda w: w.b[:, :-1], ValueError, "a: expected 159 columns, as b has K = 159, found 160"),
    ("b", lambda w: w.b[0], ValueError, r"b: expected 2 dimensions, found shape \[160\]"),
    ("a_scale", lambda w: w.a_scale.double(), TypeError, "a_scale: expected dtype float32"),
    ("a_scale", lambda w: w.a_scale[:, :1], ValueError, r"a_scale: expected shape \[1\], \[3\] or \[3, 2\]"),
    ("a_scale", lambda w: w.a_scale.t(), ValueError, r"found \[2, 3\]"),
    ("w_scale", lambda w: w.w_scale[:1], ValueError, r"w_scale: expected shape \[1\], \[130\] or \[2, 2\]"),
    ("bias", lambda w: w.bias[:-1], ValueError, r"bias: expected shape \[130\], found \[129\]"),
    ("order", lambda w: "absmax", ValueError, "order: expected one of a-w, w-a, product, found 'absmax'"),
    ("w_scale", lambda w: w.w_scale.to("meta"), ValueError, "w_scale: expected device"),
]


@pytest.mark.parametrize(("field", "change", "error", "words"), BAD)
def test_a_bad_field_is_named(field, change, error, words):
    weight = gemm(3, 130, 160, a_per="block", w_per="block")
    with pytest.raises(error, match=words):
        matmul(dataclasses.replace(weight, **{field: change(weight)}), dtype=torch.float32)


@pytest.mark.parametrize(
    ("tile", "words"),
    [
        ({"block_k": 256}, "block_k: expected at most 128, the width of a block, found 256"),
        ({"block_k": 16}, "block_k: expected at least 32"),
        ({"block_m": 48}, "block_m: expected a power of two"),
    ],
)
def test_a_bad_tile_is_named(tile, words):
    with pytest.raises(ValueError, match=words):
        matmul(gemm(), dtype=torch.float32, **tile)


@pytest.mark.parametrize("field", ["a_scale", "w_scale", "bias"])
def test_deep_validation_reads_values(field):
    weight = gemm()
    weight.validate(deep=True)
    broken = getattr(weight, field).clone()
    broken[-1] = float("inf")
    with pytest.raises(ValueError, match=f"{field}: expected finite values, found inf"):
        dataclasses.replace(weight, **{field: broken}).validate(deep=True)


@pytest.mark.parametrize(
    ("capability", "refused"), [((8, 0), True), ((8, 6), True), ((8, 9), False), ((9, 0), False)]
)
def test_a_gpu_without_fp8_units_is_unsupported(capability, refused):
    with (
        mock.patch("torch.cuda.get_device_capability", return_value=capability),
        mock.patch("torch.version.hip", None),
    ):
        if not refused:
            expect_fp8_unit(torch.device("cuda"))
            return
        with pytest.raises(Unsupported, match=rf"capability 8\.9 .* found {capability[0]}\.{capability[1]}"):
            expect_fp8_unit(torch.device("cuda"))
