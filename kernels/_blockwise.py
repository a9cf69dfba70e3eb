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
from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
import triton
import triton.language as tl

from kernels._gather import GATHERS, take
from kernels._lanes import side_by_side, spread
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
def _codes(w, BITS: tl.constexpr, LANE_BITS: tl.constexpr):
    """Codes of the packed lanes ``w``, in element order."""
    # One return: the compiler, unlike the interpreter, wants every return of one type.
    if LANE_BITS == 64:
        low, high = w.to(tl.int32), (w >> 32).to(tl.int32)
        even = tl.join(tl.join(low, high), tl.join(low >> 16, high >> 16))
        odd = tl.join(tl.join(low >> 8, high >> 8), tl.join(low >> 24, high >> 24))
        q = tl.join(even, odd)
    else:
        w = w.to(tl.int32)
        if BITS == 8:
            q = w
            if LANE_BITS == 16:
                q = tl.join(w, w >> 8)
            if LANE_BITS == 32:
                q = tl.join(tl.join(w, w >> 16), tl.join(w >> 8, w >> 24))
        else:
            # The even element of a byte is in its high nibble.
            even, odd = w >> 4, w
            if LANE_BITS == 16:
                even, odd = tl.join(w >> 4, w >> 12), tl.join(w, w >> 8)
            if LANE_BITS == 32:
                even = tl.join(tl.join(w >> 4, w >> 20), tl.join(w >> 12, w >> 28))
                odd = tl.join(tl.join(w, w >> 16), tl.join(w >> 8, w >> 24))
            q = tl.join(even, odd)
    return tl.reshape(q, [q.numel]) & (2**BITS - 1)


@triton.jit
def _loaded(codebook, q, BITS: tl.constexpr):
    return tl.load(codebook + q, eviction_policy="evict_last")


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
    packed,  # [n_lanes] integers of LANE_BITS bits
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
    LANE_BITS: tl.constexpr,
    NESTED: tl.constexpr,
    GATHER: tl.constexpr,
    LANES: tl.constexpr,
):
    PER_LANE: tl.constexpr = LANE_BITS // BITS
    # Offsets are 64-bit once, as a scalar; lanes count within the tile.
    first_lane = tl.program_id(0).to(tl.int64) * LANES
    first = first_lane * PER_LANE
    first_block = first >> block_shift
    skew = (first - (first_block << block_shift)).to(tl.int32)

    # One packed lane a thread: without the hint, wider loads force a round trip
    # through shared memory before the 16-byte stores of a lane's outputs.
    lane = tl.max_contiguous(tl.arange(0, LANES), 1)
    lanes_left = tl.minimum(n_lanes - first_lane, LANES).to(tl.int32)
    lane_mask = lane < lanes_left
    w = tl.load(packed + first_lane + lane, mask=lane_mask, other=0, eviction_policy="evict_first")

    block = (skew + lane * PER_LANE) >> block_shift
    if NESTED:
        q2 = tl.load(absmax + first_block + block, mask=lane_mask, other=0).to(tl.int32)
        group = (first_block + block) >> nested_shift
        scale = tl.load(nested_codebook + q2) * tl.load(nested_absmax + group, mask=lane_mask, other=0.0)
        scale = scale + tl.load(offset)
    else:
        scale = tl.load(absmax + first_block + block, mask=lane_mask, other=0.0, eviction_policy="evict_last")

    q = _codes(w, BITS, LANE_BITS)
    if GATHER:
        value = take(tl.load(codebook + tl.arange(0, 2**BITS)), q)
    else:
        value = _loaded(codebook, q, BITS)
    value = value * spread(scale, PER_LANE)

    element = tl.arange(0, LANES * PER_LANE)
    left = tl.minimum(n - first, LANES * PER_LANE).to(tl.int32)
    at = out + first + element
    tl.store(at, value.to(out.dtype.element_ty), mask=element < left, eviction_policy="evict_first")


LANE_DTYPES = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _lanes(packed: torch.Tensor, size: int) -> torch.Tensor:
    """The packed bytes as integers of ``size`` bytes, or of fewer where those do not fit.

    A partial last one would be read past the end of the buffer, and one at an odd address not at
    all. torch's view wants the storage offset aligned as well, which is not the same in a storage
    that begins at an odd address.
    """
    data = flat(packed).view(torch.uint8)
    while data.numel() % size or data.data_ptr() % size or data.storage_offset() % size:
        size //= 2
    return data.view(LANE_DTYPES[size])


def run(
    weight: BlockwiseWeight,
    *,
    dtype: torch.dtype,
    out: torch.Tensor | None,
    launch: Mapping[str, int],
    gather: bool = False,
) -> torch.Tensor:
    """Validate, choose how wide loads are, and launch; see the formats' ``dequantize``."""
    lanes = expect_power_of_two("lanes", launch["lanes"])
    warps = expect_power_of_two("num_warps", launch["num_warps"])
    weight.validate()
    check_output(weight, dtype, out)
    check_runnable(_blockwise_kernel, weight.device)
    with destination(weight, dtype, out) as target:
        n = weight.numel
        if n:
            data = _lanes(weight.packed, side_by_side(dtype) * weight.bits // 8)
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
                LANE_BITS=8 * data.element_size(),
                NESTED=weight.nested is not None,
                GATHER=gather and GATHERS,
                LANES=lanes,
                num_warps=warps,
                # absmax * codebook2 + offset must round twice, as upstream does.
                enable_fp_fusion=False,
            )
    return target.result
