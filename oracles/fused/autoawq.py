"""AutoAWQ's Triton product for the GEMM layout: on a GPU, or in Triton's interpreter on the CPU.

The accumulator and the partial sums over K have the dtype of the scales, float16: judge it with
``--accumulate fp16 --split-k 8``.
"""

from __future__ import annotations

import torch

from kernels import Unsupported
from kernels.awq_cols import AWQColsWeight
from oracles.autoawq import provenance, upstream_module
from oracles.autoawq_triton import GROUP_SIZES, MODULE, missing_for, without_device_guard
from oracles.fused import FusedAdapter

# What WQLinear_GEMM.forward passes.
SPLITS = 8


def gemm_triton(x: torch.Tensor, weight: AWQColsWeight) -> torch.Tensor:
    """``awq_gemm_triton`` as AutoAWQ's layer calls it, with 8 partial sums over K."""
    return _gemm(x, weight, SPLITS)


def gemm_triton_unsplit(x: torch.Tensor, weight: AWQColsWeight) -> torch.Tensor:
    """``awq_gemm_triton`` with one sum over K."""
    return _gemm(x, weight, 1)


def _gemm(x: torch.Tensor, weight: AWQColsWeight, splits: int) -> torch.Tensor:
    if 0 in weight.output_shape:
        raise Unsupported("awq_gemm_triton asserts K > 0 and N > 0")
    if weight.group_rows not in GROUP_SIZES and weight.group_rows != weight.n_rows:
        raise Unsupported("awq_gemm_triton supports groups of 32, 64, 128 and K")
    if x.dtype != torch.float16 or weight.scales.dtype != torch.float16:
        raise Unsupported(
            "awq_gemm_triton multiplies and sums in the dtype of the scales, float16 in AutoAWQ"
        )
    module = upstream_module(MODULE)
    with without_device_guard(module, weight.device):
        return module.awq_gemm_triton(
            x, weight.qweight.contiguous(), weight.scales.contiguous(), weight.qzeros.contiguous(), splits
        )


ADAPTERS = tuple(
    FusedAdapter(
        f"oracles.fused.autoawq:{name}",
        ("awq_cols",),
        provenance(f"{MODULE}.awq_gemm_triton"),
        missing_for("awq_gemm_kernel"),
        accumulate=f"--accumulate fp16{split}",
    )
    for name, split in (("gemm_triton", f" --split-k {SPLITS}"), ("gemm_triton_unsplit", ""))
)
