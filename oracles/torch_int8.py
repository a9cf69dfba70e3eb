"""PyTorch's own 8-bit quantized tensors, and the operators that replace them in exported graphs.

``torch`` builds a quantized tensor of the codes and calls its ``dequantize()``;
``torch-decomposed`` calls ``torch.ops.quantized_decomposed.dequantize_per_*``. Both answer in
float32 arithmetic: (code - zero) as integers, times the scale. What they do not accept:

====================== ===================================================================
``torch``              groups; no elements
``torch-decomposed``   groups of one column, a short last group; no elements
====================== ===================================================================

Traits of ``dequantize_per_channel`` and ``_group`` that the adapter stays clear of, each shown by
a test: they subtract in the dtype of the operands, so that int8 zero points wrap (zero points
are passed as int64, which torch's observers make); and they multiply in the dtype of the scales,
so that a float16 scale rounds a float32 result to float16 (scales are widened, which is exact).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from kernels.int8_affine import Granularity, Int8AffineWeight
from oracles.base import Declined, Oracle, Provenance
from oracles.upstream import Missing, load, version_of

TESTED = "2.13.0"

_DECOMPOSED = "torch.ao.quantization.fx._decomposed"
_QUANTIZED = {torch.int8: torch.qint8, torch.uint8: torch.quint8}


def _provenance(function: str) -> Callable[[], Provenance]:
    # "2.13.0+cpu" is the CPU build of 2.13.0.
    return lambda: Provenance(
        "torch", (version_of("torch") or "").partition("+")[0], TESTED, function, "call"
    )


def decline_empty(weight: Int8AffineWeight, package: str) -> None:
    if weight.codes.numel() == 0:
        raise Declined(f"{package} is not asked about zero elements")


def zeros_of(weight: Int8AffineWeight) -> torch.Tensor:
    """Zero points int64, shaped as the scale; 0 for a symmetric weight."""
    if weight.zero_point is None:
        return torch.zeros(weight.scale.shape, dtype=torch.int64, device=weight.device)
    return weight.zero_point.to(torch.int64)


# --- quantized tensors ---------------------------------------------------------------------


def _missing_quantized(device: torch.device) -> str | None:
    for name in ("_make_per_tensor_quantized_tensor", "_make_per_channel_quantized_tensor"):
        if not hasattr(torch, name):
            return f"torch {version_of('torch')} has no {name}"
    return None


def _without_deprecation(function: Callable[[], torch.Tensor]) -> torch.Tensor:
    """Call it without torch's notice, once a process, that quantized dtypes will go."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*quantize.* are deprecated", category=UserWarning)
        return function()


def _dequantize_quantized(weight: Int8AffineWeight, dtype: torch.dtype) -> torch.Tensor:
    decline_empty(weight, "torch")
    scale, zero, axis = weight.scale.float().contiguous(), zeros_of(weight).contiguous(), weight.axis
    codes = weight.codes.contiguous()
    if weight.granularity == "group":
        raise Declined("torch's quantized tensors have no groups")

    def make() -> torch.Tensor:
        if axis is None:
            return torch._make_per_tensor_quantized_tensor(codes, float(scale[0]), int(zero[0]))
        return torch._make_per_channel_quantized_tensor(codes, scale, zero, axis)

    return _without_deprecation(make).dequantize().to(dtype)


def _pack_quantized(
    weight: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor | None,
    *,
    dtype: torch.dtype,
    granularity: Granularity,
    axis: int | None,
    group_size: int | None,
) -> Int8AffineWeight:
    """Quantize a float weight [R, C] with ``torch.quantize_per_tensor`` or ``_per_channel``.

    Args:
        weight: float32.
        scale: positive, float16, bfloat16 or float32, shaped as in ``kernels/int8_affine.py``.
        zero_point: integers of the codes' range, or None.
        dtype: int8 or uint8, that of the codes.
        granularity, axis, group_size: as in the packed type.

    Raises:
        Declined: groups, or no element.
    """
    if granularity == "group":
        raise Declined("torch.quantize_per_channel has no groups")
    packed = Int8AffineWeight(
        weight.to(dtype), scale, zero_point, granularity, axis=axis, group_size=group_size
    )
    decline_empty(packed, "torch")
    zero = zeros_of(packed)

    def quantize() -> torch.Tensor:
        if axis is None:
            return torch.quantize_per_tensor(weight, float(scale[0]), int(zero[0]), _QUANTIZED[dtype])
        return torch.quantize_per_channel(weight, scale.float(), zero, axis, _QUANTIZED[dtype])

    codes = _without_deprecation(quantize).int_repr()
    return Int8AffineWeight(codes, scale, zero_point, granularity, axis=axis, group_size=group_size)


TORCH = Oracle(
    name="torch",
    provenance=_provenance("torch._make_per_channel_quantized_tensor(...).dequantize"),
    missing=_missing_quantized,
    dequantize=_dequantize_quantized,
    pack=_pack_quantized,
)


# --- operators of exported graphs ------------------------------------------------------------


def _missing_decomposed(device: torch.device) -> str | None:
    try:
        load(_DECOMPOSED)
    except Missing as error:
        return error.reason
    return None


def _ops() -> Any:
    load(_DECOMPOSED)  # registers them
    return torch.ops.quantized_decomposed


def _decline_groups(n_cols: int, group_size: int) -> None:
    if group_size < 2:
        raise Declined("torch's quantized_decomposed wants groups of two columns and more")
    if n_cols > group_size and n_cols % group_size:
        raise Declined("torch's quantized_decomposed needs whole groups of columns")


def _dequantize_decomposed(weight: Int8AffineWeight, dtype: torch.dtype) -> torch.Tensor:
    decline_empty(weight, "torch")
    codes, scale, zero = weight.codes.contiguous(), weight.scale.float(), zeros_of(weight)
    low, high = weight.code_range
    if weight.granularity == "tensor":
        return _ops().dequantize_per_tensor(
            codes, float(scale[0]), int(zero[0]), low, high, codes.dtype, out_dtype=dtype
        )
    if weight.granularity == "channel":
        return _ops().dequantize_per_channel(
            codes, scale, zero, weight.axis, low, high, codes.dtype, out_dtype=dtype
        )
    assert weight.group_size is not None
    _decline_groups(codes.shape[1], weight.group_size)
    return _ops().dequantize_per_channel_group(
        codes, scale, zero, low, high, codes.dtype, weight.group_size, dtype
    )


TORCH_DECOMPOSED = Oracle(
    name="torch-decomposed",
    provenance=_provenance("torch.ops.quantized_decomposed.dequantize_per_channel"),
    missing=_missing_decomposed,
    dequantize=_dequantize_decomposed,
)
