"""bitsandbytes 0.50.2: the steps of LLM.int8()'s matrix product, without its outlier columns.

``int8_vectorwise_quant`` and ``int8_vectorwise_dequant``, ``int8_linear_matmul``, ``int8_mm_dequant`` and
``int8_scaled_mm``. The scales are absmax, of rule and order ``absmax``. What they do not accept, or is
not theirs to answer:

- another rule or order, zero points, unsigned activations;
- on a GPU: activations that are not float16, and epilogues at all: that code always rounds to float16
  and fuses the bias into the last product;
- K = 1 on a CPU: it transposes the weight for ``torch._int_mm``, which then gives garbage
  (``oracles/torch_gemm.py``);
- K beyond 1024 where sums are made in float32, which is exact to 2**24: on a CPU without AVX512, and
  on a GPU where K % 4 is not 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kernels.gemm_accumulate import Int8Operands, as_bytes
from kernels.gemm_dynamic import DynamicGemmInput
from kernels.gemm_epilogue import EpilogueInput
from kernels.gemm_int8 import Int8GemmInput
from kernels.gemm_quantize import QuantizeInput
from oracles.base import Declined, Oracle, Provenance
from oracles.torch_gemm import dense
from oracles.upstream import Missing, load, version_of

TESTED = "0.50.2"


def _missing(device: torch.device) -> str | None:
    try:
        supported = load("bitsandbytes").supported_torch_devices
        load("bitsandbytes.functional")
    except Missing as error:
        return error.reason
    if device.type not in supported:
        return f"bitsandbytes has no backend for tensors on {device.type}"
    return None


def _provenance(function: str) -> Callable[[], Provenance]:
    return lambda: Provenance("bitsandbytes", version_of("bitsandbytes"), TESTED, function, "call")


def _functional() -> Any:
    return load("bitsandbytes.functional")


def _ops() -> Any:
    load("bitsandbytes")  # registers them
    return torch.ops.bitsandbytes


def _decline_empty(*tensors: torch.Tensor) -> None:
    if any(tensor.numel() == 0 for tensor in tensors):
        raise Declined("bitsandbytes is not asked about zero elements")


def _decline_gpu_epilogue(device: torch.device) -> None:
    if device.type == "cuda":
        raise Declined("bitsandbytes rounds to float16 on a GPU, and fuses the bias")


def _decline_other_order(order: str, a_zero: torch.Tensor | None) -> None:
    if order != "absmax":
        raise Declined("bitsandbytes scales by absmax, in an order of its own")
    if a_zero is not None:
        raise Declined("bitsandbytes' activations have no zero point")


# --- quantize -----------------------------------------------------------------------------------


def _codes(weight: QuantizeInput) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes int8 [M, K] and absmax float32 [M]."""
    _decline_empty(weight.x)
    if weight.rule != "absmax":
        raise Declined("bitsandbytes quantizes by absmax")
    if weight.device.type == "cuda" and weight.x.dtype is not torch.float16:
        raise Declined("bitsandbytes quantizes float16 on a GPU")
    if not bool(torch.isfinite(weight.x).all()):
        raise Declined("bitsandbytes makes NaN an integer, which is undefined")
    codes, absmax, _ = _functional().int8_vectorwise_quant(weight.x.contiguous())
    if bool(((absmax > 0) & torch.isinf(127.0 / absmax)).any()):
        raise Declined("bitsandbytes makes an infinite product an integer, which is undefined")
    return codes, absmax


def _round_trip(weight: QuantizeInput, dtype: torch.dtype) -> torch.Tensor:
    codes, absmax = _codes(weight)
    return _ops().int8_vectorwise_dequant.default(codes, absmax).to(dtype)


QUANTIZE = Oracle(
    name="bitsandbytes",
    provenance=_provenance("bitsandbytes.functional.int8_vectorwise_quant"),
    missing=_missing,
    dequantize=_round_trip,
)


