"""AutoGPTQ 0.7.1: its two PyTorch layers for GPTQ weights, which differ on stored zeros.

AutoGPTQ has no dequantize function, so a layer is run on an identity. Both layers compute
``scales * (code - zero)`` in the dtype of the scales:

================ ============================== ============== =====================
oracle           convention it implements       act-order      K % group_size
================ ============================== ============== =====================
``autogptq``     ``v1-nowrap``                  yes            any
``autogptq-old`` ``v1``; ``v1-nowrap`` at 3 bit ignores g_idx  0
================ ============================== ============== =====================

A weight of another v1 convention is decoded as long as no stored zero is maxq, where alone
the conventions differ; ``v2`` is declined. For an output dtype other than that of the scales,
the scales are widened to float32, which is exact, and the layer's float32 answer is rounded.

Faults of the packers, kept: zeros are stored as zero - 1 without a mask, so a zero of 0 sets
every higher bit of its word; codes are not clamped.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from kernels.gptq import GPTQWeight, Zeros
from oracles.base import Declined, Oracle, Provenance
from oracles.identity import identity
from oracles.spec.gptq import stores_maxq
from oracles.upstream import Missing, load, version_of

TESTED = "0.7.1"

_PARENTS = ("auto_gptq", "auto_gptq.nn_modules", "auto_gptq.nn_modules.qlinear")
NEW = "auto_gptq.nn_modules.qlinear.qlinear_cuda"
OLD = "auto_gptq.nn_modules.qlinear.qlinear_cuda_old"


def convention(module: str, bits: int) -> Zeros:
    """How the layer of ``module`` reads stored zeros of that width."""
    return "v1" if module == OLD and bits != 3 else "v1-nowrap"


def missing_layer(module: str, device: torch.device) -> str | None:
    try:
        load(module, bare_parents=_PARENTS)
    except Missing as error:
        return error.reason
    return None


def decline(module: str, n_rows: int, n_cols: int, group_size: int, act_order: bool) -> None:
    for name, size in (("K", n_rows), ("N", n_cols)):
        if size == 0 or size % 32:
            raise Declined(f"AutoGPTQ packs {name} in 32s, and {name} is {size}")
    if module == OLD:
        if act_order:
            raise Declined("AutoGPTQ's qlinear_cuda_old ignores g_idx")
        if group_size != -1 and n_rows % group_size:
            raise Declined(f"AutoGPTQ's qlinear_cuda_old needs whole groups, and K is {n_rows}")


def make_layer(module: str, bits: int, group_size: int, n_rows: int, n_cols: int, dtype: torch.dtype) -> Any:
    layer = load(module, bare_parents=_PARENTS).QuantLinear
    # Its CUDA extension, where there is one, would multiply in place of PyTorch below this
    # number of input rows. (0 would mean: always.)
    return layer(bits, group_size, n_rows, n_cols, False, kernel_switch_threshold=1, weight_dtype=dtype)


def _dequantize(weight: GPTQWeight, dtype: torch.dtype, *, module: str) -> torch.Tensor:
    n_rows, n_cols = weight.output_shape
    decline(module, n_rows, n_cols, weight.group_size, weight.g_idx is not None)
    reads = convention(module, weight.bits)
    if weight.zeros == "v2" or (weight.zeros != reads and stores_maxq(weight)):
        raise Declined(f"this layer reads stored zeros as {reads}, the weight has {weight.zeros}")
    compute = dtype if weight.scales.dtype == dtype else torch.float32
    layer = make_layer(module, weight.bits, weight.group_size, n_rows, n_cols, compute).to(weight.device)
    layer.qweight = weight.qweight.contiguous()
    layer.qzeros = weight.qzeros.contiguous()
    layer.scales = weight.scales.to(compute).contiguous()
    if weight.g_idx is not None:
        layer.g_idx = weight.g_idx.contiguous()
    with torch.no_grad():
        return layer(identity(n_rows, dtype=compute, device=weight.device)).to(dtype)


def _pack(
    weight: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor,
    *,
    bits: int,
    group_size: int,
    g_idx: torch.Tensor | None = None,
    module: str,
) -> GPTQWeight:
    """Quantize and pack with the layer's own ``pack``, on the CPU.

    Args:
        weight: float [K, N]; its dtype becomes that of the packed scales.
        scales: float [G, N].
        zeros: integer [G, N], 0..maxq+1. (AutoGPTQ's own quantizer passes floats, whose
            conversion of -1 to an unsigned integer depends on the machine.)
        bits: 2, 3, 4 or 8.
        group_size: rows a group has, or -1.
        g_idx: int32 [K], the group of each row, or None.

    Returns:
        A weight on the device of ``weight``, its ``zeros`` the convention this layer reads.

    Raises:
        Declined: sizes the layer cannot pack, or activation order with the old layer.
    """
    n_rows, n_cols = weight.shape
    decline(module, n_rows, n_cols, group_size, g_idx is not None)
    linear = torch.nn.Linear(n_rows, n_cols, bias=False, device="cpu", dtype=weight.dtype)
    linear.weight = torch.nn.Parameter(weight.detach().cpu().t().contiguous(), requires_grad=False)
    layer = make_layer(module, bits, group_size, n_rows, n_cols, weight.dtype)
    # Copies: pack subtracts 1 from the caller's zeros where their layout lets it.
    layer.pack(
        linear,
        scales.detach().cpu().t().clone(),
        zeros.detach().cpu().to(torch.int32).t().clone(),
        None if g_idx is None else g_idx.detach().cpu().clone(),
    )
    return GPTQWeight(
        qweight=layer.qweight.to(weight.device),
        qzeros=layer.qzeros.to(weight.device),
        scales=layer.scales.to(weight.device),
        g_idx=None if g_idx is None else layer.g_idx.to(weight.device, torch.int32),
        bits=bits,
        group_size=group_size,
        zeros=convention(module, bits),
    )


def _oracle(name: str, module: str) -> Oracle:
    return Oracle(
        name=name,
        provenance=lambda: Provenance(
            "auto-gptq", version_of("auto-gptq"), TESTED, f"{module}.QuantLinear.forward", "identity probe"
        ),
        missing=functools.partial(missing_layer, module),
        dequantize=functools.partial(_dequantize, module=module),
        pack=functools.partial(_pack, module=module),
    )


AUTOGPTQ = _oracle("autogptq", NEW)
AUTOGPTQ_OLD = _oracle("autogptq-old", OLD)
