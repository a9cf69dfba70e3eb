"""compressed-tensors 0.20.1: dynamic and static activations in float8_e4m3fn.

``compute_dynamic_scales_and_zp`` (strategies token and group), ``quantize`` and ``dequantize``, on
activations widened to float32. Its groups are whole. Zero points are left out: adding one makes +0 of -0.
A scale of 0 becomes the dtype's epsilon there, which changes no value.
"""

from __future__ import annotations

from typing import Any

import torch

from kernels._fp8 import BLOCK
from kernels.gemm_cast_fp8 import CastInput
from oracles.base import Declined, Oracle, Provenance
from oracles.compressed_tensors import TESTED
from oracles.upstream import Missing, hidden, load, version_of

_FORWARD = "compressed_tensors.quantization.lifecycle.forward"
_HELPERS = "compressed_tensors.quantization.utils.helpers"
_SCHEME = "compressed_tensors.quantization"
_STRATEGY = {"tensor": "tensor", "token": "token", "block": "group"}


def _missing(device: torch.device) -> str | None:
    try:
        for module in (_FORWARD, _HELPERS, _SCHEME):
            load(module)
    except Missing as error:
        return error.reason
    return None


def _round_trip(weight: CastInput, dtype: torch.dtype) -> torch.Tensor:
    if weight.x.numel() == 0:
        raise Declined("compressed-tensors is not asked about zero elements")
    if weight.x.device.type == "cuda" and weight.per != "block":
        # forward_helpers._quantize_triton: TOKEN is not among its strategies, TENSOR takes no batch axis.
        raise Declined("compressed-tensors quantizes on a GPU by Triton code that takes no tokens")
    if weight.per == "block" and weight.x.shape[1] % BLOCK:
        raise Declined("compressed-tensors needs whole groups")
    if weight.scale is not None and bool((weight.scale == 0).any()):
        raise Declined("compressed-tensors divides zeros by a given scale of 0")
    # A batch of tokens: without its axis, the scale by token is one of the tensor.
    x = weight.x.float().contiguous()[None]
    with hidden():
        args = load(_SCHEME).QuantizationArgs(
            num_bits=8,
            type="float",
            symmetric=True,
            strategy=_STRATEGY[weight.per],
            group_size=BLOCK if weight.per == "block" else None,
            dynamic=weight.per != "tensor",
        )
        calls: Any = load(_FORWARD)
        scale = weight.scale
        if scale is None:
            scale, _ = load(_HELPERS).compute_dynamic_scales_and_zp(x, args, torch.nn.Module())
        codes = calls.quantize(x, scale, None, args)
        return calls.dequantize(codes, scale, None, args)[0].to(dtype)


CAST = Oracle(
    name="compressed-tensors",
    provenance=lambda: Provenance(
        "compressed-tensors", version_of("compressed-tensors"), TESTED, f"{_FORWARD}.quantize", "call"
    ),
    missing=_missing,
    dequantize=_round_trip,
)
