"""bitsandbytes' 4-bit products.

``matmul_4bit`` is what a layer calls. On a GPU it picks fused code or a dequantize and ``linear`` by M, N
and K; on the CPU it is the latter. ``gemv_4bit`` is the product of one token. ``linear_4bit`` is the layer
itself, which on a CPU with AVX512-BF16 repacks its weight for fused code, and rounds the absmax to bfloat16
in that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kernels import Unsupported, fp4, nf4
from kernels.fp4 import FP4Weight
from kernels.nf4 import FourBitWeight, NF4Weight
from oracles.base import Declined, Provenance
from oracles.bnb import TESTED, decline_other_table, missing_native, quant_state
from oracles.fused import FusedAdapter
from oracles.upstream import Missing, load, version_of

_TABLES = {NF4Weight: ("nf4", nf4.CODEBOOK_BITS), FP4Weight: ("fp4", fp4.CODEBOOK_BITS)}
FORMATS = ("nf4", "fp4")


def _state(x: torch.Tensor, weight: FourBitWeight) -> Any:
    quant_type, bits = _TABLES[type(weight)]
    if x.shape[1] % 2:
        raise Unsupported("bitsandbytes' products read rows of whole bytes, found an odd K")
    if 0 in weight.output_shape:
        raise Unsupported("bitsandbytes has no product of an empty weight")
    try:
        decline_other_table(weight, bits)
    except Declined as refusal:
        raise Unsupported(refusal.reason) from refusal
    return quant_state(weight, x.dtype, quant_type)


def matmul_4bit(x: torch.Tensor, weight: FourBitWeight) -> torch.Tensor:
    """``bitsandbytes.matmul_4bit`` without gradients."""
    state = _state(x, weight)
    with torch.no_grad():
        return load("bitsandbytes").matmul_4bit(x, weight.packed.contiguous(), state)


def gemv_4bit(x: torch.Tensor, weight: FourBitWeight) -> torch.Tensor:
    """``bitsandbytes.functional.gemv_4bit``, for one token."""
    if x.shape[0] != 1:
        raise Unsupported("gemv_4bit multiplies one token")
    if x.device.type == "cuda" and x.shape[1] % weight.blocksize:
        # matmul_4bit does not call it then; it would read a neighbour's absmax, and misaligned addresses.
        raise Unsupported("on a GPU gemv_4bit reads rows of whole blocks")
    state = _state(x, weight)
    if x.device.type == "cpu" and _repacks():
        raise Unsupported("on a CPU with AVX512-BF16 gemv_4bit takes the weight that linear_4bit repacks")
    return load("bitsandbytes.functional").gemv_4bit(x, weight.packed.contiguous(), state=state)


def linear_4bit(x: torch.Tensor, weight: FourBitWeight) -> torch.Tensor:
    """What ``bitsandbytes.nn.Linear4bit`` does on a CPU with AVX512-BF16: repack, then ``matmul_4bit``."""
    state = _state(x, weight)
    n_outputs, n_inner = weight.output_shape
    if x.device.type != "cpu" or not _repacks():
        raise Unsupported("the layer repacks its weight on a CPU with AVX512-BF16 alone")
    if n_outputs % 32 or n_inner % weight.blocksize:
        raise Unsupported("_convert_weight_packed_for_cpu asserts N in 32s and rows of whole blocks")
    functional = load("bitsandbytes.functional")
    with torch.no_grad():
        packed, state = functional._convert_weight_packed_for_cpu(weight.packed.contiguous().clone(), state)
        return load("bitsandbytes").matmul_4bit(x, packed, state)


def _repacks() -> bool:
    return bool(load("bitsandbytes.functional").has_avx512bf16())


def _missing_repacked(device: torch.device) -> str | None:
    reason = missing_native(device)
    if reason is not None:
        return reason
    try:
        works = device.type == "cpu" and _repacks()
    except Missing as error:
        return error.reason
    return None if works else "the layer repacks its weight on a CPU with AVX512-BF16 alone"


def _missing_one(device: torch.device) -> str | None:
    reason = missing_native(device)
    if reason is None and device.type == "cpu" and _repacks():
        return "on a CPU with AVX512-BF16 it takes the weight that linear_4bit repacks"
    return reason


def _adapter(name: str, called: str, missing: Callable[[torch.device], str | None]) -> FusedAdapter:
    return FusedAdapter(
        f"oracles.fused.bnb:{name}",
        FORMATS,
        lambda: Provenance("bitsandbytes", version_of("bitsandbytes"), TESTED, called, "call"),
        missing,
    )


ADAPTERS = (
    _adapter("matmul_4bit", "bitsandbytes.matmul_4bit", missing_native),
    _adapter("gemv_4bit", "bitsandbytes.functional.gemv_4bit", _missing_one),
    _adapter("linear_4bit", "bitsandbytes.nn.Linear4bit.forward", _missing_repacked),
)
