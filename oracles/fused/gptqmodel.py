"""GPTQModel's layers for GPTQ weights, each run as a whole: its ``post_init`` and ``forward``.

``torch_aten`` maps a weight onto torch's int4 product on the CPU, and rounds ``(8 - zero) * scale`` to the
dtype of the scales in that. ``torch_layer`` and ``triton`` decode the weight and multiply.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from kernels import Unsupported
from kernels.gptq import GPTQWeight
from oracles.base import Provenance
from oracles.fused import FusedAdapter
from oracles.gptqmodel import TESTED
from oracles.upstream import Missing, hidden, load, version_of

_QLINEAR = "gptqmodel.nn_modules.qlinear"
LAYERS = {
    "torch_aten": (f"{_QLINEAR}.torch_aten_kernel", "TorchAtenLinear"),
    "torch_layer": (f"{_QLINEAR}.torch", "TorchLinear"),
    "triton": (f"{_QLINEAR}.tritonv2", "TritonV2Linear"),
}


def torch_aten(x: torch.Tensor, weight: GPTQWeight) -> torch.Tensor:
    """``TorchAtenLinear``: torch's int4 product on the CPU."""
    if x.device.type != "cpu":
        raise Unsupported("TorchAtenLinear runs on the CPU")
    if x.dtype == torch.float32:
        raise Unsupported("TorchAtenLinear has fused code for float16 and bfloat16")
    if weight.output_shape[0] % weight.group_rows or weight.output_shape[1] % 16:
        raise Unsupported("torch's int4 product has whole groups, and N in 16s")
    return _forward(x, weight, "torch_aten")


def torch_layer(x: torch.Tensor, weight: GPTQWeight) -> torch.Tensor:
    """``TorchLinear``: decode, then ``matmul``."""
    return _forward(x, weight, "torch_layer")


def triton(x: torch.Tensor, weight: GPTQWeight) -> torch.Tensor:
    """``TritonV2Linear``: a Triton kernel that decodes, then ``matmul``."""
    if x.device.type != "cuda":
        raise Unsupported("TritonV2Linear runs on a GPU")
    return _forward(x, weight, "triton")


def _forward(x: torch.Tensor, weight: GPTQWeight, name: str) -> torch.Tensor:
    n_rows, n_cols = weight.output_shape
    if not n_rows or not n_cols:
        raise Unsupported("GPTQModel has no layer without elements")
    if weight.zeros != "v2":
        raise Unsupported("GPTQModel's layers read stored zeros as v2, into which it converts others")
    if weight.scales.dtype != x.dtype:
        raise Unsupported("GPTQModel's layers compute in the dtype of the scales")
    module, cls = LAYERS[name]
    with torch.no_grad(), hidden():
        try:
            made: Any = getattr(load(module), cls)(
                bits=weight.bits,
                group_size=weight.group_size,
                desc_act=weight.g_idx is not None,
                sym=False,
                in_features=n_rows,
                out_features=n_cols,
                bias=False,
                pack_dtype=torch.int32,
                register_buffers=True,
            )
        except (NotImplementedError, ValueError) as error:
            raise Unsupported("GPTQModel does not take a layer of this size, group size or width") from error
        made = made.eval().to(x.device)
        made.qweight, made.qzeros = weight.qweight.contiguous(), weight.qzeros.contiguous()
        made.scales = weight.scales.contiguous()
        if weight.g_idx is not None:
            made.g_idx = weight.g_idx.contiguous()
        made.qzero_format(format=2)
        made.post_init()
        return made(x)


def _missing(name: str, device: torch.device) -> str | None:
    needs = {"torch_aten": "cpu", "triton": "cuda"}.get(name, device.type)
    if device.type != needs:
        return "runs on the CPU: use --device cpu" if needs == "cpu" else "runs on a GPU"
    try:
        load(LAYERS[name][0])
    except Missing as error:
        return error.reason
    return None


def _provenance(name: str) -> Provenance:
    called = ".".join(LAYERS[name]) + ".forward"
    return Provenance("gptqmodel", version_of("gptqmodel"), TESTED, called, "call")


ADAPTERS = tuple(
    FusedAdapter(
        f"oracles.fused.gptqmodel:{name}",
        ("gptq",),
        functools.partial(_provenance, name),
        functools.partial(_missing, name),
    )
    for name in LAYERS
)
