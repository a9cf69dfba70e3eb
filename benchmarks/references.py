"""Each format's formula in a few lines of torch, as one would write it without a kernel.

Used twice: as the answer that a kernel is held to at sizes where the exact model in NumPy would
take minutes (after it was compared with that model at a small size, :mod:`benchmarks.check`), and
as a peer, eager and compiled. Sizes must be whole numbers of groups and words.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kernels._blockwise import BlockwiseWeight
from kernels._packed import PackedWeight
from kernels.awq_cols import AWQColsWeight
from kernels.awq_quads import AWQQuadsWeight
from kernels.awq_rows import AWQRowsWeight
from kernels.gptq import GPTQWeight
from kernels.int8_affine import Int8AffineWeight
from kernels.llm_int8 import INV_127, LLMInt8Weight
from kernels.squeezellm import SqueezeLLMWeight


def _shifts(step: int, count: int, device: torch.device) -> torch.Tensor:
    return torch.arange(0, step * count, step, dtype=torch.int32, device=device)


def _blockwise(weight: BlockwiseWeight, dtype: torch.dtype) -> torch.Tensor:
    absmax = weight.absmax
    if weight.nested is not None:
        nested = weight.nested
        group = torch.arange(absmax.numel(), device=absmax.device) // nested.blocksize
        # Two statements: a fused multiply-add would round once.
        product = nested.codebook[absmax.long()] * nested.absmax[group]
        absmax = product + nested.offset
    data = weight.packed.reshape(-1)
    if weight.bits == 4:
        data = torch.stack([data >> 4, data & 15], dim=-1).reshape(-1)
    value = weight.codebook[data.long()].reshape(-1, weight.blocksize) * absmax[:, None]
    return value.to(dtype).reshape(weight.shape)


def _llm_int8(weight: LLMInt8Weight, dtype: torch.dtype) -> torch.Tensor:
    return (weight.codes.float() * weight.absmax[:, None] * INV_127.value).to(dtype)


def _fields(words: torch.Tensor, bits: int, dim: int) -> torch.Tensor:
    """Fields of a dense little-endian stream along ``dim`` of int32 ``words``, as int32."""
    if bits != 3:
        shifts = _shifts(bits, 32 // bits, words.device)
        shifts = shifts[:, None] if dim == 0 else shifts
        fields = (words.unsqueeze(dim + 1) >> shifts) & (2**bits - 1)
        return fields.flatten(dim, dim + 1)
    parts = words.unflatten(dim, (-1, 3)).unbind(dim + 1)
    found = []
    for slot in range(32):
        word, shift = divmod(3 * slot, 32)
        # The sign bit is copied by the shift: mask before joining.
        low = (parts[word] >> shift) & (2 ** min(3, 32 - shift) - 1)
        if shift > 29:
            low = low | ((parts[word + 1] & (2 ** (shift - 29) - 1)) << (32 - shift))
        found.append(low)
    return torch.stack(found, dim + 1).flatten(dim, dim + 1)


def _gptq(weight: GPTQWeight, dtype: torch.dtype) -> torch.Tensor:
    codes = _fields(weight.qweight, weight.bits, 0)
    zeros = _fields(weight.qzeros, weight.bits, 1)
    if weight.zeros != "v2":
        zeros = zeros + 1
    if weight.zeros == "v1":
        zeros = zeros & (2**weight.bits - 1)
    scales = weight.scales.float()
    if weight.g_idx is not None:
        group = weight.g_idx.long()
        return ((codes - zeros[group]).float() * scales[group]).to(dtype)
    grouped = codes.reshape(-1, weight.group_rows, codes.shape[1])
    value = (grouped - zeros[:, None, :]).float() * scales[:, None, :]
    return value.to(dtype).reshape(codes.shape)


def _columns(words: torch.Tensor) -> torch.Tensor:
    """Codes of AWQ's interleaved words, in column order: int32 [R, 8 C]."""
    shifts = 4 * torch.tensor([0, 4, 1, 5, 2, 6, 3, 7], dtype=torch.int32, device=words.device)
    return ((words[..., None] >> shifts) & 15).flatten(1, 2)


