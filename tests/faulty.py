"""Kernels that are wrong for some values of one dimension, and right for the others.

The right values come from the spec model, of any format: what is planted is where they are spoilt.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from conformance.bits import from_bits
from oracles.spec import gptq
from oracles.spec.rounding import round_to
from tests.harness_runs import FORMATS
from tests.planted import User, dense


def spoilt(format_name: str, where: Callable[[Any, torch.dtype, torch.Tensor], Any]) -> User:
    """A kernel of a format that doubles the elements that ``where(weight, dtype, result)`` selects, and
    adds one: never the right value."""

    def kernel(weight: Any, *, dtype: torch.dtype, out: torch.Tensor | None = None) -> torch.Tensor:
        right = round_to(FORMATS[format_name].unpack(dense(weight)).values(), dtype)
        result = from_bits(right, dtype).reshape(weight.output_shape).clone()
        chosen = where(weight, dtype, result)
        changed = result[chosen] * 2 + 1
        # -1, infinity and NaN would stay.
        result[chosen] = torch.where((changed == result[chosen]) | changed.isnan(), 5, changed)
        return result if out is None else out.copy_(result)

    return kernel


def tail_of_rows(weight: Any, dtype: torch.dtype, result: torch.Tensor) -> torch.Tensor:
    """The last rows of a K that is no multiple of 64."""
    rows = torch.arange(result.shape[0])[:, None].expand(result.shape)
    return rows >= result.shape[0] // 64 * 64 if result.shape[0] > 64 else rows < 0


def second_group(weight: Any, dtype: torch.dtype, result: torch.Tensor) -> torch.Tensor:
    group = torch.from_numpy(gptq.unpack(dense(weight)).group.astype("int64"))
    return (group == 1)[:, None].expand(result.shape)


def code_eleven(weight: Any, dtype: torch.dtype, result: torch.Tensor) -> torch.Tensor:
    """Elements of a gptq weight whose code is 11."""
    return torch.from_numpy(gptq.unpack(dense(weight)).codes == 11)


def only_bfloat16(weight: Any, dtype: torch.dtype, result: torch.Tensor) -> torch.Tensor:
    return torch.full(result.shape, dtype is torch.bfloat16)


def hangs_below(limit: int, otherwise: User) -> User:
    """Hangs on fewer than ``limit`` elements."""

    def kernel(weight: Any, *, dtype: torch.dtype, out: torch.Tensor | None = None) -> torch.Tensor:
        while weight.output_shape[-1] < limit:
            time.sleep(0.01)
        return otherwise(weight, dtype=dtype, out=out)

    return kernel


gptq_rows_from_64 = spoilt("gptq", tail_of_rows)
gptq_code_eleven = spoilt("gptq", code_eleven)
