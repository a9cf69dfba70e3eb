"""Read a tensor of floats from a file: a kernel's output, or activations."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from conformance.bits import DTYPES
from conformance.detect.source import open_checkpoint
from conformance.errors import UsageError
from kernels._packed import describe

# What a NumPy file of bit patterns may have as its dtype; NumPy has no bfloat16.
_BITS = {"fp16": ("uint16", "int16"), "bf16": ("uint16", "int16", "V2"), "fp32": ("uint32", "int32")}
_VIEWS = {"fp16": np.int16, "bf16": np.int16, "fp32": np.int32}
_SHOWN = 8


def read_output(
    path: Path, tensor: str | None = None, dtype: str | None = None, *, field: str = "FILE"
) -> torch.Tensor:
    """Tensor of a ``.safetensors``, ``.npy`` or ``.pt`` file, on the CPU.

    Args:
        tensor: its name, needed where the file has several.
        dtype: fp16, bf16 or fp32: what it must be; needed for a ``.npy`` file of bit patterns.
        field: what messages call the file; of ``--got`` there is a ``--dtype`` too.

    Raises:
        UsageError: another kind of file, missing or damaged, no such tensor or several, another dtype.
    """
    if not os.path.isfile(path):  # of any name, however long
        raise UsageError(f"{field}: expected a file, found nothing at {path}")
    reader = _READERS.get(path.suffix)
    if reader is None:
        raise UsageError(f"{field}: expected a .safetensors, .npy or .pt file, found {path.name!r}")
    found = reader(path, tensor, dtype, field == "--got")
    if dtype is not None and found.dtype != DTYPES[dtype]:
        raise UsageError(
            f"{field}: expected {describe(DTYPES[dtype])}, as --dtype says, found {describe(found.dtype)}"
        )
    if reason := not_plain(found):
        raise UsageError(f"{field}: expected a plain tensor, found {reason}")
    return found.detach()


def not_plain(found: torch.Tensor) -> str:
    """What keeps a tensor from being one array of numbers that are there, or empty."""
    if found.is_nested:
        return "a nested one"
    if found.layout is not torch.strided:
        return str(found.layout)
    return "one without data (device meta)" if found.device.type == "meta" else ""


def _safetensors(path: Path, tensor: str | None, dtype: str | None, hinted: bool) -> torch.Tensor:
    checkpoint = open_checkpoint(path)
    return checkpoint.load(_choose(list(checkpoint.tensors), tensor, path))


def _torch(path: Path, tensor: str | None, dtype: str | None, hinted: bool) -> torch.Tensor:
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises what the file makes it raise
        text = _first_line(error)
        raise UsageError(
            f"{path.name}: expected a file of torch.save with tensors alone, found: {text}"
        ) from error
    if isinstance(found, torch.Tensor):
        return _unnamed(found, tensor, path)
    if not isinstance(found, Mapping):
        raise UsageError(f"{path.name}: expected a tensor or named tensors, found {type(found).__name__}")
    tensors = {str(name): value for name, value in found.items() if isinstance(value, torch.Tensor)}
    return tensors[_choose(list(tensors), tensor, path)]


def _npy(path: Path, tensor: str | None, dtype: str | None, hinted: bool) -> torch.Tensor:
    try:
        found = np.load(path, allow_pickle=False)
    except Exception as error:  # NumPy evaluates the header, and allocates what it says
        raise UsageError(f"{path.name}: expected a whole .npy file, found: {_first_line(error)}") from error
    kind = found.dtype.name if found.dtype.kind != "V" else f"V{found.dtype.itemsize}"
    if found.dtype.kind in "fiu":
        found = found.astype(found.dtype.newbyteorder("="), copy=False)
    if kind in ("float16", "float32"):
        return _unnamed(torch.from_numpy(np.ascontiguousarray(found)), tensor, path)
    if dtype is not None and kind in _BITS[dtype]:
        bits = np.ascontiguousarray(found).view(_VIEWS[dtype])
        return _unnamed(torch.from_numpy(bits).view(DTYPES[dtype]), tensor, path)
    hinted &= kind[0] in "uiV"
    hint = " (with --dtype, its bit patterns as uint16 or uint32)" if hinted else ""
    raise UsageError(f"{path.name}: expected float16 or float32{hint}, found {kind}")


_READERS = {".safetensors": _safetensors, ".npy": _npy, ".pt": _torch, ".pth": _torch}


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _unnamed(found: torch.Tensor, tensor: str | None, path: Path) -> torch.Tensor:
    if tensor is not None:
        raise UsageError(
            f"--tensor: expected none, as {path.name} has one tensor without a name, found {tensor!r}"
        )
    return found


def _choose(names: Sequence[str], wanted: str | None, path: Path) -> str:
    if wanted is None and len(names) == 1:
        return names[0]
    if wanted in names:
        return str(wanted)
    asked = "one tensor" if wanted is None else f"a tensor {wanted!r}"
    raise UsageError(f"--tensor: expected {asked} in {path.name}, found {listed(names)}")


def listed(names: Sequence[str]) -> str:
    """A few names for a message."""
    shown = ", ".join(sorted(names)[:_SHOWN]) or "none"
    return shown + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
