"""Kernels with one fault of the catalogue each, computed on the CPU from the exact model."""

from __future__ import annotations

from typing import Any

import torch

from conformance.bits import from_bits
from conformance.faults import Context, Fault
from conformance.registry import Format, Kernel
from kernels._packed import map_tensors, named_tensors
from oracles.spec.rounding import round_to


def _dense(weight: Any) -> Any:
    """On the CPU, every tensor contiguous and in memory of its own."""
    return map_tensors(weight, lambda _, t: torch.empty(t.shape, dtype=t.dtype).copy_(t))


def faulty_kernel(fmt: Format, fault: Fault | None) -> Kernel:
    """A kernel with the fault, right where the fault does not apply; without one, a right kernel."""

    def kernel(weight: Any, *, dtype: torch.dtype, out: torch.Tensor | None = None) -> torch.Tensor:
        device = named_tensors(weight)[0][1].device
        dense = _dense(weight)
        model = fmt.unpack(dense)
        bits = None if fault is None else fault.decode(Context(dense, model, dtype))
        if bits is None:
            bits = round_to(model.values(), dtype)
        result = from_bits(bits, dtype)
        return result.to(device) if out is None else out.copy_(result)

    name = "the model" if fault is None else fault.name
    return Kernel(f"planted:{name}", kernel, builtin=False)
