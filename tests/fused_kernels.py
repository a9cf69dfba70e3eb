"""Fused products, right and wrong, as a user would give them to ``--fused``. The weight comes from the spec
model, of any format: what is planted is what is done with it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from kernels import Unsupported
from tests import planted
from tests.harness_runs import FORMATS

Gemm = Callable[[torch.Tensor, Any], torch.Tensor]
Distort = Callable[[Any], Any]


def matrix(name: str, weight: Any, distort: Distort | None = None) -> torch.Tensor:
    """W float64 [K, N] of a weight, of a distorted model if asked for."""
    fmt = FORMATS[name]
    model = fmt.unpack(planted.dense(weight))
    values = torch.from_numpy((distort(model) if distort else model).values().astype(np.float64))
    return values.T if fmt.inner == 1 else values


def multiply(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """x @ w: the weight rounded to the dtype of x, summed in float32."""
    return (x.float() @ w.to(x.dtype).float()).to(x.dtype)


def right(name: str) -> Gemm:
    return lambda x, weight: multiply(x, matrix(name, weight))


def distorted(name: str, distort: Distort, when: Callable[[int], bool] = lambda tokens: True) -> Gemm:
    """Wrong by ``distort`` for the numbers of tokens that ``when`` says."""
    return lambda x, weight: multiply(x, matrix(name, weight, distort if when(len(x)) else None))


def transposed(name: str) -> Gemm:
    return lambda x, weight: multiply(x, matrix(name, weight).T)


def tail_dropped(name: str, depth: int) -> Gemm:
    def gemm(x: torch.Tensor, weight: Any) -> torch.Tensor:
        whole = x.shape[1] // depth * depth
        return multiply(x[:, :whole], matrix(name, weight)[:whole])

    return gemm


def biased(name: str) -> Gemm:
    return lambda x, weight: right(name)(x, weight) + 0.25


def zeros_plus_one(model: Any) -> Any:
    return dataclasses.replace(model, zeros=model.zeros + 1)


def next_group(model: Any) -> Any:
    count = len(model.scales)
    shifted = np.minimum(model.group + 1, count - 1)
    more = {"zero_group": shifted} if hasattr(model, "zero_group") else {}
    return dataclasses.replace(model, group=shifted, **more)


def nibbles_swapped(model: Any) -> Any:
    codes = model.codes.copy()
    even = codes.size // 2 * 2
    codes[:even] = codes[:even].reshape(-1, 2)[:, ::-1].reshape(-1)
    return dataclasses.replace(model, codes=codes)


# --- functions that break the contract ---------------------------------------------------------

nf4 = right("nf4")
nf4_swapped = distorted("nf4", nibbles_swapped)


def one_dimension(x: torch.Tensor, weight: Any) -> torch.Tensor:
    y = nf4(x, weight)
    return y[0] if len(y) == 1 else y


def float32_result(x: torch.Tensor, weight: Any) -> torch.Tensor:
    return nf4(x, weight).double()


def raises_for_many(x: torch.Tensor, weight: Any) -> torch.Tensor:
    if len(x) > 32:
        raise RuntimeError("no code for this many tokens")
    return nf4(x, weight)


def writes_x(x: torch.Tensor, weight: Any) -> torch.Tensor:
    y = nf4(x, weight)
    x.mul_(2)
    return y


def writes_weight(x: torch.Tensor, weight: Any) -> torch.Tensor:
    y = nf4(x, weight)
    weight.absmax.mul_(2)
    return y


_BUFFER = torch.empty(0)


def shared_buffer(x: torch.Tensor, weight: Any) -> torch.Tensor:
    """Every y lies in one buffer."""
    global _BUFFER
    y = nf4(x, weight)
    if _BUFFER.dtype != y.dtype or _BUFFER.numel() < y.numel():
        _BUFFER = torch.zeros(4096, dtype=y.dtype)
    return _BUFFER[: y.numel()].view(y.shape).copy_(y)


def reads_past_x(x: torch.Tensor, weight: Any) -> torch.Tensor:
    """Reads two elements behind x and multiplies them by 0."""
    behind = x.as_strided((2,), (1,), x.storage_offset() + x.numel())
    return nf4(x, weight) + (behind * 0).sum()


def one_token_only(x: torch.Tensor, weight: Any) -> torch.Tensor:
    if len(x) > 1:
        raise Unsupported("one token only")
    return nf4(x, weight)


def nothing(x: torch.Tensor, weight: Any) -> torch.Tensor:
    raise Unsupported("not here")
