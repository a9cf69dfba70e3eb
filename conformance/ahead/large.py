"""Weights whose outputs have more than 2**31 elements, of tensors that take no memory.

Launchers read shapes and addresses, never values; under PyTorch's ``FakeTensorMode`` a tensor has
nothing else. So a launch of any size can be captured.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from kernels import (
    awq_cols,
    awq_quads,
    awq_rows,
    blockwise8,
    fp4,
    gemm_accumulate,
    gemm_cast_fp8,
    gemm_dynamic,
    gemm_epilogue,
    gemm_fp8,
    gemm_int8,
    gemm_quantize,
    gptq,
    int8_affine,
    llm_int8,
    nf4,
    squeezellm,
)
from kernels._awq import padded_groups
from kernels._blockwise import NestedAbsmax

# Rows and columns: nearly square, tall, wide. None is a power of two.
SHAPES = ((2**16 + 64, 2**15 + 192), (2**26 + 128, 64), (64, 2**26 + 128))


def _t(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype)


def _half(*shape: int) -> torch.Tensor:
    return _t(*shape, dtype=torch.float16)


def _single(*shape: int) -> torch.Tensor:
    return _t(*shape, dtype=torch.float32)


def _byte(*shape: int) -> torch.Tensor:
    return _t(*shape, dtype=torch.int8)


def _four_bit(kind: Any) -> Callable[[int, int], list[Any]]:
    def build(rows: int, cols: int) -> list[Any]:
        n = rows * cols
        packed = _t(n // 2, 1, dtype=torch.uint8)
        nested = NestedAbsmax(_single(256), _single(-(-n // 64 // 256)), _single())
        codes = _t(n // 64, dtype=torch.uint8)
        return [
            kind(packed, _single(n // 64), _single(16), (rows, cols), 64),
            kind(packed, codes, _single(16), (rows, cols), 64, nested),
        ]

    return build


def _blockwise8(rows: int, cols: int) -> list[Any]:
    packed = _t(rows, cols, dtype=torch.uint8)
    n = rows * cols
    return [blockwise8.Blockwise8Weight(packed, _single(n // 64), _single(256), (rows, cols), 64)]


def _gptq(rows: int, cols: int) -> list[Any]:
    def one(bits: int, size: int, order: bool) -> Any:
        groups = -(-rows // size)
        return gptq.GPTQWeight(
            _t(rows * bits // 32, cols),
            _t(groups, -(-cols * bits // 32)),
            _half(groups, cols),
            _t(rows) if order else None,
            bits,
            size,
            "v2",
        )

    return [
        one(4, 32, False),
        one(4, 32, True),
        one(4, rows, True),
        one(3, 32, False),
        one(8, 64, False),
        one(2, 8, False),
    ]


def _awq_cols(rows: int, cols: int) -> list[Any]:
    groups = rows // 64
    weight = awq_cols.AWQColsWeight(_t(rows, cols // 8), _t(groups, cols // 8), _half(groups, cols), 64)
    return [weight]


def _awq_rows(rows: int, cols: int) -> list[Any]:
    padded = padded_groups(cols, 64)
    return [awq_rows.AWQRowsWeight(_t(rows, cols // 8), _t(rows, padded // 8), _half(rows, padded), 64)]


def _awq_quads(rows: int, cols: int) -> list[Any]:
    padded = padded_groups(cols, 64)
    qweight = _t(rows // 4, cols, dtype=torch.int16)
    return [awq_quads.AWQQuadsWeight(qweight, _half(padded, rows), _half(padded, rows), 64)]


def _squeezellm(rows: int, cols: int) -> list[Any]:
    many = 10**9
    sparse = (_t(cols + 1), _t(many), _single(many))
    full = (_single(rows, 10), _t(10))
    return [
        squeezellm.SqueezeLLMWeight(_t(rows * bits // 32, cols), _single(cols, 2**bits), bits, *sparse, *full)
        for bits in (3, 4)
    ]


def _int8_affine(rows: int, cols: int) -> list[Any]:
    kind, codes, zero = int8_affine.Int8AffineWeight, _byte(rows, cols), torch.int8
    return [
        kind(codes, _half(1), None, "tensor"),
        kind(codes, _half(rows), _t(rows, dtype=zero), "channel", 0),
        kind(codes, _half(cols), _t(cols, dtype=zero), "channel", 1),
        kind(codes, _half(rows, cols // 32), _t(rows, cols // 32), "group", 1, 32),
    ]


def _llm_int8(rows: int, cols: int) -> list[Any]:
    return [llm_int8.LLMInt8Weight(_byte(rows, cols), _single(rows))]


def _gemm_accumulate(rows: int, cols: int) -> list[Any]:
    kind = gemm_accumulate.Int8Operands
    # The output is large, then the left operand, then the right one.
    return [
        kind(_byte(rows, 64), _byte(cols, 64)),
        kind(_byte(rows, 64), _byte(64, cols), "KN"),
        kind(_byte(rows, cols), _byte(64, cols)),
        kind(_byte(64, cols), _byte(rows, cols)),
    ]


def _gemm_int8(rows: int, cols: int) -> list[Any]:
    scales = (_single(rows), _single(cols))
    kind = gemm_int8.Int8GemmInput
    return [
        kind(_byte(rows, 64), _byte(cols, 64), *scales),
        kind(_byte(rows, 64), _byte(64, cols), *scales, _t(rows), _half(cols), "KN"),
    ]


def _gemm_epilogue(rows: int, cols: int) -> list[Any]:
    scales = (_single(rows), _single(cols))
    return [gemm_epilogue.EpilogueInput(_t(rows, cols), *scales, _t(rows), _t(cols), _half(cols))]


def _gemm_quantize(rows: int, cols: int) -> list[Any]:
    return [gemm_quantize.QuantizeInput(_half(rows, cols), rule) for rule in ("scale", "minmax")]


def _gemm_dynamic(rows: int, cols: int) -> list[Any]:
    return [gemm_dynamic.DynamicGemmInput(_half(rows, 64), _byte(cols, 64), _single(cols))]


def _gemm_fp8(rows: int, cols: int) -> list[Any]:
    kind, code = gemm_fp8.Fp8GemmInput, torch.float8_e4m3fn
    k_blocks, n_blocks = -(-cols // 128), -(-rows // 128)
    # The output is large, then the left operand, then the right one with its scales.
    return [
        kind(_t(rows, 64, dtype=code), _t(cols, 64, dtype=code), _single(rows), _single(cols), _half(cols)),
        kind(
            _t(rows, cols, dtype=code),
            _t(64, cols, dtype=code),
            _single(rows, k_blocks),
            _single(1, k_blocks),
        ),
        kind(_t(64, cols, dtype=code), _t(rows, cols, dtype=code), _single(64), _single(n_blocks, k_blocks)),
    ]


def _gemm_cast_fp8(rows: int, cols: int) -> list[Any]:
    return [gemm_cast_fp8.CastInput(_half(rows, cols), None, per) for per in ("token", "block")]


BUILDERS: dict[str, Callable[[int, int], list[Any]]] = {
    "nf4": _four_bit(nf4.NF4Weight),
    "fp4": _four_bit(fp4.FP4Weight),
    "blockwise8": _blockwise8,
    "gptq": _gptq,
    "awq_cols": _awq_cols,
    "awq_rows": _awq_rows,
    "awq_quads": _awq_quads,
    "squeezellm": _squeezellm,
    "int8_affine": _int8_affine,
    "llm_int8": _llm_int8,
    "gemm_accumulate": _gemm_accumulate,
    "gemm_int8": _gemm_int8,
    "gemm_epilogue": _gemm_epilogue,
    "gemm_quantize": _gemm_quantize,
    "gemm_dynamic": _gemm_dynamic,
    "gemm_fp8": _gemm_fp8,
    "gemm_cast_fp8": _gemm_cast_fp8,
}


@contextlib.contextmanager
def without_memory() -> Iterator[None]:
    """Tensors made within have shape, dtype and strides, and an address that is a multiple of 16."""
    with FakeTensorMode(), mock.patch.object(torch.Tensor, "data_ptr", create=True, return_value=256):
        yield


def large_weights(name: str) -> Iterator[tuple[str, Any]]:
    """Weights of a format with a text for each; to be used :func:`without_memory`."""
    for rows, cols in SHAPES:
        for number, weight in enumerate(BUILDERS[name](rows, cols)):
            yield f"{name}:large={rows}x{cols}/{number}", weight