# --- accumulate ---------------------------------------------------------------------------------


def _weights(b: torch.Tensor, layout: str) -> torch.Tensor:
    """[N, K]; the only layout that bitsandbytes has."""
    return dense(b.t() if layout == "KN" else b)


def _decline_operands(a: torch.Tensor, b: torch.Tensor) -> None:
    _decline_empty(a, b)
    if a.dtype is torch.uint8:
        raise Declined("bitsandbytes' activations are signed")
    if a.device.type == "cpu" and a.shape[1] == 1:
        raise Declined("bitsandbytes' product with K = 1 on a CPU is garbage: torch issue 195066")
    single = (
        a.shape[1] % 4 != 0
        if a.device.type == "cuda"
        else torch.backends.cpu.get_cpu_capability() != "AVX512"
    )
    if single and a.shape[1] > 1024:
        raise Declined("bitsandbytes sums in float32 here, which is exact to 2**24 only")


def _accumulate(weight: Int8Operands, dtype: torch.dtype) -> torch.Tensor:
    _decline_operands(weight.a, weight.b)
    right = _weights(weight.b, weight.b_layout)
    return as_bytes(_functional().int8_linear_matmul(dense(weight.a), right), dtype)


ACCUMULATE = Oracle(
    name="bitsandbytes",
    provenance=_provenance("bitsandbytes.functional.int8_linear_matmul"),
    missing=_missing,
    dequantize=_accumulate,
)


# --- epilogue and the whole -----------------------------------------------------------------------


def _stats(scale: torch.Tensor, count: int) -> torch.Tensor:
    return scale.expand(count).contiguous()


def _epilogue(weight: EpilogueInput, dtype: torch.dtype) -> torch.Tensor:
    _decline_empty(weight.acc)
    _decline_other_order(weight.order, weight.a_zero)
    _decline_gpu_epilogue(weight.device)
    n_rows, n_cols = weight.acc.shape
    return _ops().int8_mm_dequant.default(
        weight.acc.contiguous(),
        _stats(weight.a_scale, n_rows),
        _stats(weight.w_scale, n_cols),
        dtype=dtype,
        bias=weight.bias,
    )


EPILOGUE = Oracle(
    name="bitsandbytes",
    provenance=_provenance("torch.ops.bitsandbytes.int8_mm_dequant"),
    missing=_missing,
    dequantize=_epilogue,
)


def _scaled_mm(
    a: torch.Tensor, absmax: torch.Tensor, weight: Int8GemmInput | DynamicGemmInput, dtype: torch.dtype
) -> torch.Tensor:
    _decline_operands(a, weight.b)
    _decline_gpu_epilogue(weight.device)
    n_rows, n_cols = weight.output_shape
    return _ops().int8_scaled_mm.default(
        dense(a),
        _weights(weight.b, weight.b_layout),
        _stats(absmax, n_rows),
        _stats(weight.w_scale, n_cols),
        bias=weight.bias,
        dtype=dtype,
    )


def _gemm(weight: Int8GemmInput, dtype: torch.dtype) -> torch.Tensor:
    _decline_other_order(weight.order, weight.a_zero)
    return _scaled_mm(weight.a, weight.a_scale, weight, dtype)


GEMM = Oracle(
    name="bitsandbytes",
    provenance=_provenance("torch.ops.bitsandbytes.int8_scaled_mm"),
    missing=_missing,
    dequantize=_gemm,
)


def _dynamic(weight: DynamicGemmInput, dtype: torch.dtype) -> torch.Tensor:
    _decline_other_order(weight.order, None)
    codes, absmax = _codes(weight.activations)
    return _scaled_mm(codes, absmax, weight, dtype)


DYNAMIC = Oracle(
    name="bitsandbytes",
    provenance=_provenance("torch.ops.bitsandbytes.int8_scaled_mm"),
    missing=_missing,
    dequantize=_dynamic,
)
