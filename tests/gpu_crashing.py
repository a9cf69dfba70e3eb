"""Kernels for a real GPU that break it on weights of more than 3000 elements, and are right on others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl

from kernels.nf4 import dequantize

LARGE = 3000


@triton.jit
def _far_away(out, BLOCK: tl.constexpr):
    """Writes 2**44 elements behind ``out``: no address of this process."""
    offset = tl.arange(0, BLOCK).to(tl.int64) + (tl.program_id(0) + 1).to(tl.int64) * 17592186044416
    tl.store(out + offset, 1.0)


def _crashing(crash: Callable[[torch.Tensor], Any]) -> Callable[..., torch.Tensor]:
    def kernel(weight: Any, *, dtype: torch.dtype, out: torch.Tensor | None = None) -> torch.Tensor:
        result = dequantize(weight, dtype=dtype, out=out)
        if result.numel() > LARGE:
            crash(result)
        return result

    return kernel


def _assert_on_device(result: torch.Tensor) -> None:
    index = torch.full((4,), 10**6, device=result.device)
    torch.zeros(8, device=result.device)[index]


@triton.jit
def _nothing(out):
    tl.store(out, tl.load(out))


writes_far_away = _crashing(lambda result: _far_away[(1,)](result, BLOCK=32))
asserts_on_device = _crashing(_assert_on_device)
# The second dimension of a grid ends at 65535.
asks_too_much = _crashing(lambda result: _nothing[(1, 65536)](result))
