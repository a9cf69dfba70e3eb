"""How a fused kernel sees its format: no sign of a zero, and the faults of products as well."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from conformance.dims import Dim, Shape
from conformance.faults import Context, Fault
from conformance.faults.product import faults, tails
from conformance.registry import Format
from oracles.spec.rounding import round_to

# A limit on elements that still has two blocks and a short one of the usual sizes.
SHORT = 2000


def shaped(fmt: Format, *, short: bool) -> Format:
    """The format with drawn shapes of two dimensions; ``short``: few elements, as each row of K may be a
    call, and a call a second for a long one."""

    def narrowed(dim: Dim) -> Dim:
        if not isinstance(dim, Shape):
            return dim
        return dataclasses.replace(dim, rank=2, limit=min(dim.limit, SHORT) if short else dim.limit)

    return dataclasses.replace(fmt, dims=tuple(map(narrowed, fmt.dims)))


def settle(bits: np.ndarray, want: np.ndarray) -> np.ndarray:
    """Output bits whose zeros have the sign of the spec's zero there, else +0: a product shows none."""
    magnitude = bits.dtype.type(2 ** (8 * bits.dtype.itemsize - 1) - 1)
    zero = (bits & magnitude) == 0
    signed = np.where((want & magnitude) == 0, want, 0).astype(bits.dtype)
    # The same array where nothing changes: pairs of faults are told by it.
    return np.where(zero, signed, bits) if (zero & (bits != signed)).any() else bits


def view(fmt: Format) -> Format:
    """The format whose faults are explanations of a fused kernel, and inputs that are quick to show it."""
    if fmt.inner is None or not fmt.faults:
        return fmt
    wants = _Wants(fmt)
    # Rows of zeros fit many a table where little is left of a weight: the tail is the likelier name.
    every = (*tails(fmt.inner), *fmt.faults, *faults(fmt.inner))
    return dataclasses.replace(
        shaped(fmt, short=True),
        faults=tuple(dataclasses.replace(fault, decode=_settled(fault, wants)) for fault in every),
        large=(),
        tile_cases=(),
    )


@dataclasses.dataclass
class _Wants:
    """The spec's bits of the weight that was asked for last."""

    fmt: Format
    weight: Any = None
    dtype: torch.dtype | None = None
    bits: np.ndarray | None = None

    def of(self, ctx: Context) -> np.ndarray:
        if self.bits is None or ctx.weight is not self.weight or ctx.dtype is not self.dtype:
            self.bits = round_to(self.fmt.unpack(ctx.weight).values(), ctx.dtype)
            self.weight, self.dtype = ctx.weight, ctx.dtype
        return self.bits


def _settled(fault: Fault, wants: _Wants) -> Callable[[Context], np.ndarray | None]:
    def decode(ctx: Context) -> np.ndarray | None:
        bits = fault.decode(ctx)
        want = wants.of(ctx)
        return bits if bits is None or bits.shape != want.shape else settle(bits, want)

    return decode
