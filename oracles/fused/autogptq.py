"""AutoGPTQ's products: the Triton kernel ``quant_matmul_248`` (GPU alone) and the two PyTorch layers."""

from __future__ import annotations

import functools
from typing import Any

import torch

from kernels import Unsupported
from kernels.gptq import GPTQWeight
from oracles.autogptq import NEW, OLD, TESTED, convention, decline, make_layer, missing_layer
from oracles.base import Declined, Provenance
from oracles.fused import FusedAdapter
from oracles.spec.gptq import stores_maxq
from oracles.upstream import Missing, load, version_of

KERNELS = "auto_gptq.nn_modules.triton_utils.kernels"
_PARENTS = ("auto_gptq", "auto_gptq.nn_modules", "auto_gptq.nn_modules.triton_utils")


def triton(x: torch.Tensor, weight: GPTQWeight) -> torch.Tensor:
    """``quant_matmul_248``, whose zeros are those of v1-nowrap."""
    if x.device.type != "cuda":
        raise Unsupported("quant_matmul_248 times its configurations on a GPU")
    n_rows, n_cols = weight.output_shape
    if weight.bits == 3 or not n_rows or not n_cols or n_rows % 32 or n_cols % 32:
        raise Unsupported("quant_matmul_248 has 2, 4 and 8 bits, K and N in 32s")
    if x.dtype != torch.float16 or weight.scales.dtype != torch.float16:
        raise Unsupported("AutoGPTQ's Triton layer multiplies float16")
    if weight.zeros == "v2" or (weight.zeros == "v1" and stores_maxq(weight)):
        raise Unsupported("quant_matmul_248 reads stored zeros as v1-nowrap")
    groups = weight.g_idx
    if groups is None:
        groups = torch.arange(n_rows, dtype=torch.int32, device=x.device) // weight.group_rows
    module = load(KERNELS, bare_parents=_PARENTS)
    return module.quant_matmul_248(
        x, weight.qweight.contiguous(), weight.scales.contiguous(), weight.qzeros.contiguous(),
        groups.contiguous(), weight.bits, 2**weight.bits - 1,
    )  # fmt: skip


def torch_layer(x: torch.Tensor, weight: GPTQWeight) -> torch.Tensor:
    """``qlinear_cuda.QuantLinear.forward``: PyTorch where its extension is not there."""
    return _forward(x, weight, NEW)


def torch_layer_old(x: torch.Tensor, weight: GPTQWeight) -> torch.Tensor:
    """``qlinear_cuda_old.QuantLinear.forward``."""
    return _forward(x, weight, OLD)


def _forward(x: torch.Tensor, weight: GPTQWeight, module: str) -> torch.Tensor:
    n_rows, n_cols = weight.output_shape
    reads = convention(module, weight.bits)
    if weight.zeros == "v2" or (weight.zeros != reads and stores_maxq(weight)):
        raise Unsupported(f"this layer reads stored zeros as {reads}")
    if weight.scales.dtype != x.dtype:
        raise Unsupported("this layer multiplies in the dtype of the scales")
    try:
        decline(module, n_rows, n_cols, weight.group_size, weight.g_idx is not None)
    except Declined as refusal:
        raise Unsupported(refusal.reason) from refusal
    made: Any = make_layer(module, weight.bits, weight.group_size, n_rows, n_cols, x.dtype).to(x.device)
    made.qweight, made.qzeros = weight.qweight.contiguous(), weight.qzeros.contiguous()
    made.scales = weight.scales.contiguous()
    if weight.g_idx is not None:
        made.g_idx = weight.g_idx.contiguous()
    with torch.no_grad():
        return made(x)


def _missing_triton(device: torch.device) -> str | None:
    if device.type != "cuda":
        return "quant_matmul_248 times its configurations on a GPU"
    try:
        load(KERNELS, bare_parents=_PARENTS)
    except Missing as error:
        return error.reason
    return None


def _provenance(called: str) -> Provenance:
    return Provenance("auto-gptq", version_of("auto-gptq"), TESTED, called, "call")


ADAPTERS = (
    FusedAdapter(
        "oracles.fused.autogptq:triton",
        ("gptq",),
        lambda: _provenance(f"{KERNELS}.quant_matmul_248"),
        _missing_triton,
    ),
    *(
        FusedAdapter(
            f"oracles.fused.autogptq:{name}",
            ("gptq",),
            functools.partial(_provenance, f"{module}.QuantLinear.forward"),
            functools.partial(missing_layer, module),
        )
        for name, module in (("torch_layer", NEW), ("torch_layer_old", OLD))
    ),
)
