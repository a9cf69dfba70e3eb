"""What the packed types of the int8 and fp8 matrix products share: checks of fields, and of tile sizes."""

from __future__ import annotations

from typing import Literal

import torch

from kernels._gemm_kernel import A_W, ABSMAX, PRODUCT, W_A
from kernels._packed import (
    OUTPUT_DTYPES,
    PackedWeight,
    expect_finite,
    expect_int,
    expect_power_of_two,
    expect_tensor,
)

ACTIVATION_DTYPES = (torch.int8, torch.uint8)
BIAS_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
ORDERS = {"a-w": A_W.value, "w-a": W_A.value, "product": PRODUCT.value, "absmax": ABSMAX.value}
LAYOUTS = ("NK", "KN")

Order = Literal["a-w", "w-a", "product", "absmax"]
Layout = Literal["NK", "KN"]


def expect_matrix(field: str, value: object, dtype: torch.dtype | tuple[torch.dtype, ...]) -> torch.Tensor:
    """``value`` if it is a tensor of that dtype with two dimensions; raises TypeError or ValueError."""
    tensor = expect_tensor(field, value, dtype=dtype)
    if tensor.dim() != 2:
        raise ValueError(f"{field}: expected 2 dimensions, found shape {list(tensor.shape)}")
    return tensor


def expect_activations(x: object) -> torch.Tensor:
    """``x`` if it is a matrix of floats whose rows have elements; raises TypeError or ValueError."""
    tensor = expect_matrix("x", x, OUTPUT_DTYPES)
    if tensor.shape[0] and not tensor.shape[1]:
        raise ValueError(f"x: expected at least one element a row, found shape {list(tensor.shape)}")
    return tensor


def expect_one_or(field: str, value: object, count: int, dtype: torch.dtype) -> None:
    """Raise unless ``value`` is a tensor [1] or [count] of ``dtype``."""
    tensor = expect_tensor(field, value, dtype=dtype)
    if tuple(tensor.shape) not in ((1,), (count,)):
        raise ValueError(f"{field}: expected shape [1] or [{count}], found {list(tensor.shape)}")


def expect_choice(field: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{field}: expected one of {', '.join(choices)}, found {value!r}")


def expect_operands(a: object, b: object, b_layout: object) -> tuple[int, int, int]:
    """M, N and K of int8 operands ``a`` [M, K] and ``b`` ([N, K], or [K, N] with layout ``KN``)."""
    left = expect_matrix("a", a, ACTIVATION_DTYPES)
    expect_choice("b_layout", b_layout, LAYOUTS)
    n_cols, n_inner = outputs_and_inner(b, b_layout)
    if left.shape[1] != n_inner:
        raise ValueError(f"a: expected {n_inner} columns, as b has K = {n_inner}, found {left.shape[1]}")
    return left.shape[0], n_cols, n_inner


def outputs_and_inner(b: object, b_layout: object) -> tuple[int, int]:
    """N and K of an int8 operand ``b``."""
    shape = expect_matrix("b", b, torch.int8).shape
    return (shape[0], shape[1]) if b_layout == "NK" else (shape[1], shape[0])


def expect_epilogue(
    n_rows: int,
    n_cols: int,
    a_scale: object,
    w_scale: object,
    a_zero: object,
    bias: object,
    order: object,
) -> None:
    """Check the operands of the epilogue against M and N."""
    expect_one_or("a_scale", a_scale, n_rows, torch.float32)
    expect_one_or("w_scale", w_scale, n_cols, torch.float32)
    if a_zero is not None:
        expect_one_or("a_zero", a_zero, n_rows, torch.int32)
    expect_bias(bias, n_cols)
    expect_choice("order", order, tuple(ORDERS))


def expect_bias(bias: object, n_cols: int) -> None:
    if bias is not None:
        expect_tensor("bias", bias, dtype=BIAS_DTYPES, shape=(n_cols,))


def expect_finite_fields(weight: PackedWeight, *names: str) -> None:
    """Raise ``ValueError`` at the first value of the fields that is not finite; None passes."""
    for name in names:
        value = getattr(weight, name)
        if value is not None:
            expect_finite(name, value)


def expect_tiles(block_m: object, block_n: object, block_k: object, num_warps: object) -> None:
    """Tile sizes that ``tl.dot`` takes: powers of two, at least 16 x 16 x 32."""
    for field, value, least in (("block_m", block_m, 16), ("block_n", block_n, 16), ("block_k", block_k, 32)):
        expect_int(field, value, minimum=least)
        expect_power_of_two(field, value)
    expect_power_of_two("num_warps", num_warps)


def check_by_row(kind: type[PackedWeight], weight: object, **tile: object) -> None:
    """Check the arguments of a kernel that goes over rows: a ``weight`` of ``kind``, powers of two."""
    if not isinstance(weight, kind):
        raise TypeError(f"weight: expected {kind.__name__}, found {type(weight).__name__}")
    for field, value in tile.items():
        expect_int(field, value, minimum=1)
        expect_power_of_two(field, value)
    weight.validate()


def unsafe_depth(unsigned: bool) -> int:
    """Smallest K at which a sum of products can leave int32: at 128 * 128 or 255 * 128 a product."""
    return 2**31 // ((255 if unsigned else 128) * 128) + (1 if unsigned else 0)
