"""Case dimensions of a quantized matrix product whose tensors did not come from a case."""

from __future__ import annotations

from typing import Any

import torch

from conformance.bits import NAMES
from conformance.dims import Choice
from conformance.formats._gemm import RULES
from conformance.registry import Format
from kernels._packed import describe


def product_fields(fmt: Format, weight: Any) -> dict[str, Any]:
    """Sizes and conventions of a product's or one of its steps' input, by the names of the format's
    dimensions; empty for a weight that is no such input.

    What no dimension can say, such as the values of the tensors, is left out.
    """
    left = next((getattr(weight, name) for name in ("a", "x", "acc") if hasattr(weight, name)), None)
    if not isinstance(left, torch.Tensor) or left.ndim != 2:
        return {}
    shape = tuple(weight.output_shape)
    offered: dict[str, Any] = {
        "M": left.shape[0],
        "K": left.shape[1],
        # The output of the first step has the shape of its input, and no N.
        "N": shape[1],
        "codes": describe(left.dtype),
        "xdtype": NAMES.get(left.dtype),
        "lay": getattr(weight, "b_layout", None),
        "order": getattr(weight, "order", None),
        "bias": _dtype(getattr(weight, "bias", None)),
        "aper": _per("token", getattr(weight, "a_scale", None), shape[0]),
        "wper": _per("channel", getattr(weight, "w_scale", None), shape[1]),
        "azero": _per("token", getattr(weight, "a_zero", None), shape[0]) or "none",
        "rule": _rule(weight),
    }
    found = {}
    for dim in fmt.dims:
        value = offered.get(dim.name)
        if value is not None and (not isinstance(dim, Choice) or value in dim.choices):
            found[dim.name] = value
    return found


def _dtype(bias: torch.Tensor | None) -> str | None:
    return "none" if bias is None else NAMES.get(bias.dtype)


def _per(each: str, numbers: torch.Tensor | None, count: int) -> str | None:
    """``each`` for one number a row or column, ``tensor`` for a single one; other shapes say neither."""
    if numbers is None:
        return None
    shape = tuple(numbers.shape)
    return each if shape == (count,) else "tensor" if shape in ((), (1,)) else None


def _rule(weight: Any) -> str | None:
    """The name of a rule and of the sign of its codes, or None."""
    stored = (getattr(weight, "rule", None), getattr(weight, "signed", True))
    return next((name for name, rule in RULES.items() if rule == stored), None)
