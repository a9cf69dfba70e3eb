"""The cast to fp8 e4m3: every code, every tie, corners, and what it refuses."""

from __future__ import annotations

import dataclasses
import warnings

import numpy as np
import pytest
import torch

from kernels._fp8 import E4M3
from kernels._packed import map_tensors
from kernels.gemm_cast_fp8 import CastInput, cast, round_trip
from oracles.spec.fp8 import VALUES, decode, encode
from oracles.spec.gemm_cast_fp8 import cast_of
from tests.kernel_weights import DEVICE, DTYPES, bits

if DEVICE.type == "cpu":
    from conformance import interpreter

    interpreter.correct()

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

INF, NAN = float("inf"), float("nan")


def given(x: torch.Tensor, per: str = "token", scale: float | None = None) -> CastInput:
    held = None if scale is None else torch.tensor([scale])
    return map_tensors(CastInput(x, held, per), lambda _, t: t.to(DEVICE))


def codes(x: torch.Tensor, per: str = "token", scale: float | None = None) -> np.ndarray:
    return cast(given(x, per, scale), rows=1, cols=1024).codes.cpu().view(torch.uint8).numpy()


def without_sign_of_nan(found: np.ndarray) -> np.ndarray:
    return np.where((found & 0x7F) == 0x7F, 0x7F, found)


def sweep() -> torch.Tensor:
    """float32 numbers whose upper 16 bits are anything, and the lower ones around a tie: [1, n]."""
    high = np.arange(2**16, dtype=np.uint64) << 16
    found = np.concatenate([high | low for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)])
    return torch.from_numpy(found.astype(np.uint32).view(np.float32))[None]


def test_every_number_is_rounded_as_torch_rounds_it():
    x = sweep()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        saturated = torch.where(x.isnan(), x, x.clamp(-448, 448))
    right = saturated.to(E4M3).view(torch.uint8).numpy()
    # A GPU's arithmetic keeps no sign of a NaN.
    assert np.array_equal(without_sign_of_nan(codes(x, "tensor", 1.0)), without_sign_of_nan(right))
    assert np.array_equal(encode(x.numpy()), right)


def test_the_model_has_the_numbers_of_torch():
    table = torch.arange(256, dtype=torch.uint8).view(E4M3).double().numpy()
    assert np.array_equal(VALUES, table, equal_nan=True)
    assert np.array_equal(np.signbit(VALUES), np.signbit(table))


@pytest.mark.parametrize("dtype", DTYPES)
def test_all_codes_come_back(dtype):
    """Values are their own round trip, and their codes are those they came from."""
    code = np.arange(256, dtype=np.uint8)
    code = code[code & 127 != 127]
    x = torch.from_numpy(decode(code).astype(np.float32))[None]
    assert np.array_equal(codes(x, "tensor", 1.0)[0], code)
    back = round_trip(given(x, "tensor", 1.0), dtype=dtype)
    assert torch.equal(bits(back.cpu()), bits(x.to(dtype)))


