"""Random packed weights, made on the device: every bit pattern of the codes, a scale for each group."""

from __future__ import annotations

import math
from typing import Literal

import torch

from benchmarks.cases import BenchCase
from kernels import fp4, nf4
from kernels._awq import padded_groups
from kernels._blockwise import NestedAbsmax
from kernels._packed import PackedWeight, map_tensors, named_tensors
from kernels.awq_cols import AWQColsWeight
from kernels.awq_quads import AWQQuadsWeight
from kernels.awq_rows import AWQRowsWeight
from kernels.blockwise8 import Blockwise8Weight
from kernels.gptq import GPTQWeight
from kernels.int8_affine import Granularity, Int8AffineWeight
from kernels.llm_int8 import LLMInt8Weight
from kernels.squeezellm import SqueezeLLMWeight

_NESTED_BLOCK = 256


class _Source:
    """Random tensors of one generator."""

    def __init__(self, device: torch.device, seed: int) -> None:
        self.device = device
        self.generator = torch.Generator(device=device).manual_seed(seed)

    def integers(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Integers of any bit pattern."""
        n_bytes = math.prod(shape) * dtype.itemsize
        raw = torch.randint(
            0, 256, (n_bytes,), dtype=torch.uint8, device=self.device, generator=self.generator
        )
        return raw.view(dtype).reshape(shape)

    def scales(self, shape: tuple[int, ...], dtype: torch.dtype = torch.float16) -> torch.Tensor:
        """Positive scales of the size that trained weights have, each its own."""
        unit = torch.rand(shape, device=self.device, generator=self.generator)
        return (unit * 0.02 + 0.001).to(dtype)

    def normal(self, shape: tuple[int, ...]) -> torch.Tensor:
        return torch.randn(shape, device=self.device, generator=self.generator)

    def order(self, n: int) -> torch.Tensor:
        return torch.randperm(n, device=self.device, generator=self.generator)


def _dynamic_map(source: _Source) -> torch.Tensor:
    """float32 [256], ascending in -1..1: the shape of bitsandbytes' map. Speed does not depend on it."""
    half = torch.arange(1, 129, dtype=torch.float32, device=source.device) / 128
    cubes = half * half * half
    return torch.cat([-cubes.flip(0), cubes])


def _blockwise(case: BenchCase, source: _Source) -> PackedWeight:
    n = case.rows * case.cols
    n_blocks = -(-n // case.group)
    nested = None
    if case.variant == "nested":
        absmax = source.integers((n_blocks,), torch.uint8)
        groups = -(-n_blocks // _NESTED_BLOCK)
        offset = source.scales((1,), torch.float32)[0].clone()
        nested = NestedAbsmax(_dynamic_map(source), source.scales((groups,), torch.float32), offset)
    else:
        absmax = source.scales((n_blocks,), torch.float32)
    shape = (case.rows, case.cols)
    if case.format == "blockwise8":
        codes = source.integers(shape, torch.uint8)
        return Blockwise8Weight(codes, absmax, _dynamic_map(source), shape, case.group, nested)
    packed = source.integers((-(-n // 2), 1), torch.uint8)
    if case.format == "nf4":
        return nf4.NF4Weight(packed, absmax, nf4.codebook(source.device), shape, case.group, nested)
    return fp4.FP4Weight(packed, absmax, fp4.codebook(source.device), shape, case.group, nested)


def _gptq(case: BenchCase, source: _Source) -> PackedWeight:
    bits = int(case.variant[0])
    n_rows, n_cols = case.rows, case.cols
    group_rows = n_rows if case.group == -1 else case.group
    n_groups = -(-n_rows // group_rows)
    g_idx = None
    if case.variant.endswith("act-order"):
        sequential = torch.arange(n_rows, device=source.device) // group_rows
        g_idx = sequential[source.order(n_rows)].to(torch.int32)
    return GPTQWeight(
        qweight=source.integers((-(-n_rows * bits // 32), n_cols), torch.int32),
        qzeros=source.integers((n_groups, -(-n_cols * bits // 32)), torch.int32),
        scales=source.scales((n_groups, n_cols)),
        g_idx=g_idx,
        bits=bits,
        group_size=case.group,
        zeros="v1",  # most checkpoints; the others cost one or two instructions a zero less
        in_features=n_rows,
    )


def _awq_cols(case: BenchCase, source: _Source) -> PackedWeight:
    groups = 1 if case.group == -1 else max(1, case.rows // case.group)
    words = case.cols // 8
    return AWQColsWeight(
        source.integers((case.rows, words), torch.int32),
        source.integers((groups, words), torch.int32),
        source.scales((groups, words * 8)),
        case.group,
    )


def _awq_rows(case: BenchCase, source: _Source) -> PackedWeight:
    padded = padded_groups(case.cols, case.cols if case.group == -1 else case.group)
    return AWQRowsWeight(
        source.integers((case.rows, case.cols // 8), torch.int32),
        source.integers((case.rows, padded // 8), torch.int32),
        source.scales((case.rows, padded)),
        case.group,
    )


def _awq_quads(case: BenchCase, source: _Source) -> PackedWeight:
    padded = padded_groups(case.cols, case.cols if case.group == -1 else case.group)
    scales = source.scales((padded, case.rows))
    zeros = source.integers((padded, case.rows), torch.uint8) % 16
    return AWQQuadsWeight(
        source.integers((case.rows // 4, case.cols), torch.int16), scales, -(zeros * scales), case.group
    )


def _squeezellm(case: BenchCase, source: _Source) -> PackedWeight:
    bits = int(case.variant[0])
    qweight = source.integers((case.rows * bits // 32, case.cols), torch.int32)
    return SqueezeLLMWeight(qweight, source.normal((case.cols, 2**bits)), bits)


def _llm_int8(case: BenchCase, source: _Source) -> PackedWeight:
    return LLMInt8Weight(
        source.integers((case.rows, case.cols), torch.int8), source.scales((case.rows,), torch.float32)
    )


def _int8_affine(case: BenchCase, source: _Source) -> PackedWeight:
    rows, cols = case.rows, case.cols
    kinds: dict[str, tuple[Granularity, Literal[0, 1] | None, tuple[int, ...]]] = {
        "tensor": ("tensor", None, (1,)),
        "row": ("channel", 0, (rows,)),
        "column": ("channel", 1, (cols,)),
        "group": ("group", 1, (rows, -(-cols // max(case.group, 1)))),
    }
    granularity, axis, places = kinds[case.variant]
    # Groups come with zero points, the others mostly without.
    grouped = case.variant == "group"
    dtype = torch.uint8 if grouped else torch.int8
    return Int8AffineWeight(
        codes=source.integers((rows, cols), dtype),
        scale=source.scales(places),
        zero_point=source.integers(places, dtype) if grouped else None,
        granularity=granularity,
        axis=axis,
        group_size=case.group if grouped else None,
    )


_MAKERS = {
    "nf4": _blockwise,
    "fp4": _blockwise,
    "blockwise8": _blockwise,
    "llm_int8": _llm_int8,
    "gptq": _gptq,
    "awq_cols": _awq_cols,
    "awq_rows": _awq_rows,
    "awq_quads": _awq_quads,
    "squeezellm": _squeezellm,
    "int8_affine": _int8_affine,
}


def make(case: BenchCase, device: torch.device, seed: int = 1) -> PackedWeight:
    """The packed weight of a case, on ``device``; its output has the case's rows and columns.

    Raises:
        ValueError: the format does not take this size or group size.
    """
    weight = _MAKERS[case.format](case, _Source(device, seed))
    weight.validate()
    if weight.output_shape != (case.rows, case.cols):
        raise ValueError(
            f"size: expected one that {case.format} packs without padding, found {case.rows}x{case.cols}"
        )
    return weight


def clone(weight: PackedWeight) -> PackedWeight:
    """The same weight in other memory."""
    return map_tensors(weight, lambda name, tensor: tensor.clone())


def traffic(weight: PackedWeight, dtype: torch.dtype) -> int:
    """Bytes that must move: what the format stores, once, and the output, once.

    Padding of AWQ's scales and zeros is not needed, and so not counted.
    """
    stored = {name: tensor.numel() * tensor.element_size() for name, tensor in named_tensors(weight)}
    if isinstance(weight, AWQRowsWeight):
        stored["qzeros"] = weight.n_outputs * -(-weight.n_groups // 8) * 4
        stored["scales"] = weight.n_outputs * weight.n_groups * weight.scales.element_size()
    elif isinstance(weight, AWQQuadsWeight):
        stored["qzeros"] = stored["scales"] = weight.n_outputs * weight.n_groups * 2
    return sum(stored.values()) + math.prod(weight.output_shape) * dtype.itemsize
