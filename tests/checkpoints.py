"""Small checkpoints for tests of detection, packed by the upstream libraries themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from kernels._packed import PackedWeight
from oracles import autoawq, autogptq, bnb, gptqmodel

ROWS, COLS, GROUP = 128, 64, 32
AWQ_PACKERS = {"awq_cols": autoawq.pack_cols, "awq_rows": autoawq.pack_rows, "awq_quads": autoawq.pack_quads}
AWQ_VERSIONS = {"awq_cols": "gemm", "awq_rows": "gemv", "awq_quads": "gemv_fast"}


def floats(rows: int = ROWS, cols: int = COLS, seed: int = 1) -> torch.Tensor:
    """Weights [K, N] as trained ones lie: around zero."""
    return torch.randn(rows, cols, generator=torch.Generator().manual_seed(seed)) * 0.05


def order(rows: int, group_size: int, seed: int = 1) -> torch.Tensor:
    """g_idx of an activation order: a permutation of k // group_size."""
    shuffled = torch.randperm(rows, generator=torch.Generator().manual_seed(seed))
    return (torch.arange(rows, dtype=torch.int32) // group_size)[shuffled]


def sequential(rows: int, group_size: int) -> torch.Tensor:
    return torch.arange(rows, dtype=torch.int32) // group_size


def nearest(
    values: torch.Tensor, bits: int, group: torch.Tensor, sym: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales and zeros [G, N] of a round-to-nearest quantizer, by the group of each row."""
    maxq = 2**bits - 1
    groups = int(group.max()) + 1
    scales, zeros = [], []
    for index in range(groups):
        part = values[group == index]
        if sym:
            scales.append(part.abs().amax(0).clamp(min=1e-5) / (2 ** (bits - 1) - 1))
            zeros.append(torch.full((values.shape[1],), 2 ** (bits - 1)))
        else:
            low, high = part.amin(0).clamp(max=0), part.amax(0).clamp(min=0)
            scale = ((high - low) / maxq).clamp(min=1e-5)
            scales.append(scale)
            zeros.append((-low / scale).round())
    return torch.stack(scales), torch.stack(zeros).to(torch.int32)


def held(
    values: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor, group: torch.Tensor, bits: int
) -> torch.Tensor:
    """Weights inside what scales and zeros can express: AutoGPTQ and AutoAWQ do not clamp codes."""
    low, high = -zeros * scales, (2**bits - 1 - zeros) * scales
    return torch.minimum(torch.maximum(values, low[group]), high[group])


def gptq(
    values: torch.Tensor,
    bits: int = 4,
    *,
    group_size: int = GROUP,
    g_idx: torch.Tensor | None = None,
    sym: bool = False,
    packer: str = "autogptq",
    convention: str = "v2",
) -> dict[str, torch.Tensor]:
    """Tensors of a GPTQ layer from AutoGPTQ's (v1) or GPTQModel's packer."""
    rows = values.shape[0]
    group = g_idx if g_idx is not None else sequential(rows, rows if group_size == -1 else group_size)
    scales, zeros = nearest(values, bits, group, sym)
    scales = scales.to(torch.float16)
    # A zero of 0 would smear in v1 words: keep it out, as a symmetric or a lucky weight does.
    zeros = zeros.clamp(min=1)
    half = held(values, scales.float(), zeros, group, bits).to(torch.float16)
    options: dict[str, Any] = {"bits": bits, "group_size": group_size, "g_idx": group}
    if packer == "autogptq":
        weight = autogptq.AUTOGPTQ.pack(half, scales, zeros, **options)
    else:
        weight = gptqmodel.GPTQMODEL.pack(half, scales, zeros, convention=convention, **options)
    return fields(weight)


def awq(
    values: torch.Tensor, layout: str, *, group_size: int = GROUP, sym: bool = False
) -> dict[str, torch.Tensor]:
    """Tensors of an AWQ layer from AutoAWQ's packer of that layout."""
    rows = values.shape[0]
    group = sequential(rows, rows if group_size == -1 else group_size)
    scales, zeros = nearest(values, 4, group, sym)
    inside = held(values, scales, zeros, group, 4)
    return fields(AWQ_PACKERS[layout](inside.t().contiguous(), scales, zeros, group_size))


def blockwise(
    values: torch.Tensor, kind: str, *, blocksize: int = 64, nested: bool = False
) -> dict[str, torch.Tensor]:
    """Tensors of a bitsandbytes 4-bit layer, as its ``QuantState.as_dict(packed=True)`` names them."""
    oracle = {"nf4": bnb.NF4, "fp4": bnb.FP4}[kind]
    weight = oracle.pack(values.t().contiguous(), blocksize=blocksize, nested=nested)
    state = bnb.quant_state(weight, torch.float16, kind).as_dict(packed=True)
    return {"weight": weight.packed} | {f"weight.{name}": tensor for name, tensor in state.items()}


def int8(values: torch.Tensor) -> dict[str, torch.Tensor]:
    """Tensors of an LLM.int8() layer."""
    weight = bnb.LLM_INT8.pack(values.t().to(torch.float16).contiguous())
    return {"weight": weight.codes, "SCB": weight.absmax, "weight_format": torch.tensor(0, dtype=torch.uint8)}


def fields(weight: PackedWeight) -> dict[str, torch.Tensor]:
    return {name: value for name, value in vars(weight).items() if isinstance(value, torch.Tensor)}


def save(
    folder: Path,
    layers: dict[str, dict[str, torch.Tensor]],
    config: dict[str, Any] | None = None,
    *,
    shards: int = 1,
) -> Path:
    """Write a checkpoint folder; with several shards also their index."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        f"{prefix}.{field}": t.contiguous().clone()
        for prefix, part in layers.items()
        for field, t in part.items()
    }
    if shards == 1:
        save_file(tensors, folder / "model.safetensors")
    else:
        names = [f"model-{i + 1:05d}-of-{shards:05d}.safetensors" for i in range(shards)]
        weight_map = {name: names[at % shards] for at, name in enumerate(tensors)}
        for shard in names:
            save_file({n: t for n, t in tensors.items() if weight_map[n] == shard}, folder / shard)
        (folder / "model.safetensors.index.json").write_text(
            json.dumps({"metadata": {}, "weight_map": weight_map})
        )
    if config is not None:
        (folder / "config.json").write_text(json.dumps({"model_type": "bert", "quantization_config": config}))
    return folder


def gptq_config(**changes: Any) -> dict[str, Any]:
    """quantization_config of a GPTQ model with :func:`gptq`'s defaults; None removes a field."""
    base = {
        "quant_method": "gptq",
        "bits": 4,
        "group_size": GROUP,
        "desc_act": False,
        "sym": False,
        "checkpoint_format": "gptq",
    }
    return {key: value for key, value in {**base, **changes}.items() if value is not None}


def repack(words: torch.Tensor, function: Any, bits: int = 4) -> torch.Tensor:
    """Words of 2, 4 or 8 bit fields with ``function`` applied to the fields [R, n]."""
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    data = words.numpy().view(np.uint32)
    changed = function(((data[:, :, None] >> shifts) & np.uint32(2**bits - 1)).reshape(words.shape[0], -1))
    spread = (changed.astype(np.uint32) & np.uint32(2**bits - 1)).reshape(words.shape[0], -1, len(shifts))
    return torch.from_numpy((spread << shifts).sum(axis=2).astype(np.uint32).view(np.int32))
