"""Small AWQ weights of the three layouts, and the exact model's answer for them."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import torch

from kernels import awq_cols, awq_quads, awq_rows
from kernels._awq import padded_groups
from oracles.spec import awq as spec
from oracles.spec.rounding import round_to
from tests.kernel_weights import DEVICE, bits, on_device

MODULES: dict[str, ModuleType] = {"awq_cols": awq_cols, "awq_rows": awq_rows, "awq_quads": awq_quads}
UNPACK: dict[type, Callable[[Any], Any]] = {
    awq_cols.AWQColsWeight: spec.unpack_cols,
    awq_rows.AWQRowsWeight: spec.unpack_rows,
    awq_quads.AWQQuadsWeight: spec.unpack_quads,
}


def random_bits(seed: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Integers of any bit pattern, from the raw output of a bit generator."""
    raw = np.random.PCG64(seed).random_raw(int(np.prod(shape)))
    width = {torch.int16: np.uint16, torch.int32: np.uint32}[dtype]
    signed = {torch.int16: np.int16, torch.int32: np.int32}[dtype]
    return torch.from_numpy((raw >> np.uint64(32)).astype(width).view(signed)).reshape(shape)


def ordinary_scales(seed: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A scale of its own for each group and column, 1/1000 to 1/10, of either sign."""
    raw = np.random.PCG64(seed).random_raw(int(np.prod(shape)))
    values = (1e-3 + (raw >> np.uint64(11)) * 2.0**-53 * 0.1) * np.where(raw & np.uint64(1), 1, -1)
    return torch.from_numpy(values).reshape(shape).to(dtype)


def cols(rows: int, columns: int, group_size: int, scale: torch.dtype = torch.float16) -> Any:
    """awq_cols: random words."""
    groups = max(1, rows // group_size) if group_size > 0 else 1
    return on_device(
        awq_cols.AWQColsWeight(
            random_bits(1, (rows, columns // 8), torch.int32),
            random_bits(2, (groups, columns // 8), torch.int32),
            ordinary_scales(3, (groups, columns), scale),
            group_size,
        )
    )


def rows(n_rows: int, outputs: int, group_size: int, scale: torch.dtype = torch.float16) -> Any:
    """awq_rows: random words, padding of the zeros included; NaN in the padding of the scales."""
    size = n_rows if group_size == -1 else group_size
    padded = padded_groups(n_rows, size)
    scales = ordinary_scales(3, (outputs, padded), scale)
    scales[:, n_rows // size :] = float("nan")
    return on_device(
        awq_rows.AWQRowsWeight(
            random_bits(1, (outputs, n_rows // 8), torch.int32),
            random_bits(2, (outputs, padded // 8), torch.int32),
            scales,
            group_size,
        )
    )


def quads(n_rows: int, outputs: int, group_size: int) -> Any:
    """awq_quads: random words; scaled zeros are unrelated to the scales; NaN in the padding."""
    size = n_rows if group_size == -1 else group_size
    padded = padded_groups(n_rows, size)
    tables = [ordinary_scales(seed, (padded, outputs), torch.float16) for seed in (3, 4)]
    for table in tables:
        table[n_rows // size :] = float("nan")
    qweight = random_bits(1, (outputs // 4, n_rows), torch.int16)
    return on_device(awq_quads.AWQQuadsWeight(qweight, *tables, group_size))


MAKE: dict[str, Callable[..., Any]] = {"awq_cols": cols, "awq_rows": rows, "awq_quads": quads}


def unpack(weight: Any) -> Any:
    return UNPACK[type(weight)](weight)


def want(weight: Any, dtype: torch.dtype) -> torch.Tensor:
    """The exact model's values, rounded to ``dtype``; on the CPU."""
    rounded = round_to(unpack(weight).values(), dtype)
    return torch.from_numpy(rounded.view(f"i{rounded.itemsize}")).view(dtype)


def differences(got: torch.Tensor, expected: torch.Tensor) -> int:
    """Elements whose bits differ; any NaN equals any NaN, +0 is not -0."""
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    both_nan = got.cpu().isnan() & expected.cpu().isnan()
    return int(((bits(got) != bits(expected)) & ~both_nan).sum())


__all__ = [
    "DEVICE",
    "MAKE",
    "MODULES",
    "cols",
    "differences",
    "ordinary_scales",
    "quads",
    "random_bits",
    "rows",
    "unpack",
    "want",
]
