"""torch: fp8 products. ``torch._scaled_mm`` with scales by tensor or by token and channel, and
``torch.nn.functional.scaled_mm`` with blocks of 1 x 128 and 128 x 128.

On a CPU ``_scaled_mm`` widens to float32, in any size and dtype of output (PyTorch 2.13 has the scales before
the sum where it does not call oneDNN). On a GPU it is cuBLASLt, or CUTLASS by row, both without fast
accumulation, with their conditions on sizes and dtypes. Neither follows the order of this format's roundings:
its answers are held to the bound.

Scales by token and channel come in pairs; the one of a tensor is repeated for them. Activation scales of
blocks are handed over column by column, weight scales with their K blocks padded to fours, as cuBLASLt
reads them (PyTorch, ``test/test_scaled_matmul_cuda.py``).
"""

from __future__ import annotations

from typing import Any

import torch

from kernels._fp8 import BLOCK
from kernels.gemm_fp8 import Fp8GemmInput
from oracles.base import Declined, Oracle
from oracles.torch_gemm import _decline_empty, _provenance, dense
from oracles.upstream import version_of


def _missing(device: torch.device) -> str | None:
    if not hasattr(torch, "_scaled_mm"):
        return f"torch {version_of('torch')} has no _scaled_mm"
    if (
        device.type == "cuda"
        and torch.version.hip is None
        and torch.cuda.get_device_capability(device) < (8, 9)
    ):
        return "torch's fp8 products need compute capability 8.9"
    return None


def _decline_on_gpu(weight: Fp8GemmInput, dtype: torch.dtype, by_line: bool) -> None:
    """What cuBLASLt and CUTLASS refuse."""
    if weight.a.shape[1] % 16 or weight.b.shape[0] % 16:
        raise Declined("torch._scaled_mm needs K and N in sixteens on a GPU")
    if by_line and dtype is not torch.bfloat16:
        raise Declined("torch._scaled_mm by row gives bfloat16 on a GPU")
    if weight.bias is not None:
        if dtype is torch.float32:
            raise Declined("torch._scaled_mm adds no bias to float32 on a GPU")
        if weight.bias.dtype is not dtype:
            raise Declined("torch._scaled_mm takes a bias of the output's dtype on a GPU")


def _scaled_mm(weight: Fp8GemmInput, dtype: torch.dtype) -> torch.Tensor:
    _decline_empty(weight.a, weight.b)
    if "block" in weight.per:
        return _by_block(weight, dtype)
    n_rows, n_cols = weight.output_shape
    by_line = weight.per != ("tensor", "tensor")
    if weight.device.type != "cpu":
        _decline_on_gpu(weight, dtype, by_line)
    a_scale, w_scale = weight.a_scale, weight.w_scale
    if by_line:
        a_scale = weight.a_scale.expand(n_rows).reshape(-1, 1).contiguous()
        w_scale = weight.w_scale.expand(n_cols).reshape(1, -1).contiguous()
    else:
        a_scale, w_scale = a_scale.reshape(()), w_scale.reshape(())
    return torch._scaled_mm(
        dense(weight.a),
        dense(weight.b).t(),
        a_scale,
        w_scale,
        bias=weight.bias,
        out_dtype=dtype,
        use_fast_accum=False,
    )


def _by_block(weight: Fp8GemmInput, dtype: torch.dtype) -> torch.Tensor:
    if weight.per != ("block", "block"):
        raise Declined("torch's scales by block come in pairs")
    if weight.device.type != "cuda" or torch.cuda.get_device_capability(weight.device) != (9, 0):
        raise Declined("torch's scales by block of 128 are for compute capability 9.0")
    functional: Any = torch.nn.functional
    if not hasattr(functional, "scaled_mm"):
        raise Declined(f"torch {version_of('torch')} has no torch.nn.functional.scaled_mm")
    n_rows, n_cols = weight.output_shape
    if weight.a.shape[1] % BLOCK or n_cols % BLOCK or n_rows % 4:
        raise Declined("torch's scales by block need whole blocks, and M in fours")
    if dtype is not torch.bfloat16 or weight.bias is not None:
        raise Declined("torch's products by block give bfloat16 without a bias")
    padded = torch.nn.functional.pad(weight.w_scale, (0, -weight.w_scale.shape[1] % 4))
    kinds = functional.ScalingType
    return functional.scaled_mm(
        dense(weight.a),
        dense(weight.b).t(),
        weight.a_scale.t().contiguous().t(),
        kinds.BlockWise1x128,
        padded.contiguous().t(),
        kinds.BlockWise128x128,
        output_dtype=dtype,
    )


SCALED_MM = Oracle(
    name="torch",
    provenance=_provenance("torch._scaled_mm"),
    missing=_missing,
    dequantize=_scaled_mm,
)
