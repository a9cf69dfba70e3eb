"""torch: int8 products. ``torch._int_mm`` gives the integer sums, oneDNN's ``qlinear_pointwise`` the whole,
and a ``qint32`` tensor with scales by channel what is left of scaling where the activations' scale is 1.

``qlinear_pointwise`` is what exported models (PT2E) run on a CPU. It scales in the order ``a-w``, takes
one scale and one zero point for all activations, and adds a bias in float32. It has no float16 output:
its float32 one is rounded.

``_int_mm`` takes leading dimensions from strides, and those of a dimension of one are anything
(https://github.com/pytorch/pytorch/issues/195066): with K = 1 a transposed weight gives garbage. It is
handed dense copies, and of K = 1 the weight as [K, N].

Without VNNI or AMX oneDNN sums pairs of products of unsigned activations in 16 bits, which saturate
(https://github.com/uxlfoundation/oneDNN/issues/476): it is not asked there.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch

from kernels.gemm_accumulate import Int8Operands, as_bytes
from kernels.gemm_epilogue import EpilogueInput
from kernels.gemm_int8 import Int8GemmInput
from oracles.base import Declined, Oracle, Provenance
from oracles.upstream import version_of

TESTED = "2.13.0"


def _provenance(function: str) -> Callable[[], Provenance]:
    # "2.13.0+cpu" is the CPU build of 2.13.0.
    return lambda: Provenance(
        "torch", (version_of("torch") or "").partition("+")[0], TESTED, function, "call"
    )


def _decline_empty(*tensors: torch.Tensor) -> None:
    if any(tensor.numel() == 0 for tensor in tensors):
        raise Declined("torch is not asked about zero elements")


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """A copy whose strides are those of its shape, dimensions of one included."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def _sums_in_32_bits() -> bool:
    """Whether this CPU multiplies unsigned by signed bytes without saturating in between."""
    asked = (getattr(torch.cpu, name, None) for name in ("_is_vnni_supported", "_is_amx_tile_supported"))
    return any(ask is not None and ask() for ask in asked)


# --- sums -------------------------------------------------------------------------------------


def _missing_int_mm(device: torch.device) -> str | None:
    return None if hasattr(torch, "_int_mm") else f"torch {version_of('torch')} has no _int_mm"


def _int_mm(weight: Int8Operands, dtype: torch.dtype) -> torch.Tensor:
    _decline_empty(weight.a, weight.b)
    b = dense(weight.b)
    right = b if weight.b_layout == "KN" else dense(b.t()) if b.shape[1] == 1 else b.t()
    if weight.a.device.type == "cuda":
        if weight.a.dtype is torch.uint8:
            raise Declined("torch._int_mm multiplies signed codes on a GPU")
        if weight.a.shape[0] <= 16 or weight.a.shape[1] % 8 or right.shape[1] % 8:
            raise Declined("torch._int_mm needs more than 16 rows, and K and N in eights, on a GPU")
    elif weight.a.dtype is torch.uint8 and not _sums_in_32_bits():
        raise Declined("this CPU saturates 16-bit sums of products of unsigned codes")
    return as_bytes(torch._int_mm(dense(weight.a), right), dtype)


INT_MM = Oracle(
    name="torch",
    provenance=_provenance("torch._int_mm"),
    missing=_missing_int_mm,
    dequantize=_int_mm,
)


# --- scales -----------------------------------------------------------------------------------


def _missing_qint32(device: torch.device) -> str | None:
    if not hasattr(torch, "_make_per_channel_quantized_tensor"):
        return f"torch {version_of('torch')} has no quantized tensors"
    return None if device.type == "cpu" else "torch has qint32 tensors on the CPU"


def _qint32(weight: EpilogueInput, dtype: torch.dtype) -> torch.Tensor:
    _decline_empty(weight.acc)
    if weight.order == "absmax" or not bool((weight.a_scale == 1).all()):
        raise Declined("torch's qint32 tensors have one scale a channel")
    if weight.a_zero is not None or weight.bias is not None:
        raise Declined("torch's qint32 tensors have neither zero points by token nor a bias")
    n_cols = weight.acc.shape[1]
    with warnings.catch_warnings():
        # Once a process: quantized dtypes will go.
        warnings.filterwarnings("ignore", message=".*quantize.* are deprecated", category=UserWarning)
        held = torch._make_per_channel_quantized_tensor(
            dense(weight.acc),
            weight.w_scale.expand(n_cols).contiguous(),
            torch.zeros(n_cols, dtype=torch.int64),
            1,
        )
    return held.dequantize().to(dtype)


QINT32 = Oracle(
    name="torch",
    provenance=_provenance("torch._make_per_channel_quantized_tensor(...).dequantize"),
    missing=_missing_qint32,
    dequantize=_qint32,
)


# --- the whole --------------------------------------------------------------------------------


def _missing_onednn(device: torch.device) -> str | None:
    if device.type != "cpu":
        return "oneDNN's qlinear_pointwise is for the CPU"
    if not torch.backends.mkldnn.is_available() or not hasattr(torch.ops.onednn, "qlinear_pointwise"):
        return f"torch {version_of('torch')} has no oneDNN here"
    if not _sums_in_32_bits():
        return "this CPU saturates 16-bit sums of products of unsigned codes"
    return None


def _qlinear(weight: Int8GemmInput, dtype: torch.dtype) -> torch.Tensor:
    _decline_empty(weight.a, weight.b)
    if weight.order != "a-w":
        raise Declined("oneDNN scales by the activations first")
    if weight.a_scale.shape[0] != 1 or (weight.a_zero is not None and weight.a_zero.shape[0] != 1):
        raise Declined("oneDNN's activations have one scale and one zero point")
    if not bool(torch.isfinite(weight.w_scale).all()) or not bool(torch.isfinite(weight.a_scale).all()):
        raise Declined("oneDNN is not asked about scales that are not finite")
    n_cols = weight.output_shape[1]
    right = dense(weight.b.t() if weight.b_layout == "KN" else weight.b)
    found = torch.ops.onednn.qlinear_pointwise(
        dense(weight.a),
        float(weight.a_scale[0]),
        0 if weight.a_zero is None else int(weight.a_zero[0]),
        torch.ops.onednn.qlinear_prepack(right, None),
        weight.w_scale.expand(n_cols).contiguous(),
        torch.zeros(n_cols, dtype=torch.int32),
        None if weight.bias is None else weight.bias.float(),
        1.0,  # no quantization of the output
        0,
        torch.float32 if dtype is torch.float16 else dtype,
        "none",
        [],
        "",
    )
    return found.to(dtype)


ONEDNN = Oracle(
    name="torch-onednn",
    provenance=_provenance("torch.ops.onednn.qlinear_pointwise"),
    missing=_missing_onednn,
    dequantize=_qlinear,
)
