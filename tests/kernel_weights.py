"""Small packed weights of every format, for tests of the kernels' contract."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from kernels import blockwise8, fp4, llm_int8, nf4
from kernels._blockwise import NestedAbsmax
from kernels._packed import PackedWeight, map_tensors

DEVICE = torch.device("cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda")
DTYPES = [torch.float16, torch.bfloat16, torch.float32]
MODULES: dict[str, ModuleType] = {"nf4": nf4, "fp4": fp4, "blockwise8": blockwise8, "llm_int8": llm_int8}
FOUR_BIT = ["nf4", "fp4"]
BLOCKWISE = [*FOUR_BIT, "blockwise8"]
FORMATS = list(MODULES)

BLOCKSIZE = 32
NESTED_BLOCKSIZE = 2


def _uniform(generator: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=generator) * 2 + 0.25


def _bytes(generator: torch.Generator, *shape: int, low: int = 0, high: int = 256) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=generator)


def _nested(generator: torch.Generator, n_blocks: int) -> NestedAbsmax:
    return NestedAbsmax(
        codebook=_uniform(generator, 256),
        absmax=_uniform(generator, -(-n_blocks // NESTED_BLOCKSIZE)),
        offset=_uniform(generator, 1)[0].clone(),
        blocksize=NESTED_BLOCKSIZE,
    )


def make(name: str, shape: tuple[int, ...] = (5, 40), *, nested: bool = False) -> Any:
    """A valid weight of ``shape`` with random codes and a different scale in every block."""
    generator = torch.Generator().manual_seed(1)
    if name == "llm_int8":
        codes = _bytes(generator, *shape, low=-128, high=128).to(torch.int8)
        return on_device(llm_int8.LLMInt8Weight(codes, _uniform(generator, shape[0])))
    n_blocks = -(-math.prod(shape) // BLOCKSIZE)
    if name == "blockwise8":
        packed, table = _bytes(generator, *shape), torch.linspace(-1, 1, 256)
    else:
        packed, table = _bytes(generator, -(-math.prod(shape) // 2), 1), MODULES[name].codebook()
    kind = {"nf4": nf4.NF4Weight, "fp4": fp4.FP4Weight, "blockwise8": blockwise8.Blockwise8Weight}[name]
    absmax = _bytes(generator, n_blocks).to(torch.uint8) if nested else _uniform(generator, n_blocks)
    return on_device(
        kind(
            packed=packed.to(torch.uint8),
            absmax=absmax,
            codebook=table,
            shape=shape,
            blocksize=BLOCKSIZE,
            nested=_nested(generator, n_blocks) if nested else None,
        )
    )


def on_device(weight: Any) -> Any:
    return map_tensors(weight, lambda name, tensor: tensor.to(DEVICE))


def change(weight: Any, field: str, function: Callable[[Any], Any]) -> Any:
    """Replace the dotted ``field`` of ``weight`` by ``function(old value)``."""
    outer, _, inner = field.partition(".")
    old = getattr(weight, outer)
    new = change(old, inner, function) if inner else function(old)
    return dataclasses.replace(weight, **{outer: new})


def dequantize(name: str, weight: PackedWeight, **options: Any) -> torch.Tensor:
    return MODULES[name].dequantize(weight, **options)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The bit patterns of ``tensor``: NaN equals itself, +0 and -0 differ."""
    integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.dtype.itemsize]
    return tensor.detach().cpu().contiguous().view(integer)


def same_bits(got: torch.Tensor, want: torch.Tensor) -> bool:
    return got.dtype == want.dtype and torch.equal(bits(got), bits(want))
