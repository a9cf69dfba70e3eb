"""Blockwise codebook quantization, the scheme shared by nf4, fp4 and blockwise8.

::

    element i of the flattened weight:  value[i] = fp32(codebook[q[i]] * absmax[i // blocksize])
                                        rounded once more to the output dtype
    nested ("double quantization"):     absmax[b] = fp32(fp32(codebook2[q2[b]] * absmax2[b // blocksize2])
                                                         + offset)

Blocks run over the flattened weight and ignore its rows; the last one may be short.
Source: bitsandbytes 0.50.2, ``functional.dequantize_4bit`` and ``dequantize_blockwise``.
"""

from __future__ import annotations

import dataclasses
import math
import struct
from collections.abc import Sequence
from typing import ClassVar

import torch
import triton
import triton.language as tl

from kernels._launch import check_output, check_runnable, destination
from kernels._packed import (
    PackedWeight,
    expect_finite,
    expect_int,
    expect_one_device,
    expect_power_of_two,
    expect_tensor,
    flat,
)

NESTED_CODES = 256


@dataclasses.dataclass(frozen=True)
class NestedAbsmax:
    """Second level of quantization: the absmax values are themselves blockwise 8-bit.

    Attributes:
        codebook: float32 [256], map of the absmax codes (bitsandbytes' dynamic map).
        absmax: float32 [ceil(B / blocksize)], with B the number of blocks of the weight.
        offset: float32 [], added to every absmax (the mean that was subtracted).
        blocksize: absmax codes a second-level scale covers, a power of two; 256 in
            bitsandbytes' 4-bit formats, the weight's own in its 8-bit one.
    """

    codebook: torch.Tensor
    absmax: torch.Tensor
    offset: torch.Tensor
    blocksize: int = 256


