"""GPTQModel's own AWQ functions: a second opinion on AutoAWQ's GEMM and GEMV layouts."""

from __future__ import annotations

from types import ModuleType

import torch

from kernels.awq_cols import AWQColsWeight
from kernels.awq_rows import AWQRowsWeight
from oracles.autoawq import scales_for
from oracles.base import Declined, Oracle, Provenance
from oracles.upstream import Missing, load, version_of

PACKAGE = "gptqmodel"
TESTED = "7.7.0"
BITS = 4
MODULE = "gptqmodel.quantization.awq.utils.packing_utils"


def _module() -> ModuleType:
    # The whole package where it imports: with bare parents first, the layers that
    # oracles/gptqmodel.py wants would fail to import later in the same process.
    try:
        return load(MODULE)
    except Missing:
        parts = MODULE.split(".")
        return load(MODULE, bare_parents=[".".join(parts[:depth]) for depth in range(1, len(parts))])


def _missing(device: torch.device) -> str | None:
    try:
        _module()
    except Missing as error:
        return error.reason
    return None


def _provenance(called: str) -> Provenance:
    return Provenance(PACKAGE, version_of(PACKAGE), TESTED, called, "call")


def dequantize_cols(weight: AWQColsWeight, dtype: torch.dtype) -> torch.Tensor:
    """[K, N] from ``packing_utils.dequantize_gemm``. Declines K = 0, where it raises."""
    weight.validate()
    if weight.n_rows == 0:
        raise Declined("dequantize_gemm cannot reshape a weight with K = 0")
    value = _module().dequantize_gemm(
        weight.qweight, weight.qzeros, scales_for(weight.scales, dtype), BITS, weight.group_rows
    )
    return value.to(dtype)


def pack_codes(
    codes: torch.Tensor, zeros: torch.Tensor, scales: torch.Tensor, group_size: int
) -> AWQColsWeight:
    """Pack integers [K, N] and [G, N] with ``packing_utils.pack_awq``; scales are stored as they are."""
    qweight, qzeros = _module().pack_awq(codes.to(torch.int32), zeros.to(torch.int32), BITS)
    return AWQColsWeight(qweight, qzeros, scales, group_size)


def dequantize_rows(weight: AWQRowsWeight, dtype: torch.dtype) -> torch.Tensor:
    """[N, K]: ``unpack_awq`` without the interleaved order, ``pack_awq``, ``dequantize_gemm``."""
    weight.validate()
    if 0 in weight.output_shape or weight.n_outputs % 8:
        raise Declined(
            f"pack_awq packs N a positive multiple of 8 and K positive, "
            f"found N = {weight.n_outputs}, K = {weight.n_rows}"
        )
    codes, zeros = _module().unpack_awq(weight.qweight, weight.qzeros, BITS)
    scales = weight.scales[:, : weight.n_groups].T.contiguous()
    packed = pack_codes(codes.T, zeros[:, : weight.n_groups].T, scales, weight.group_size)
    return dequantize_cols(packed, dtype).T.contiguous()


COLS = Oracle("gptqmodel-awq", lambda: _provenance(f"{MODULE}.dequantize_gemm"), _missing, dequantize_cols)
ROWS = Oracle(
    "gptqmodel-awq",
    lambda: _provenance(f"{MODULE}.unpack_awq, pack_awq and dequantize_gemm"),
    _missing,
    dequantize_rows,
)
