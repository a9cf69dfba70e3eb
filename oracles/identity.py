"""A stand-in for the identity matrix, for upstream layers that can only multiply.

A real identity matrix answers almost the same question: each output is one product with 1
and a sum of zeros. But the sum turns -0 into +0, and 0 * inf turns one infinite weight into
a column of NaN. This operand returns the other factor of the product as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from oracles.base import Declined

_PRODUCTS = (torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__)
_HARMLESS = (
    torch.Tensor.shape.__get__,  # type: ignore[attr-defined]
    torch.Tensor.dtype.__get__,  # type: ignore[attr-defined]
    torch.Tensor.device.__get__,
    torch.Tensor.reshape,
)


class _Identity(torch.Tensor):
    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func in _PRODUCTS and not kwargs and isinstance(args[0], cls):
            left, right = args
            if right.dim() != 2 or right.shape[0] != left.shape[1] or right.dtype != left.dtype:
                found = f"{right.dtype} {list(right.shape)}"
                raise Declined(f"upstream multiplies {left.dtype} {list(left.shape)} by {found}")
            return right
        if func in _HARMLESS:
            return super().__torch_function__(func, types, args, dict(kwargs or {}))
        name = getattr(func, "__name__", repr(func))
        raise Declined(f"upstream applies {name} to its input, where only a matrix product can be probed")


def identity(size: int, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """An input [size, size] whose matrix product with W [size, N] of that dtype is W itself.

    It holds no matrix: any use but its shape, dtype, device and product raises
    :class:`oracles.base.Declined`, so that an upstream of another version cannot answer with
    something else unnoticed.
    """
    return torch.zeros((), dtype=dtype, device=device).expand(size, size).as_subclass(_Identity)