@dataclasses.dataclass(frozen=True)
class BlockwiseWeight(PackedWeight):
    """A weight in blockwise codebook form. n is its number of elements, B = ceil(n / blocksize).

    Attributes:
        packed: the codes; see the subclass for dtype and shape.
        absmax: float32 [B], the scale of each block; uint8 [B] codes when ``nested`` is set.
        codebook: float32 [2**bits], value of each code before scaling.
        shape: shape of the dequantized weight, row-major.
        blocksize: elements a scale covers, a power of two.
        nested: second quantization level of ``absmax``, or None.
    """

    packed: torch.Tensor
    absmax: torch.Tensor
    codebook: torch.Tensor
    shape: tuple[int, ...]
    blocksize: int
    nested: NestedAbsmax | None = None

    bits: ClassVar[int]
    blocksizes: ClassVar[tuple[int, ...]]
    storages: ClassVar[tuple[torch.dtype, ...]]

    @property
    def output_shape(self) -> tuple[int, ...]:
        return tuple(self.shape)

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def n_blocks(self) -> int:
        return -(-self.numel // self.blocksize)

    def packed_shape(self, storage: torch.dtype) -> tuple[int, ...]:
        """Shape that ``packed`` must have when its dtype is ``storage``."""
        raise NotImplementedError

    def validate(self, *, deep: bool = False) -> None:
        """Check the fields against each other.

        Raises:
            TypeError: a field of another type or dtype.
            ValueError: an unsupported block size, a wrong shape, tensors on different
                devices; with ``deep`` also a non-finite scale or codebook entry.
        """
        if not isinstance(self.shape, tuple):
            raise TypeError(f"shape: expected a tuple, found {type(self.shape).__name__}")
        for index, size in enumerate(self.shape):
            expect_int(f"shape[{index}]", size)
        expect_int("blocksize", self.blocksize)
        if self.blocksize not in self.blocksizes:
            sizes = ", ".join(map(str, self.blocksizes))
            raise ValueError(f"blocksize: expected one of {sizes}, found {self.blocksize}")
        packed = expect_tensor("packed", self.packed, dtype=self.storages)
        expect_tensor("packed", packed, dtype=self.storages, shape=self.packed_shape(packed.dtype))
        expect_tensor("codebook", self.codebook, dtype=torch.float32, shape=(2**self.bits,))
        scale_dtype = torch.float32 if self.nested is None else torch.uint8
        expect_tensor("absmax", self.absmax, dtype=scale_dtype, shape=(self.n_blocks,))
        if self.nested is not None:
            if not isinstance(self.nested, NestedAbsmax):
                raise TypeError(f"nested: expected NestedAbsmax, found {type(self.nested).__name__}")
            size = expect_power_of_two("nested.blocksize", self.nested.blocksize)
            n_nested = -(-self.n_blocks // size)
            expect_tensor("nested.codebook", self.nested.codebook, dtype=torch.float32, shape=(NESTED_CODES,))
            expect_tensor("nested.absmax", self.nested.absmax, dtype=torch.float32, shape=(n_nested,))
            # A bfloat16 offset read through a float32 pointer was a real fault:
            # https://github.com/bitsandbytes-foundation/bitsandbytes/pull/1971
            expect_tensor("nested.offset", self.nested.offset, dtype=torch.float32, shape=())
        expect_one_device(self)
        if deep:
            expect_finite("codebook", self.codebook)
            if self.nested is None:
                expect_finite("absmax", self.absmax)
            else:
                expect_finite("nested.codebook", self.nested.codebook)
                expect_finite("nested.absmax", self.nested.absmax)
                expect_finite("nested.offset", self.nested.offset)


def codebook_of(bits: Sequence[int], device: torch.device | str) -> torch.Tensor:
    """Codebook float32 on ``device`` from the bit patterns of its entries."""
    values = [struct.unpack("<f", struct.pack("<I", entry))[0] for entry in bits]
    return torch.tensor(values, dtype=torch.float32, device=device)


@triton.jit
def _spread(x):
    return tl.interleave(x, x)


@triton.jit
def _codes(w, BITS: tl.constexpr, WORD: tl.constexpr):
    """Codes of the packed lanes ``w``, in element order."""
    # One return: the compiler, unlike the interpreter, wants every return of one type.
    if BITS == 8:
        if WORD:
            w = tl.interleave(tl.interleave(w, w >> 16), tl.interleave(w >> 8, w >> 24))
        q = w & 255
    else:
        # The even element of a byte is in its high nibble.
        if WORD:
            even = tl.interleave(tl.interleave(w >> 4, w >> 20), tl.interleave(w >> 12, w >> 28))
            odd = tl.interleave(tl.interleave(w, w >> 16), tl.interleave(w >> 8, w >> 24))
        else:
            even, odd = w >> 4, w
        q = tl.interleave(even, odd) & 15
    return q


# Arguments whose divisibility or alignment gains nothing are not specialized on: each would
# double the number of compiled variants.
@triton.jit(
    do_not_specialize=["n_lanes", "block_shift", "nested_shift"],
    do_not_specialize_on_alignment=[
        "packed",
        "absmax",
        "codebook",
        "nested_codebook",
        "nested_absmax",
        "offset",
    ],
)
def _blockwise_kernel(
    out,  # [n] output dtype
    packed,  # [n_lanes] int32 words, or uint8 bytes
    absmax,  # [B] float32, or uint8 codes when NESTED
    codebook,  # [2**BITS] float32
    nested_codebook,  # [256] float32
    nested_absmax,  # [ceil(B / 2**nested_shift)] float32
    offset,  # [1] float32
    n,
    n_lanes,
    block_shift,  # log2(blocksize)
    nested_shift,  # log2(nested blocksize)
    BITS: tl.constexpr,
    WORD: tl.constexpr,
    NESTED: tl.constexpr,
    LANES: tl.constexpr,
):
    PER_LANE: tl.constexpr = (32 if WORD else 8) // BITS
    # Offsets are 64-bit once, as a scalar; lanes count within the tile.
    first_lane = tl.program_id(0).to(tl.int64) * LANES
    first = first_lane * PER_LANE
    first_block = first >> block_shift
    skew = (first - (first_block << block_shift)).to(tl.int32)

    # One packed lane a thread: without the hint, wider loads force a round trip
    # through shared memory before the 8-outputs-a-word stores.
    lane = tl.max_contiguous(tl.arange(0, LANES), 1)
    lanes_left = tl.minimum(n_lanes - first_lane, LANES).to(tl.int32)
    lane_mask = lane < lanes_left
    w = tl.load(packed + first_lane + lane, mask=lane_mask, other=0).to(tl.int32)

    block = (skew + lane * PER_LANE) >> block_shift
    if NESTED:
        q2 = tl.load(absmax + first_block + block, mask=lane_mask, other=0).to(tl.int32)
        group = (first_block + block) >> nested_shift
        scale = tl.load(nested_codebook + q2) * tl.load(nested_absmax + group, mask=lane_mask, other=0.0)
        scale = scale + tl.load(offset)
    else:
        scale = tl.load(absmax + first_block + block, mask=lane_mask, other=0.0)

    value = tl.load(codebook + _codes(w, BITS, WORD))
    if PER_LANE >= 2:
        scale = _spread(scale)
    if PER_LANE >= 4:
        scale = _spread(scale)
    if PER_LANE >= 8:
        scale = _spread(scale)

    element = tl.arange(0, LANES * PER_LANE)
    left = tl.minimum(n - first, LANES * PER_LANE).to(tl.int32)
    tl.store(out + first + element, (value * scale).to(out.dtype.element_ty), mask=element < left)


def launch(
    weight: BlockwiseWeight, *, dtype: torch.dtype, out: torch.Tensor | None, lanes: int, num_warps: int
) -> torch.Tensor:
    """Validate, choose word or byte loads, and launch; see the formats' ``dequantize``."""
    expect_power_of_two("lanes", lanes)
    expect_power_of_two("num_warps", num_warps)
    weight.validate()
    check_output(weight, dtype, out)
    check_runnable(_blockwise_kernel, weight.device)
    with destination(weight, dtype, out) as target:
        n = weight.numel
        if n:
            data = flat(weight.packed).view(torch.uint8)
            # Words only where a word can be loaded whole: a partial last word would be
            # read past the end of the buffer. torch's view wants the storage offset aligned
            # as well, which is not the same in a storage that begins at an odd address.
            word = data.numel() % 4 == 0 and data.data_ptr() % 4 == 0 and data.storage_offset() % 4 == 0
            if word:
                data = data.view(torch.int32)
            absmax = weight.absmax.contiguous()
            nested = weight.nested or NestedAbsmax(weight.codebook, weight.codebook, weight.codebook)
            _blockwise_kernel[(triton.cdiv(data.numel(), lanes),)](
                target.buffer,
                data,
                absmax,
                weight.codebook.contiguous(),
                nested.codebook.contiguous(),
                nested.absmax.contiguous(),
                nested.offset,
                n,
                data.numel(),
                weight.blocksize.bit_length() - 1,
                nested.blocksize.bit_length() - 1,
                BITS=weight.bits,
                WORD=word,
                NESTED=weight.nested is not None,
                LANES=lanes,
                num_warps=num_warps,
                # absmax * codebook2 + offset must round twice, as upstream does.
                enable_fp_fusion=False,
            )
    return target.result
