"""How a fused kernel sees its format: no sign of a zero, and the faults of products as well."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from conformance.faults import Context, Fault
from conformance.faults.product import faults
from conformance.registry import Format
from oracles.spec.rounding import round_to


def settle(bits: np.ndarray, want: np.ndarray) -> np.ndarray:
    """Output bits whose zeros have the sign of the spec's zero there, else +0: a product shows none."""
    magnitude = bits.dtype.type(2 ** (8 * bits.dtype.itemsize - 1) - 1)
    zero = (bits & magnitude) == 0
    signed = np.where((want & magnitude) == 0, want, 0).astype(bits.dtype)
    # The same array where nothing changes: pairs of faults are told by it.
    return np.where(zero, signed, bits) if (zero & (bits != signed)).any() else bits


def view(fmt: Format) -> Format:
    """The format whose faults are explanations of a fused kernel."""
    if fmt.inner is None or not fmt.faults:
        return fmt
    wants = _Wants(fmt)
    every = (*fmt.faults, *faults(fmt.inner))
    return dataclasses.replace(
        fmt, faults=tuple(dataclasses.replace(fault, decode=_settled(fault, wants)) for fault in every)
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
