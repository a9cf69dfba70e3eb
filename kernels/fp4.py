"""fp4: bitsandbytes 4-bit float, blockwise. Layout and formula are those of :mod:`kernels.nf4`.

The table is bitsandbytes' own, not OCP's e2m1: code = sign bit and a 3-bit index into
{0, 0.0625, 8, 12, 4, 6, 2, 3} / 12, each quotient rounded once to float32.
Source: bitsandbytes 0.50.2, ``functional.get_4bit_type("fp4")``.
"""

from __future__ import annotations

import dataclasses

import torch

from kernels._blockwise import codebook_of, run
from kernels._launch import chosen
from kernels.nf4 import FourBitWeight

# Codes 1 and 9 were once 7 ULP off in a table of decimal literals:
# https://github.com/bitsandbytes-foundation/bitsandbytes/issues/2025
# Code 8 is +0 here, as in upstream's table, although its sign bit is set.
CODEBOOK_BITS = (
    0x00000000, 0x3BAAAAAB, 0x3F2AAAAB, 0x3F800000, 0x3EAAAAAB, 0x3F000000, 0x3E2AAAAB, 0x3E800000,
    0x00000000, 0xBBAAAAAB, 0xBF2AAAAB, 0xBF800000, 0xBEAAAAAB, 0xBF000000, 0xBE2AAAAB, 0xBE800000,
)  # fmt: skip


def codebook(device: torch.device | str = "cpu") -> torch.Tensor:
    """bitsandbytes' FP4 table: float32 [16], exact, indexed by code."""
    return codebook_of(CODEBOOK_BITS, device)


@dataclasses.dataclass(frozen=True)
class FP4Weight(FourBitWeight):
    """A weight in bitsandbytes' FP4 form. Fields as in :mod:`kernels.nf4`."""


def launch(weight: FP4Weight, dtype: torch.dtype) -> dict[str, int]:
    """Launch parameters that ``dequantize`` takes where none are given."""
    if dtype is torch.float32:
        return {"lanes": 256, "num_warps": 1}
    return {"lanes": 256, "num_warps": 4}


def dequantize(
    weight: FP4Weight,
    *,
    dtype: torch.dtype,
    out: torch.Tensor | None = None,
    lanes: int | None = None,
    num_warps: int | None = None,
) -> torch.Tensor:
    """Dequantize ``weight`` to ``dtype``, exact to the bit.

    Arguments, result, errors and cost are those of :func:`kernels.nf4.dequantize`.
    """
    if not isinstance(weight, FP4Weight):
        raise TypeError(f"weight: expected FP4Weight, found {type(weight).__name__}")
    set_to = chosen(launch(weight, dtype), lanes=lanes, num_warps=num_warps)
    return run(weight, dtype=dtype, out=out, launch=set_to)
