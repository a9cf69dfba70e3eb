"""torchao 0.18.0: casts of activations to float8_e4m3fn.

``_choose_scale_float8``, ``_quantize_affine_float8`` and ``_dequantize_affine_float8``, on activations
widened to float32: of 16-bit ones torchao makes the scale in 16 bits. Rows and blocks of zeros, which are
NaN there, and scales that are 0 are not asked about; nor is a short last block.
"""

from __future__ import annotations

from typing import Any

import torch

from kernels._fp8 import BLOCK, E4M3
from kernels.gemm_cast_fp8 import CastInput
from oracles.base import Declined, Oracle
from oracles.torchao_gemm import _PRIMITIVES, _provenance
from oracles.upstream import Missing, hidden, load

_CALLS = ("_choose_scale_float8", "_quantize_affine_float8", "_dequantize_affine_float8")


def _missing(device: torch.device) -> str | None:
    try:
        calls = load(_PRIMITIVES)
    except Missing as error:
        return error.reason
    lacks = [name for name in _CALLS if not hasattr(calls, name)]
    return f"torchao has no {', '.join(lacks)}" if lacks else None


def _round_trip(weight: CastInput, dtype: torch.dtype) -> torch.Tensor:
    if weight.x.numel() == 0:
        raise Declined("torchao is not asked about zero elements")
    n_cols = weight.x.shape[1]
    if weight.per == "token" and n_cols == 1:
        raise Declined("torchao makes no scales of rows with one element")
    if weight.per == "block" and n_cols % BLOCK:
        raise Declined("torchao needs whole blocks")
    x = weight.x.float().contiguous()
    with hidden():
        calls: Any = load(_PRIMITIVES)
        if weight.scale is not None:
            scale = weight.scale
        else:
            width = BLOCK if weight.per == "block" else n_cols
            scale = calls._choose_scale_float8(x, [1, width], E4M3)
        if bool((scale == 0).any()):
            raise Declined("torchao divides zeros by a scale of 0")
        codes = calls._quantize_affine_float8(x, scale, E4M3)
        return calls._dequantize_affine_float8(codes, scale, dtype)


CAST = Oracle(
    name="torchao",
    provenance=_provenance(f"{_PRIMITIVES}._quantize_affine_float8"),
    missing=_missing,
    dequantize=_round_trip,
)
