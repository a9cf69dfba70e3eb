"""Small SqueezeLLM weights for tests: random words, every channel with its own table."""

from __future__ import annotations

import numpy as np
import torch

from conformance.bits import same, to_bits
from kernels.squeezellm import SqueezeLLMWeight
from oracles.spec.rounding import round_to
from oracles.spec.squeezellm import unpack


def make(
    bits: int = 4,
    *,
    rows: int = 64,
    cols: int = 24,
    table: torch.dtype = torch.float32,
    sparse: bool = True,
    full: int = 2,
    seed: int = 1,
) -> SqueezeLLMWeight:
    """A valid weight: random codes and tables; channel 0 without outliers, channel 1 all outliers."""
    generator = torch.Generator().manual_seed(seed)
    qweight = torch.randint(-(2**31), 2**31, (rows * bits // 32, cols), generator=generator)
    mask = torch.rand(cols, rows, generator=generator) < 0.1
    mask[:1], mask[1:2] = False, True
    pointers = torch.cat([torch.zeros(1, dtype=torch.int64), mask.sum(1).cumsum(0)])
    channels = torch.randperm(cols, generator=generator)[:full]
    return SqueezeLLMWeight(
        qweight=qweight.to(torch.int32),
        lookup_table=torch.randn(cols, 2**bits, generator=generator).to(table),
        bits=bits,
        rows=pointers.to(torch.int32) if sparse else None,
        cols=mask.nonzero()[:, 1].to(torch.int32) if sparse else None,
        vals=torch.randn(int(mask.sum()), generator=generator) if sparse else None,
        full_rows=torch.randn(rows, channels.numel(), generator=generator) if full else None,
        full_row_indices=channels.to(torch.int32) if full else None,
    )


def mismatches(weight: SqueezeLLMWeight, got: torch.Tensor) -> int:
    """Elements whose bits differ from the exact model's; any NaN equals any NaN."""
    want = round_to(unpack(weight).values(), got.dtype)
    return int(np.count_nonzero(~same(to_bits(got), want, got.dtype)))