def _awq_cols(weight: AWQColsWeight, dtype: torch.dtype) -> torch.Tensor:
    codes, zeros = _columns(weight.qweight), _columns(weight.qzeros)
    grouped = codes.reshape(-1, weight.group_rows, codes.shape[1])
    value = (grouped - zeros[:, None, :]).float() * weight.scales.float()[:, None, :]
    return value.to(dtype).reshape(codes.shape)


def _awq_rows(weight: AWQRowsWeight, dtype: torch.dtype) -> torch.Tensor:
    codes = _fields(weight.qweight, 4, 1).reshape(weight.n_outputs, weight.n_groups, weight.group_rows)
    zeros = _fields(weight.qzeros, 4, 1)[:, : weight.n_groups, None]
    scales = weight.scales[:, : weight.n_groups, None].float()
    return ((codes - zeros).float() * scales).to(dtype).reshape(weight.output_shape)


def _awq_quads(weight: AWQQuadsWeight, dtype: torch.dtype) -> torch.Tensor:
    words = weight.qweight.to(torch.int32).reshape(-1, weight.n_rows // 64, 4, 2, 8)
    codes = (words[..., None] >> _shifts(4, 4, words.device)) & 15  # [N / 4, chunk, output, half, j, nibble]
    codes = codes.permute(0, 2, 1, 3, 5, 4).reshape(weight.n_outputs, weight.n_groups, weight.group_rows)
    scales = weight.scales[: weight.n_groups].t()[:, :, None].double()
    zeros = weight.qzeros[: weight.n_groups].t()[:, :, None].double()
    exact = codes * scales + zeros
    single = exact.float()
    if dtype != torch.float32:
        # To odd: torch goes to 16 bits by way of float32, and would round twice.
        bits = torch.where(single.double().abs() > exact.abs(), _bits(single) - 1, _bits(single))
        inexact = bits.view(torch.float32).double() != exact
        single = torch.where(inexact, bits | 1, bits).view(torch.float32)
    return single.to(dtype).reshape(weight.output_shape)


def _bits(single: torch.Tensor) -> torch.Tensor:
    return single.view(torch.int32)


def _squeezellm(weight: SqueezeLLMWeight, dtype: torch.dtype) -> torch.Tensor:
    if weight.rows is not None or weight.full_rows is not None:
        raise ValueError("rows: expected a dense weight, found outliers or full rows")
    codes = _fields(weight.qweight, weight.bits, 0)
    return weight.lookup_table.t().gather(0, codes.long()).to(dtype)


def _int8_affine(weight: Int8AffineWeight, dtype: torch.dtype) -> torch.Tensor:
    codes, scale = weight.codes.to(torch.int32), weight.scale.float()
    zero = None if weight.zero_point is None else weight.zero_point.to(torch.int32)
    if weight.granularity == "group":
        assert weight.group_size is not None
        codes = codes.reshape(codes.shape[0], -1, weight.group_size)
    if weight.granularity == "group" or (weight.granularity == "channel" and weight.axis == 0):
        scale, zero = scale[..., None], None if zero is None else zero[..., None]
    if zero is not None:
        codes = codes - zero
    return (codes.float() * scale).to(dtype).reshape(weight.output_shape)


_FORMULAS: dict[type, Callable[[Any, torch.dtype], torch.Tensor]] = {
    LLMInt8Weight: _llm_int8,
    GPTQWeight: _gptq,
    AWQColsWeight: _awq_cols,
    AWQRowsWeight: _awq_rows,
    AWQQuadsWeight: _awq_quads,
    SqueezeLLMWeight: _squeezellm,
    Int8AffineWeight: _int8_affine,
}


def find_formula(weight: PackedWeight) -> Callable[[Any, torch.dtype], torch.Tensor]:
    """The formula of a weight's format."""
    return _blockwise if isinstance(weight, BlockwiseWeight) else _FORMULAS[type(weight)]


def formula(weight: PackedWeight, dtype: torch.dtype) -> torch.Tensor:
    """``weight`` dequantized to ``dtype`` by torch, on its device: exact to the bit, eager and slow.

    Raises:
        RuntimeError: a size that is no whole number of groups or words.
        ValueError: a squeezellm weight with a sparse part.
    """
    return find_formula(weight)(weight, dtype)
