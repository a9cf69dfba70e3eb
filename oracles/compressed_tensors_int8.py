"""compressed-tensors 0.20.1, naive-quantized: int8 weights by tensor, row or group.

The compressor computes in the dtype of the scales. For another output dtype the scales are
widened to float32, which is exact, and its float32 answer is rounded.
"""

from __future__ import annotations

from typing import Any

import torch

from kernels.int8_affine import Granularity, Int8AffineWeight
from oracles.base import Declined, Oracle, Provenance
from oracles.compressed_tensors import TESTED
from oracles.torch_int8 import decline_empty
from oracles.upstream import Missing, hidden, load, version_of

_COMPRESSOR = "compressed_tensors.compressors.naive_quantized.base"
_SCHEME = "compressed_tensors.quantization"


def _missing(device: torch.device) -> str | None:
    try:
        load(_COMPRESSOR)
        load(_SCHEME)
    except Missing as error:
        return error.reason
    return None


def _scheme(
    codes: torch.dtype,
    n_cols: int,
    granularity: str,
    axis: int | None,
    group_size: int | None,
    symmetric: bool,
) -> Any:
    """The ``QuantizationScheme`` of such a weight.

    Raises:
        Declined: unsigned codes, scales of columns, or a short last group.
    """
    if codes is not torch.int8:
        raise Declined("compressed-tensors stores signed codes")
    if axis == 1 and granularity == "channel":
        raise Declined("compressed-tensors' channels are rows")
    width = None if group_size is None else min(group_size, n_cols)
    if width is not None and n_cols % width:
        raise Declined("compressed-tensors needs whole groups of columns")
    quantization = load(_SCHEME)
    args = quantization.QuantizationArgs(
        num_bits=8, type="int", symmetric=symmetric, strategy=granularity, group_size=width
    )
    return quantization.QuantizationScheme(targets=["Linear"], weights=args)


def _by_row(weight: Int8AffineWeight, tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1, 1) if weight.granularity == "channel" else tensor.contiguous()


def _state(weight: Int8AffineWeight, values: torch.Tensor, scale: torch.Tensor) -> dict[str, torch.Tensor]:
    state = {"weight": values, "weight_scale": _by_row(weight, scale)}
    if weight.zero_point is not None:
        state["weight_zero_point"] = _by_row(weight, weight.zero_point)
    return state


def _dequantize(weight: Int8AffineWeight, dtype: torch.dtype) -> torch.Tensor:
    decline_empty(weight, "compressed-tensors")
    scheme = _scheme(
        weight.codes.dtype,
        weight.codes.shape[1],
        weight.granularity,
        weight.axis,
        weight.group_size,
        weight.zero_point is None,
    )
    compute = dtype if weight.scale.dtype == dtype else torch.float32
    state = _state(weight, weight.codes.contiguous(), weight.scale.to(compute))
    with hidden():
        found = load(_COMPRESSOR).NaiveQuantizationCompressor.decompress(state, scheme)["weight"]
    return found.to(dtype)


def _pack(
    weight: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor | None,
    *,
    dtype: torch.dtype,
    granularity: Granularity,
    axis: int | None,
    group_size: int | None,
) -> Int8AffineWeight:
    """Quantize a float weight [R, C] with the compressor; arguments as ``oracles/torch_int8.py``.

    Raises:
        Declined: what the compressor has no strategy for, or no element.
    """
    if weight.numel() == 0:
        raise Declined("compressed-tensors is not asked about zero elements")
    scheme = _scheme(dtype, weight.shape[1], granularity, axis, group_size, zero_point is None)
    packed = Int8AffineWeight(
        weight.to(dtype), scale, zero_point, granularity, axis=axis, group_size=group_size
    )
    with hidden():
        state = load(_COMPRESSOR).NaiveQuantizationCompressor.compress(
            _state(packed, weight, scale.float()), scheme
        )
    return Int8AffineWeight(state["weight"], scale, zero_point, granularity, axis=axis, group_size=group_size)


COMPRESSED_TENSORS = Oracle(
    name="compressed-tensors",
    provenance=lambda: Provenance(
        "compressed-tensors",
        version_of("compressed-tensors"),
        TESTED,
        f"{_COMPRESSOR}.NaiveQuantizationCompressor.decompress",
        "call",
    ),
    missing=_missing,
    dequantize=_dequantize,
    pack=_pack,
)
