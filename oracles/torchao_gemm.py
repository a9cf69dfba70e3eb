"""torchao 0.18.0: quantization of activations, integer sums, and the linear layer of its int8 models.

- ``choose_qparams_affine``, ``quantize_affine`` and ``dequantize_affine``, on activations widened to
  float32: of 16-bit ones torchao computes the scale in 16 bits. Its least scale is the smallest normal
  number; rows with a smaller one are not asked about.
- ``safe_int_mm``.
- ``Int8Tensor`` with dynamic activations by row, through ``torch.nn.functional.linear``: rule ``full``,
  order ``a-w``, in float32, whose result is rounded. Of 16-bit activations it rounds after each
  product; with asymmetric ones it takes the zero point off in floats. Neither is this format's text.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kernels.gemm_accumulate import Int8Operands, as_bytes
from kernels.gemm_dynamic import DynamicGemmInput
from kernels.gemm_quantize import QuantizeInput
from oracles.base import Declined, Oracle, Provenance
from oracles.upstream import Missing, hidden, load, version_of

TESTED = "0.18.0"

_PRIMITIVES = "torchao.quantization.quant_primitives"
_TENSOR = "torchao.quantization.quantize_.workflows.int8.int8_tensor"
_GRANULARITY = "torchao.quantization.granularity"
_SUMS = "torchao.kernel.intmm"

# rule -> torchao's mapping, and the range of codes
_MAPPING = {
    ("scale", True): ("SYMMETRIC", torch.int8, -127, 127),
    ("full", True): ("SYMMETRIC", torch.int8, -128, 127),
    ("minmax", True): ("ASYMMETRIC", torch.int8, -128, 127),
    ("minmax", False): ("ASYMMETRIC", torch.uint8, 0, 255),
}


def _missing(device: torch.device) -> str | None:
    try:
        for module in (_PRIMITIVES, _TENSOR, _GRANULARITY, _SUMS):
            load(module)
    except Missing as error:
        return error.reason
    return None


def _provenance(function: str) -> Callable[[], Provenance]:
    return lambda: Provenance("torchao", version_of("torchao"), TESTED, function, "call")


def _decline_values(x: torch.Tensor) -> None:
    if x.numel() == 0:
        raise Declined("torchao is not asked about zero elements")
    if not bool(torch.isfinite(x).all()):
        raise Declined("torchao makes NaN an integer, which is undefined")


def _decline_least(scale: torch.Tensor, x: torch.Tensor, least: float) -> None:
    if bool(((scale.reshape(-1) <= least) & (x != 0).any(dim=1)).any()):
        raise Declined(f"torchao has no scale below {least:.3g}")


def _round_trip(weight: QuantizeInput, dtype: torch.dtype) -> torch.Tensor:
    if (weight.rule, weight.signed) not in _MAPPING:
        raise Declined("torchao quantizes by a scale, not by absmax")
    _decline_values(weight.x)
    if weight.x.shape[1] == 1:
        raise Declined("torchao makes no scales of rows with one element")
    mapping, codes_dtype, least, most = _MAPPING[weight.rule, weight.signed]
    x, block = weight.x.float().contiguous(), [1, weight.x.shape[1]]
    with hidden():
        calls: Any = load(_PRIMITIVES)
        scale, zero = calls.choose_qparams_affine(
            x, calls.MappingType[mapping], block, codes_dtype, least, most, zero_point_dtype=torch.int32
        )
        _decline_least(scale, x, torch.finfo(torch.float32).smallest_normal)
        codes = calls.quantize_affine(x, block, scale, zero, codes_dtype, least, most)
        return calls.dequantize_affine(
            codes, block, scale, zero, codes_dtype, least, most, output_dtype=dtype
        )


QUANTIZE = Oracle(
    name="torchao",
    provenance=_provenance(f"{_PRIMITIVES}.quantize_affine"),
    missing=_missing,
    dequantize=_round_trip,
)


def _accumulate(weight: Int8Operands, dtype: torch.dtype) -> torch.Tensor:
    if weight.a.numel() == 0 or weight.b.numel() == 0:
        raise Declined("torchao is not asked about zero elements")
    if weight.a.dtype is torch.uint8 and weight.device.type == "cuda":
        raise Declined("torchao multiplies codes of one dtype on a GPU")
    right = weight.b if weight.b_layout == "KN" else weight.b.t()
    with hidden():
        return as_bytes(load(_SUMS).safe_int_mm(weight.a.contiguous(), right), dtype)


ACCUMULATE = Oracle(
    name="torchao",
    provenance=_provenance(f"{_SUMS}.safe_int_mm"),
    missing=_missing,
    dequantize=_accumulate,
)


def _dynamic(weight: DynamicGemmInput, dtype: torch.dtype) -> torch.Tensor:
    if weight.rule != "full" or weight.order != "a-w":
        raise Declined("torchao's Int8Tensor has rule full and order a-w")
    _decline_values(weight.x)
    if weight.x.shape[1] == 1:
        raise Declined("torchao makes no scales of rows with one element")
    n_cols = weight.output_shape[1]
    if not n_cols:
        raise Declined("torchao is not asked about zero elements")
    right = (weight.b.t() if weight.b_layout == "KN" else weight.b).contiguous()
    x = weight.x.float().contiguous()
    with hidden():
        kinds: Any = load(_GRANULARITY)
        tensors: Any = load(_TENSOR)
        quantized = tensors.Int8Tensor.from_hp(x, kinds.PerRow())
        _decline_least(quantized.scale, x, torch.finfo(torch.float32).eps)
        held = tensors.Int8Tensor(
            right,
            weight.w_scale.expand(n_cols).reshape(-1, 1).contiguous(),
            [1, right.shape[1]],
            torch.float32,
            act_quant_kwargs=tensors.QuantizeTensorToInt8Kwargs(granularity=kinds.PerRow()),
        )
        return torch.nn.functional.linear(x, held, weight.bias).to(dtype)


DYNAMIC = Oracle(
    name="torchao",
    provenance=_provenance(f"{_TENSOR}.Int8Tensor"),
    missing=_missing,
    dequantize=_dynamic,
)