@pytest.mark.parametrize("cols", [16, 64, 1024])
@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("per", ["token", "block"])
@pytest.mark.parametrize("shape", [(1, 1), (5, 127), (3, 128), (2, 129), (3, 300)])
def test_tiles_and_short_blocks(shape, per, rows, cols):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)) * 3
    made = cast(given(x, per), rows=rows, cols=cols)
    right = cast_of(CastInput(x, None, per))
    assert np.array_equal(made.codes.cpu().view(torch.uint8).numpy(), right.codes)
    blocks = -(-shape[1] // 128)
    assert made.scale.shape == ((shape[0],) if per == "token" else (shape[0], blocks))
    first = np.arange(blocks) * 128 if per == "block" else np.zeros(1, int)
    assert np.array_equal(made.scale.cpu().numpy().reshape(shape[0], -1), right.scale[:, first])
    back = round_trip(given(x, per), dtype=torch.float32, rows=rows, cols=cols)
    assert np.array_equal(back.cpu().numpy(), right.values())


def test_what_is_beyond_the_range_saturates():
    x = torch.tensor([[448.0, 449.0, 464.0, 465.0, 1e30, INF, -465.0, -INF, NAN]])
    found = codes(x, "tensor", 1.0)[0]
    assert found[:8].tolist() == [0x7E] * 6 + [0xFE] * 2
    assert found[8] & 0x7F == 0x7F


def test_subnormal_codes():
    step = 2.0**-9
    x = torch.tensor([[step, 7 * step, 8 * step, 0.5 * step, 1.5 * step, 7.5 * step, 0.49 * step, -step]])
    assert codes(x, "tensor", 1.0)[0].tolist() == [1, 7, 8, 0, 2, 8, 0, 0x81]


def test_zeros_keep_their_sign_and_are_no_nan():
    x = torch.tensor([[0.0, -0.0, 0.0], [1.0, -0.0, 0.0]])
    assert codes(x).tolist() == [[0, 0x80, 0], [0x7E, 0x80, 0]]
    assert codes(x, "tensor", 0.0)[0].tolist() == [0, 0x80, 0]
    assert cast(given(x)).scale.cpu().tolist()[0] == 0.0
    back = round_trip(given(x), dtype=torch.float32).cpu()
    assert not back.isnan().any()
    assert torch.equal(torch.signbit(back), torch.signbit(x))


def test_a_scale_that_underflows():
    """absmax / 448 is below half of the smallest float32: scale 0, the largest codes, values 0."""
    x = torch.tensor([[1e-43, -1e-44, 0.0]])
    made = cast(given(x))
    assert made.scale.item() == 0.0
    assert made.codes.cpu().view(torch.uint8)[0].tolist() == [0x7E, 0xFE, 0]
    assert (round_trip(given(x), dtype=torch.float32) == 0).all()


@pytest.mark.parametrize("value", [INF, -INF, NAN])
def test_a_row_with_what_is_not_finite_is_nan(value):
    x = torch.ones(3, 200)
    x[1, 150] = value
    assert cast(given(x)).scale[1].item() == INF
    by_token, by_block = (round_trip(given(x, per), dtype=torch.float32).cpu() for per in ("token", "block"))
    assert by_token[1].isnan().all()
    assert by_block[1, 128:].isnan().all()
    assert not by_block[1, :128].isnan().any()
    assert not by_token[[0, 2]].isnan().any()
    with pytest.raises(ValueError, match="x: expected finite values"):
        given(x).validate(deep=True)


BAD = [
    ({"x": torch.ones(2, 3).double()}, TypeError, "x: expected dtype one of float16"),
    ({"x": torch.ones(3)}, ValueError, "x: expected 2 dimensions"),
    ({"x": torch.ones(2, 0)}, ValueError, "x: expected at least one element a row"),
    ({"per": "channel"}, ValueError, "per: expected one of tensor, token, block, found 'channel'"),
    ({"scale": torch.ones(1)}, ValueError, "scale: expected None with per token, found a tensor"),
    ({"per": "tensor"}, TypeError, "scale: expected a tensor, found NoneType"),
    ({"per": "tensor", "scale": torch.ones(2)}, ValueError, r"scale: expected shape \[1\], found \[2\]"),
    ({"per": "tensor", "scale": torch.ones(1).half()}, TypeError, "scale: expected dtype float32"),
]


@pytest.mark.parametrize(("changes", "error", "words"), BAD)
def test_a_bad_field_is_named(changes, error, words):
    weight = map_tensors(
        dataclasses.replace(CastInput(torch.ones(2, 3)), **changes), lambda _, t: t.to(DEVICE)
    )
    for function in (lambda: cast(weight), lambda: round_trip(weight, dtype=torch.float32)):
        with pytest.raises(error, match=words):
            function()


def test_no_rows():
    for per in ("token", "block"):
        assert cast(given(torch.ones(0, 5), per)).codes.shape == (0, 5)
        assert round_trip(given(torch.ones(0, 5), per), dtype=torch.float16).shape == (0, 5)
