"""Small GPTQ weights for tests: random words, every group and column with its own scale."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import numpy as np
import torch

from kernels.gptq import GPTQWeight, Zeros
from oracles.spec import gptq as spec
from oracles.spec.rounding import round_to
from tests.kernel_weights import bits as bit_patterns

Order = Literal["none", "sequential", "permuted", "unequal", "one group"]
ORDERS: tuple[Order, ...] = ("none", "sequential", "permuted", "unequal", "one group")


def words(generator: torch.Generator, *shape: int) -> torch.Tensor:
    """Every bit pattern, the sign bit included."""
    return torch.randint(-(2**31), 2**31, shape, generator=generator).to(torch.int32)


def group_index(
    generator: torch.Generator, order: Order, n_rows: int, group_rows: int
) -> torch.Tensor | None:
    n_groups = -(-n_rows // group_rows)
    sequential = torch.arange(n_rows, dtype=torch.int32) // group_rows
    if order == "none":
        return None
    if order == "sequential":
        return sequential
    if order == "permuted":
        return sequential[torch.randperm(n_rows, generator=generator)]
    if order == "unequal":  # some groups large, some empty
        return torch.randint(0, n_groups, (n_rows,), generator=generator, dtype=torch.int32)
    return torch.full((n_rows,), n_groups - 1, dtype=torch.int32)


def make(
    bits: int = 4,
    *,
    rows: int = 64,
    cols: int = 32,
    group_size: int = 16,
    zeros: Zeros = "v1",
    order: Order = "none",
    scale_dtype: torch.dtype = torch.float16,
    seed: int = 1,
) -> GPTQWeight:
    """A valid weight with random codes, zeros and scales."""
    generator = torch.Generator().manual_seed(seed)
    group_rows = rows if group_size == -1 else group_size
    n_groups = -(-rows // group_rows)
    scales = torch.rand(n_groups, cols, generator=generator) * 2 + 0.25
    return GPTQWeight(
        qweight=words(generator, -(-rows * bits // 32), cols),
        qzeros=words(generator, n_groups, -(-cols * bits // 32)),
        scales=(scales * torch.where(torch.rand(scales.shape, generator=generator) < 0.3, -1.0, 1.0)).to(
            scale_dtype
        ),
        g_idx=group_index(generator, order, rows, group_rows),
        bits=bits,
        group_size=group_size,
        zeros=zeros,
        in_features=rows,
    )


def pack(fields: Any, bits: int) -> torch.Tensor:
    """Fields [R, n] as a dense little-endian stream along the last axis: int32 words [R, n * bits / 32].

    Big integers, one row at a time: nothing in common with how kernels and models unpack.
    """
    rows = []
    for row in np.asarray(fields, dtype=np.int64).tolist():
        stream = sum(field << (bits * place) for place, field in enumerate(row))
        n_words = -(-len(row) * bits // 32)
        rows.append(np.frombuffer(stream.to_bytes(4 * n_words, "little"), dtype="<i4"))
    return torch.from_numpy(np.stack(rows).astype(np.int32))


def with_zeros(weight: GPTQWeight, stored: Any) -> GPTQWeight:
    """The weight with these stored zero fields [G, N]."""
    return dataclasses.replace(weight, qzeros=pack(stored, weight.bits))


def with_codes(weight: GPTQWeight, codes: Any) -> GPTQWeight:
    """The weight with these codes [K, N]."""
    return dataclasses.replace(weight, qweight=pack(np.asarray(codes).T, weight.bits).t().contiguous())


def mismatches(weight: GPTQWeight, got: torch.Tensor) -> int:
    """Elements whose bits differ from the exact model's; any NaN equals any NaN."""
    want = round_to(spec.unpack(weight).values(), got.dtype)
    patterns = bit_patterns(got).numpy().view(want.dtype)
    signed = want.view({2: np.int16, 4: np.int32}[want.itemsize])
    both_nan = got.cpu().isnan() & torch.from_numpy(signed).view(got.dtype).isnan()
    return int(((patterns != want) & ~both_nan.numpy()).sum())
