"""What every launcher does around its launch: choose the output, guard the device.

Kernels run on the device of their tensors, whatever the current device is: Triton
launches on the *current* device, and a launch there with pointers of another GPU gives
an error or garbage (https://github.com/unslothai/unsloth/issues/6831).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from triton.runtime.interpreter import InterpretedFunction

from kernels._packed import OUTPUT_DTYPES, PackedWeight, describe, named_tensors


def _byte_range(tensor: torch.Tensor) -> tuple[int, int]:
    size = tensor.numel()
    if size == 0:
        return (0, 0)
    start = tensor.data_ptr()
    if not tensor.is_contiguous():
        size = 1 + sum(
            (length - 1) * abs(stride) for length, stride in zip(tensor.shape, tensor.stride(), strict=True)
        )
    return (start, start + size * tensor.element_size())


def _elements_overlap(tensor: torch.Tensor) -> bool:
    """Whether elements of ``tensor`` may share memory: its strides, in order, do not nest."""
    if tensor.is_contiguous():
        return False
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride <= reach:
            return True
        reach += (size - 1) * stride
    return False


def check_output(weight: PackedWeight, dtype: torch.dtype, out: torch.Tensor | None) -> None:
    """Check ``dtype`` and ``out`` against ``weight`` before anything is launched.

    Raises:
        TypeError: ``dtype`` is not float16, bfloat16 or float32, or ``out`` has another dtype.
        ValueError: ``out`` has another shape or device, overlaps an input, or overlaps itself.
    """
    if dtype not in OUTPUT_DTYPES:
        found = describe(dtype) if isinstance(dtype, torch.dtype) else repr(dtype)
        raise TypeError(f"dtype: expected {describe(OUTPUT_DTYPES)}, found {found}")
    if out is None:
        return
    if not isinstance(out, torch.Tensor):
        raise TypeError(f"out: expected a tensor, found {type(out).__name__}")
    if out.dtype != dtype:
        raise TypeError(f"out: expected dtype {describe(dtype)}, found {describe(out.dtype)}")
    if tuple(out.shape) != weight.output_shape:
        raise ValueError(f"out: expected shape {list(weight.output_shape)}, found {list(out.shape)}")
    device = out.device
    if device != weight.device:
        raise ValueError(f"out: expected device {weight.device}, found {device}")
    if out.numel() and _elements_overlap(out):
        raise ValueError(
            f"out: expected strides that keep elements apart, found strides {list(out.stride())}"
        )
    first, end = _byte_range(out)
    for name, tensor in named_tensors(weight):
        start, stop = _byte_range(tensor)
        if first < stop and start < end and tensor.device == device:
            raise ValueError(f"out: expected memory of its own, found an overlap with {name}")


def is_interpreted(kernel: Any) -> bool:
    """Whether a ``@triton.jit`` function was made for the interpreter."""
    return isinstance(kernel, InterpretedFunction)


def check_runnable(kernel: Any, device: torch.device) -> None:
    """Raise ``ValueError`` when ``kernel`` cannot run on tensors of ``device``."""
    if device.type == "meta":
        raise ValueError("weight: expected tensors that hold data, found meta tensors")
    if device.type == "cpu" and not is_interpreted(kernel):
        raise ValueError(
            "weight: expected tensors on a GPU, found cpu; set TRITON_INTERPRET=1 before "
            "the kernels are imported to run them on the CPU"
        )


def chosen(defaults: Mapping[str, int], **given: int | None) -> dict[str, int]:
    """Launch parameters: those that the caller gave, and ``defaults`` for what is None."""
    return {**defaults, **{name: value for name, value in given.items() if value is not None}}


@contextlib.contextmanager
def on_device(device: torch.device) -> Iterator[None]:
    """Make ``device`` current for a launch (nothing to do for the interpreter on the CPU)."""
    if device.type == "cpu":
        yield
    else:
        with torch.get_device_module(device.type).device(device):
            yield


class Destination(NamedTuple):
    """Where a kernel writes, and what its launcher returns."""

    buffer: torch.Tensor
    result: torch.Tensor


@contextlib.contextmanager
def destination(weight: PackedWeight, dtype: torch.dtype, out: torch.Tensor | None) -> Iterator[Destination]:
    """Make the weight's device current and yield a contiguous buffer to write.

    A strided ``out`` is filled through a contiguous scratch tensor, which costs one more
    read and write of the output; a contiguous ``out`` is written directly.
    """
    with on_device(weight.device):
        if out is None:
            out = torch.empty(weight.output_shape, dtype=dtype, device=weight.device)
        if out.is_contiguous():
            yield Destination(out, out)
        else:
            scratch = torch.empty(weight.output_shape, dtype=dtype, device=weight.device)
            yield Destination(scratch, out)
            out.copy_(scratch)
