"""torchao 0.18.0: affine quantization primitives, and the tensor class that its models hold.

``torchao`` calls ``quant_primitives.dequantize_affine`` with a block a tensor, channel or group;
``torchao-tensor`` builds an ``Int8Tensor`` and calls its ``dequantize``. Both take codes and zero
points to the output dtype first, where up to 255 they are exact, subtract there, and multiply in
the wider of output and scale dtype.
"""

from __future__ import annotations

from typing import Any

import torch

from kernels.int8_affine import Granularity, Int8AffineWeight
from oracles.base import Declined, Oracle, Provenance
from oracles.torch_int8 import decline_empty
from oracles.upstream import Missing, hidden, load, version_of

TESTED = "0.18.0"

_PRIMITIVES = "torchao.quantization.quant_primitives"
_TENSOR = "torchao.quantization.quantize_.workflows.int8.int8_tensor"
_GRANULARITY = "torchao.quantization.granularity"


def _missing(device: torch.device) -> str | None:
    try:
        for module in (_PRIMITIVES, _TENSOR, _GRANULARITY):
            load(module)
    except Missing as error:
        return error.reason
    return None


def _block(shape: torch.Size, granularity: str, axis: int | None, group_size: int | None) -> list[int]:
    """Rows and columns that share a scale.

    Raises:
        Declined: the last group is short.
    """
    n_rows, n_cols = shape
    if granularity == "tensor":
        return [n_rows, n_cols]
    if granularity == "channel":
        return [1, n_cols] if axis == 0 else [n_rows, 1]
    assert group_size is not None
    width = min(group_size, n_cols)
    if n_cols % width:
        raise Declined("torchao needs whole groups of columns")
    return [1, width]


def _dequantize(weight: Int8AffineWeight, dtype: torch.dtype) -> torch.Tensor:
    decline_empty(weight, "torchao")
    block = _block(weight.codes.shape, weight.granularity, weight.axis, weight.group_size)
    zero = None if weight.zero_point is None else weight.zero_point.contiguous()
    codes = weight.codes.contiguous()
    with hidden():
        return load(_PRIMITIVES).dequantize_affine(
            codes, block, weight.scale.contiguous(), zero, codes.dtype, output_dtype=dtype
        )


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
    """Quantize a float weight [R, C] with ``quantize_affine``; arguments as ``oracles/torch_int8.py``.

    Raises:
        Declined: a short last group, or no element.
    """
    if weight.numel() == 0:
        raise Declined("torchao is not asked about zero elements")
    block = _block(weight.shape, granularity, axis, group_size)
    # Unlike dequantize_affine it takes no None.
    zero = torch.zeros(scale.shape, dtype=dtype) if zero_point is None else zero_point
    with hidden():
        codes = load(_PRIMITIVES).quantize_affine(weight, block, scale.float(), zero, dtype)
    return Int8AffineWeight(codes, scale, zero_point, granularity, axis=axis, group_size=group_size)


TORCHAO = Oracle(
    name="torchao",
    provenance=lambda: Provenance(
        "torchao", version_of("torchao"), TESTED, f"{_PRIMITIVES}.dequantize_affine", "call"
    ),
    missing=_missing,
    dequantize=_dequantize,
    pack=_pack,
)


def _decline_for_tensor(codes: torch.dtype, granularity: str, axis: int | None) -> None:
    if codes is not torch.int8:
        raise Declined("torchao's Int8Tensor holds signed codes")
    if granularity == "group" or axis == 1:
        raise Declined("torchao's Int8Tensor has scales a tensor or a row")


def _dequantize_tensor(weight: Int8AffineWeight, dtype: torch.dtype) -> torch.Tensor:
    decline_empty(weight, "torchao")
    _decline_for_tensor(weight.codes.dtype, weight.granularity, weight.axis)
    block = _block(weight.codes.shape, weight.granularity, weight.axis, None)
    with hidden():
        held = load(_TENSOR).Int8Tensor(
            weight.codes.contiguous(),
            weight.scale.reshape(-1, 1),
            block,
            dtype,
            zero_point=None if weight.zero_point is None else weight.zero_point.reshape(-1, 1),
        )
        return held.dequantize()


def _pack_tensor(
    weight: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor | None,
    *,
    dtype: torch.dtype,
    granularity: Granularity,
    axis: int | None,
    group_size: int | None,
) -> Int8AffineWeight:
    """Quantize a float weight [R, C] with ``Int8Tensor.from_hp`` and the given static scale.

    Raises:
        Declined: unsigned codes, columns or groups with scales, or no element.
    """
    if weight.numel() == 0:
        raise Declined("torchao is not asked about zero elements")
    _decline_for_tensor(dtype, granularity, axis)
    with hidden():
        kinds: Any = load(_GRANULARITY)
        held = load(_TENSOR).Int8Tensor.from_hp(
            weight,
            kinds.PerTensor() if granularity == "tensor" else kinds.PerRow(),
            scale=scale.float().reshape(-1, 1),
            zero_point=None if zero_point is None else zero_point.reshape(-1, 1),
        )
    return Int8AffineWeight(held.qdata, scale, zero_point, granularity, axis=axis, group_size=group_size)


TORCHAO_TENSOR = Oracle(
    name="torchao-tensor",
    provenance=lambda: Provenance(
        "torchao", version_of("torchao"), TESTED, f"{_TENSOR}.Int8Tensor.dequantize", "call"
    ),
    missing=_missing,
    dequantize=_dequantize_tensor,
    pack=_pack_tensor,
)
