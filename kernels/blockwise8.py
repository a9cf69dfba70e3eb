"""blockwise8: bitsandbytes 8-bit blockwise quantization with a 256-entry map.

::

    value[i] = fp32(codebook[q[i]] * absmax[i // blocksize]), rounded once to the output dtype

======== ============================= ===========================
field    dtype                         shape
======== ============================= ===========================
packed   uint8                         the weight's own
absmax   float32; uint8 when nested    [ceil(n / blocksize)]
codebook float32                       [256]
======== ============================= ===========================

The map is stored beside the weight: bitsandbytes' dynamic map by default, any other by
choice, so there is no default here. Upstream quantizes the absmax of a nested weight in
blocks of the weight's own block size (its 4-bit formats always use 256).
Source: bitsandbytes 0.50.2, ``functional.quantize_blockwise`` and ``dequantize_blockwise``;
https://arxiv.org/abs/2110.02861.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import torch

from kernels._blockwise import BlockwiseWeight, run
from kernels._launch import chosen


@dataclasses.dataclass(frozen=True)
class Blockwise8Weight(BlockwiseWeight):
    """A weight in bitsandbytes' 8-bit blockwise form. Fields as in the module's table."""

    bits: ClassVar[int] = 8
    blocksizes: ClassVar[tuple[int, ...]] = (32, 64, 128, 256, 512, 1024, 2048, 4096)
    storages: ClassVar[tuple[torch.dtype, ...]] = (torch.uint8,)

    def packed_shape(self, storage: torch.dtype) -> tuple[int, ...]:
        return tuple(self.shape)


def launch(weight: Blockwise8Weight, dtype: torch.dtype) -> dict[str, int]:
    """Launch parameters that ``dequantize`` takes where none are given."""
    if dtype is torch.float32:
        return {"gather": 0, "lanes": 256, "num_warps": 4}
    return {"gather": 0, "lanes": 128, "num_warps": 2}


def dequantize(
    weight: Blockwise8Weight,
    *,
    dtype: torch.dtype,
    out: torch.Tensor | None = None,
    lanes: int | None = None,
    gather: int | None = None,
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
        gather: 1: a program loads the map once and looks codes up in shared memory
            (``tl.gather``), unless Triton is older than 3.4, which has none that compiles. 0: it
            loads each entry, out of the cache.
        num_warps: warps a program uses.

        Those that are None are as :func:`launch` says.

    Returns:
        ``out``, or a new contiguous tensor of shape ``weight.shape``.

    Raises:
        TypeError, ValueError: a field, ``dtype`` or ``out`` does not fit; names it.

    A standalone dequantize writes and re-reads the weight in ``dtype``; upstream uses this
    format for optimizer states, where that is what is wanted.
    """
    if not isinstance(weight, Blockwise8Weight):
        raise TypeError(f"weight: expected Blockwise8Weight, found {type(weight).__name__}")
    set_to = chosen(launch(weight, dtype), lanes=lanes, gather=gather, num_warps=num_warps)
    return run(weight, dtype=dtype, out=out, launch=set_to, gather=bool(set_to["gather"]))
