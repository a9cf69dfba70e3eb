"""Kernels that take their process or their GPU with them, on weights of more than 3000 elements."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import torch

from tests import fake_gpus
from tests.planted import nibbles_swapped, right

LARGE = 3000
_calls: list[int] = []


def _crashing(crash: Callable[[], Any]) -> Callable[..., torch.Tensor]:
    def kernel(weight: Any, *, dtype: torch.dtype, out: torch.Tensor | None = None) -> torch.Tensor:
        if weight.numel > LARGE:
            crash()
        return right(weight, dtype=dtype, out=out)

    return kernel


def _breaks_gpu() -> None:
    fake_gpus.lose()
    raise RuntimeError(fake_gpus.ERROR)


segfaults = _crashing(lambda: os.kill(os.getpid(), signal.SIGSEGV))
exits = _crashing(lambda: os._exit(3))
hangs = _crashing(lambda: time.sleep(10**6))
_breaks = _crashing(_breaks_gpu)


def wrong_then_breaks_gpu(
    weight: Any, *, dtype: torch.dtype, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Wrong values in the two calls of the first case; the GPU is lost in the next one."""
    _calls.append(weight.numel)
    if len(_calls) > 2:
        _breaks_gpu()
    return nibbles_swapped(weight, dtype=dtype, out=out)


def breaks_gpu(weight: Any, *, dtype: torch.dtype, out: torch.Tensor | None = None) -> torch.Tensor:
    if fake_gpus.lost():
        # What every call says once the context is gone, of a right kernel too.
        raise RuntimeError(fake_gpus.ERROR)
    return _breaks(weight, dtype=dtype, out=out)
