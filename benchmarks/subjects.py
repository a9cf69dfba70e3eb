"""The kernel and the exact model of each format, without the rest of the harness."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch

from oracles.spec import Model, awq, blockwise, gptq, int8_affine, llm_int8, squeezellm

_UNPACK: dict[str, Callable[[Any], Model]] = {
    "nf4": blockwise.unpack,
    "fp4": blockwise.unpack,
    "blockwise8": blockwise.unpack,
    "llm_int8": llm_int8.unpack,
    "gptq": gptq.unpack,
    "awq_cols": awq.unpack_cols,
    "awq_rows": awq.unpack_rows,
    "awq_quads": awq.unpack_quads,
    "squeezellm": squeezellm.unpack,
    "int8_affine": int8_affine.unpack,
}


def builtin(name: str) -> Callable[..., torch.Tensor]:
    """``dequantize`` of format ``name``. Choose the device before: this imports the kernel."""
    function: Callable[..., torch.Tensor] = importlib.import_module(f"kernels.{name}").dequantize
    return function


def default_launch(name: str, weight: Any, dtype: torch.dtype) -> dict[str, int]:
    """Launch parameters that the kernel of format ``name`` takes for ``weight`` when nothing is said."""
    found: dict[str, int] = importlib.import_module(f"kernels.{name}").launch(weight, dtype)
    return found


def unpack(name: str, weight: Any) -> Model:
    """The exact model of a weight of format ``name``."""
    return _UNPACK[name](weight)
