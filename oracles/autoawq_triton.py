"""AutoAWQ's Triton kernel for the GEMM layout: on a GPU, or in Triton's interpreter on the CPU."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import ModuleType

import torch
from triton.runtime.interpreter import InterpretedFunction

from kernels.awq_cols import AWQColsWeight
from oracles.autoawq import provenance, scales_for, upstream_module
from oracles.base import Declined, Oracle
from oracles.upstream import Missing

MODULE = "awq.modules.triton.gemm"
GROUP_SIZES = (32, 64, 128)


def missing_for(kernel: str) -> Callable[[torch.device], str | None]:
    """``Oracle.missing`` of a Triton kernel of upstream's module."""

    def missing(device: torch.device) -> str | None:
        try:
            module = upstream_module(MODULE)
        except Missing as error:
            return error.reason
        if device.type == "cpu" and not isinstance(getattr(module, kernel), InterpretedFunction):
            return "a Triton kernel runs on the CPU only with TRITON_INTERPRET=1 set before its import"
        return None

    return missing


@contextlib.contextmanager
def without_device_guard(module: ModuleType, device: torch.device) -> Iterator[None]:
    """On the CPU, replace upstream's guard, which asks CUDA for the current device."""
    guard = module.get_same_device_cm
    if device.type == "cpu":
        module.get_same_device_cm = lambda tensor: contextlib.nullcontext()  # type: ignore[attr-defined]
    try:
        yield
    finally:
        module.get_same_device_cm = guard  # type: ignore[attr-defined]


def dequantize(weight: AWQColsWeight, dtype: torch.dtype) -> torch.Tensor:
    """[K, N] from ``awq_dequantize_triton``.

    Raises:
        Declined: a group size that upstream asserts against, an empty weight, or one whose
            offsets do not fit the kernel's 32 bits.
    """
    weight.validate()
    if 0 in weight.output_shape:
        raise Declined("awq_dequantize_triton asserts K > 0 and N > 0")
    if weight.group_rows not in GROUP_SIZES and weight.group_rows != weight.n_rows:
        raise Declined(
            f"awq_dequantize_triton supports groups of 32, 64, 128 and K, found {weight.group_rows}"
        )
    if weight.n_rows * weight.n_cols >= 2**31:
        raise Declined("awq_dequantize_triton computes offsets in 32 bits, found 2**31 elements or more")
    scales = scales_for(weight.scales, dtype)
    if weight.device.type == "cpu" and scales.dtype == torch.bfloat16:
        # The kernel multiplies in bfloat16, which the interpreter does on the raw bits.
        scales = scales.to(torch.float32)
    module = upstream_module(MODULE)
    with without_device_guard(module, weight.device):
        value = module.awq_dequantize_triton(
            weight.qweight.contiguous(), scales.contiguous(), weight.qzeros.contiguous()
        )
    return value.to(dtype)


COLS = Oracle(
    "autoawq-triton",
    provenance(f"{MODULE}.awq_dequantize_triton"),
    missing_for("awq_dequantize_kernel"),
    dequantize,
)
