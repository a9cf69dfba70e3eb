"""torch's int4 products, ``_weight_int4pack_mm`` and ``_weight_int4pack_mm_for_cpu``.

They multiply by ``(code - 8) * scale + zero``, scale and zero stored together in the dtype of x. With
``zero = (8 - z) * scale`` that is awq_cols and 4-bit gptq without activation order, exactly where that
product is a number of the dtype: for every z in float32 (of float16 scales), for few in float16 and
bfloat16, but always for z = 8 and where 8 - z is a power of two. Other weights are refused here, since the
loss would be that of the mapping and not of the kernel; GPTQModel makes it (``oracles.fused.gptqmodel``).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from kernels import Unsupported
from kernels.awq_cols import AWQColsWeight
from kernels.gptq import GPTQWeight
from oracles.base import Provenance
from oracles.fused import FusedAdapter
from oracles.spec import awq, gptq
from oracles.spec.rounding import round_to

TESTED = "2.13.0"
GROUP_SIZES = (32, 64, 128, 256)
INNER_K_TILES = 8


def _parts(x: torch.Tensor, weight: Any) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Codes int32 [N, K], scales and zeros [G, N, 2] in the dtype of x, and the group size."""
    model: Any
    if isinstance(weight, AWQColsWeight):
        model = awq.unpack_cols(weight)
    elif isinstance(weight, GPTQWeight):
        if weight.bits != 4 or weight.g_idx is not None:
            raise Unsupported("torch's int4 product has 4-bit codes in sequential groups")
        model = gptq.unpack(weight)
    else:
        raise TypeError(f"weight: expected AWQColsWeight or GPTQWeight, found {type(weight).__name__}")
    n_rows, n_cols = weight.output_shape
    if weight.group_rows not in GROUP_SIZES or n_rows % weight.group_rows or not n_rows:
        raise Unsupported("torch's int4 product has whole groups of 32, 64, 128 or 256")
    if n_cols % 16 or not n_cols:
        raise Unsupported("torch's int4 product packs N in 16s")
    scales = model.scales.astype(np.float64)
    zeros = (8 - model.zeros) * scales
    pair = np.stack([scales, zeros], axis=-1)
    bits = round_to(pair, x.dtype)
    signed = torch.from_numpy(bits.view(np.int16 if bits.itemsize == 2 else np.int32).copy())
    table = signed.view(x.dtype)
    if not np.array_equal(table.double().numpy(), pair):
        raise Unsupported("(8 - zero) * scale or a scale is not a number of the dtype of x")
    codes = torch.from_numpy(np.ascontiguousarray(model.codes.T)).to(torch.int32)
    return codes.to(x.device), table.to(x.device), weight.group_rows


def int4pack_cpu(x: torch.Tensor, weight: Any) -> torch.Tensor:
    """``_weight_int4pack_mm_for_cpu`` of a weight packed by ``_convert_weight_to_int4pack_for_cpu``."""
    if x.device.type != "cpu":
        raise Unsupported("_weight_int4pack_mm_for_cpu runs on the CPU")
    codes, table, group_size = _parts(x, weight)
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, 1)
    return torch.ops.aten._weight_int4pack_mm_for_cpu(x, packed, group_size, table)


def int4pack_cuda(x: torch.Tensor, weight: Any) -> torch.Tensor:
    """``_weight_int4pack_mm`` of a weight packed by ``_convert_weight_to_int4pack``: bfloat16 on a GPU."""
    if x.device.type != "cuda":
        raise Unsupported("_weight_int4pack_mm runs on a GPU")
    if x.dtype != torch.bfloat16:
        raise Unsupported("_weight_int4pack_mm multiplies bfloat16")
    codes, table, group_size = _parts(x, weight)
    if codes.shape[0] % 8 or codes.shape[1] % (16 * INNER_K_TILES):
        raise Unsupported("_convert_weight_to_int4pack packs N in 8s and K in 128s")
    pairs = (codes[:, 0::2] << 4 | codes[:, 1::2]).to(torch.uint8)
    packed = torch.ops.aten._convert_weight_to_int4pack(pairs, INNER_K_TILES)
    return torch.ops.aten._weight_int4pack_mm(x, packed, group_size, table)


def _missing_cpu(device: torch.device) -> str | None:
    if not hasattr(torch.ops.aten, "_weight_int4pack_mm_for_cpu"):
        return f"torch {torch.__version__} has no _weight_int4pack_mm_for_cpu"
    return None if device.type == "cpu" else "runs on the CPU: use --device cpu"


def _missing_cuda(device: torch.device) -> str | None:
    if device.type != "cuda":
        return "runs on a GPU"
    major = torch.cuda.get_device_capability(device)[0]
    return None if major >= 8 else "needs compute capability 8.0"


def _provenance(name: str) -> Provenance:
    return Provenance("torch", torch.__version__.partition("+")[0], TESTED, f"torch.ops.aten.{name}", "call")


ADAPTERS = (
    FusedAdapter(
        "oracles.fused.torch_int4:int4pack_cpu",
        ("awq_cols", "gptq"),
        lambda: _provenance("_weight_int4pack_mm_for_cpu"),
        _missing_cpu,
    ),
    FusedAdapter(
        "oracles.fused.torch_int4:int4pack_cuda",
        ("awq_cols", "gptq"),
        lambda: _provenance("_weight_int4pack_mm"),
        _missing_cuda,
    ),
)
