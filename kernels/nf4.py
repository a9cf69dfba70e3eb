"""nf4: bitsandbytes 4-bit NormalFloat, blockwise.

::

    byte j of the packed data    | 7 6 5 4 | 3 2 1 0 |
                                 | q[2j]   | q[2j+1] |      the even element is in the HIGH nibble

    value[i] = fp32(codebook[q[i]] * absmax[i // blocksize]), rounded once to the output dtype

======== ============================================ =========================================
field    dtype                                        shape (n = number of elements)
======== ============================================ =========================================
packed   uint8, int8, or any other ``quant_storage``  [ceil(n/2) / itemsize, 1]
absmax   float32; uint8 when nested                   [ceil(n / blocksize)]
codebook float32                                      [16]
======== ============================================ =========================================

For odd n the low nibble of the last byte is padding. Blocks run over the flattened
weight. The bytes are the same for every storage dtype (little-endian view).
Source: bitsandbytes 0.50.2, ``functional.quantize_4bit`` and ``dequantize_4bit``;
the values are those of the QLoRA paper, https://arxiv.org/abs/2305.14314, appendix E.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import torch

from kernels._blockwise import BlockwiseWeight, codebook_of, run
from kernels._launch import chosen

# Exact float32 bit patterns: a literal with five digits is 14 ULP off and passes every
# test with a tolerance (https://github.com/bitsandbytes-foundation/bitsandbytes/issues/2025).
CODEBOOK_BITS = (
    0xBF800000, 0xBF3239B1, 0xBF066B30, 0xBECA32A0, 0xBE91A24D, 0xBE3D353F, 0xBDBA7871, 0x00000000,
    0x3DA2FAFF, 0x3E24CAE3, 0x3E7C04DD, 0x3EAD033A, 0x3EE1A4B8, 0x3F1007AB, 0x3F3913B3, 0x3F800000,
)  # fmt: skip


def codebook(device: torch.device | str = "cpu") -> torch.Tensor:
    """bitsandbytes' NF4 table: float32 [16], exact, indexed by code."""
    return codebook_of(CODEBOOK_BITS, device)


@dataclasses.dataclass(frozen=True)
class FourBitWeight(BlockwiseWeight):
    """A blockwise 4-bit weight; ``packed`` is [ceil(n/2) / itemsize, 1] as bitsandbytes stores it."""

    bits: ClassVar[int] = 4
    blocksizes: ClassVar[tuple[int, ...]] = (32, 64, 128, 256, 512, 1024, 2048, 4096)
    storages: ClassVar[tuple[torch.dtype, ...]] = (
        torch.uint8,
        torch.int8,
        torch.float16,
        torch.bfloat16,
        torch.int32,
        torch.float32,
    )

    def packed_shape(self, storage: torch.dtype) -> tuple[int, ...]:
        n_bytes = -(-self.numel // 2)
        if n_bytes % storage.itemsize:
            raise ValueError(
                f"packed: expected a storage dtype whose size divides {n_bytes} bytes, "
                f"found {str(storage).removeprefix('torch.')} ({storage.itemsize} bytes)"
            )
        return (n_bytes // storage.itemsize, 1)


@dataclasses.dataclass(frozen=True)
class NF4Weight(FourBitWeight):
    """A weight in bitsandbytes' NF4 form. Fields as in the module's table."""


def launch(weight: NF4Weight, dtype: torch.dtype) -> dict[str, int]:
    """Launch parameters that ``dequantize`` takes where none are given."""
    if dtype is torch.float32:
        return {"lanes": 256, "num_warps": 1}
    return {"lanes": 256, "num_warps": 4}


def dequantize(
    weight: NF4Weight,
    *,
    dtype: torch.dtype,
    out: torch.Tensor | None = None,
    lanes: int | None = None,
    num_warps: int | None = None,
) -> torch.Tensor:
    """Dequantize ``weight`` to ``dtype``, exact to the bit.

    Args:
        weight: tensors on one GPU (or on the CPU under Triton's interpreter). Strided
            inputs are made contiguous first, which copies them.
        dtype: float16, bfloat16 or float32. Values beyond float16's range become inf.
        out: optional output of shape ``weight.shape``; may be strided.
        lanes: packed lanes a program decodes (a power of two): integers of 8 codes (4 for
            float32), or of fewer when the packed data has no whole number of those, aligned.
        num_warps: warps a program uses.

        Those that are None are as :func:`launch` says.

    Returns:
        ``out``, or a new contiguous tensor of shape ``weight.shape``.

    Raises:
        TypeError, ValueError: a field, ``dtype`` or ``out`` does not fit; names it.

    Use a fused kernel (bitsandbytes ``gemv_4bit`` / ``gemm_4bit``) where the weight is
    multiplied at once: a standalone dequantize writes and re-reads the whole weight in
    ``dtype``, four times the packed bytes and more.
    """
    if not isinstance(weight, NF4Weight):
        raise TypeError(f"weight: expected NF4Weight, found {type(weight).__name__}")
    set_to = chosen(launch(weight, dtype), lanes=lanes, num_warps=num_warps)
    return run(weight, dtype=dtype, out=out, launch=set_to)
