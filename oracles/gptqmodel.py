"""GPTQModel 7.7.0: ``TorchLinear.dequantize_weight`` and the library's v1 to v2 conversion.

The layer reads stored zeros as they are (``v2``). A v1 weight goes through GPTQModel's own
conversion first, as it does when GPTQModel loads such a checkpoint. That conversion wraps
(``v1``), but at 2, 4 and 8 bit it adds 1 to every field with one addition a word, so that a
stored maxq carries into the next field: a fault of upstream, which is kept. ``v1-nowrap`` is
answered as long as no stored zero is maxq.

The layer computes in the dtype of the scales. For another output dtype the scales are widened
to float32, which is exact, and the layer's float32 answer is rounded. (GPTQModel's own
``forward`` rounds twice there: first to the dtype of the scales, then to that of the input.)
On a GPU the layer runs GPTQModel's Triton kernel, on the CPU its PyTorch code.

``gptqmodel-file`` is the library's other way: ``convert_gptq_file``, which dequantizes the
tensors of a checkpoint file without a layer, and converts v1 zeros field by field. It computes
in float32 and knows no padding, so sizes that do not fill their words are declined.
"""

from __future__ import annotations

import pathlib
import tempfile
import types
from typing import Any, Literal

import torch
from safetensors.torch import save_file

from kernels.gptq import GPTQWeight, Zeros
from oracles.base import Declined, Oracle, Provenance
from oracles.spec.gptq import stores_maxq
from oracles.upstream import Missing, hidden, load, version_of

TESTED = "7.7.0"

_LAYER = "gptqmodel.nn_modules.qlinear.torch"
_CONVERSION = "gptqmodel.utils.model"
_FILES = "gptqmodel.utils.model_dequant"


def _missing(device: torch.device) -> str | None:
    try:
        load(_LAYER)
        load(_CONVERSION)
    except Missing as error:
        return error.reason
    return None


def _layer(bits: int, group_size: int, n_rows: int, n_cols: int, act_order: bool) -> Any:
    if n_rows == 0 or n_cols == 0:
        raise Declined("GPTQModel cannot reshape zero elements")
    try:
        layer = load(_LAYER).TorchLinear(
            bits=bits,
            group_size=group_size,
            desc_act=act_order,
            sym=False,
            in_features=n_rows,
            out_features=n_cols,
            bias=False,
            pack_dtype=torch.int32,
            register_buffers=True,
        )
    except NotImplementedError as error:
        raise Declined(f"GPTQModel does not take this layer: {' '.join(str(error).split())}") from error
    return layer.eval()


def _dequantize(weight: GPTQWeight, dtype: torch.dtype) -> torch.Tensor:
    if weight.zeros == "v1-nowrap" and stores_maxq(weight):
        raise Declined("GPTQModel wraps a stored zero of maxq to 0, the weight has v1-nowrap")
    n_rows, n_cols = weight.output_shape
    compute = dtype if weight.scales.dtype == dtype else torch.float32
    layer = _layer(weight.bits, weight.group_size, n_rows, n_cols, weight.g_idx is not None)
    layer = layer.to(weight.device)
    layer.qweight = weight.qweight.contiguous()
    layer.qzeros = weight.qzeros.contiguous()
    layer.scales = weight.scales.to(compute).contiguous()
    if weight.g_idx is not None:
        layer.g_idx = weight.g_idx.contiguous()
    with torch.no_grad(), hidden():
        if weight.zeros != "v2":
            layer.qzeros = layer.qzeros.clone()  # converted in place
            load(_CONVERSION).convert_gptq_v1_to_v2_format_module(layer, weight.bits, torch.int32)
        return layer.dequantize_weight().to(dtype)


def _pack(
    weight: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor,
    *,
    bits: int,
    group_size: int,
    g_idx: torch.Tensor | None = None,
    convention: Zeros = "v2",
    packer: Literal["block", "original"] = "original",
) -> GPTQWeight:
    """Quantize and pack with ``TorchLinear.pack_original`` or ``pack_block``, on the CPU.

    Args:
        weight: float [K, N].
        scales: float [G, N]; packed as float16, whatever their dtype.
        zeros: integer [G, N], 0..maxq.
        bits: 2, 3, 4 or 8.
        group_size: rows a group has, or -1.
        g_idx: int32 [K], the group of each row, or None.
        convention: ``v2``, or ``v1`` through GPTQModel's own v2 to v1 conversion, which at
            2, 4 and 8 bit borrows from the next field where a zero is 0.
        packer: which of the two functions; ``block`` takes K and N in 32s only.

    Returns:
        A weight on the device of ``weight``.

    Raises:
        Declined: sizes that GPTQModel does not pack, or the ``v1-nowrap`` convention.
    """
    if convention == "v1-nowrap":
        raise Declined("GPTQModel writes v1 zeros that wrap")
    n_rows, n_cols = weight.shape
    if (packer == "block" or bits == 3) and (n_rows % 32 or n_cols % 32):
        raise Declined(f"GPTQModel packs this in 32s, and the weight is {list(weight.shape)}")
    layer = _layer(bits, group_size, n_rows, n_cols, g_idx is not None)
    linear = torch.nn.Linear(n_rows, n_cols, bias=False, device="cpu", dtype=weight.dtype)
    linear.weight = torch.nn.Parameter(weight.detach().cpu().t().contiguous(), requires_grad=False)
    with torch.no_grad(), hidden():
        (layer.pack_block if packer == "block" else layer.pack_original)(
            linear,
            scales.detach().cpu().t().clone(),
            zeros.detach().cpu().to(torch.int32).t().clone(),
            layer.g_idx if g_idx is None else g_idx.detach().cpu().clone(),
        )
        if convention == "v1":
            config = types.SimpleNamespace(bits=bits, pack_dtype=torch.int32)
            load(_CONVERSION).convert_gptq_v2_to_v1_format_module(layer, config)
    # pack_block runs in inference mode; clones are ordinary tensors again.
    return GPTQWeight(
        qweight=layer.qweight.clone().to(weight.device),
        qzeros=layer.qzeros.clone().to(weight.device),
        scales=layer.scales.clone().to(weight.device),
        g_idx=None if g_idx is None else layer.g_idx.clone().to(weight.device, torch.int32),
        bits=bits,
        group_size=group_size,
        zeros=convention,
        in_features=n_rows,
    )


GPTQMODEL = Oracle(
    name="gptqmodel",
    provenance=lambda: Provenance(
        "gptqmodel", version_of("gptqmodel"), TESTED, f"{_LAYER}.TorchLinear.dequantize_weight", "call"
    ),
    missing=_missing,
    dequantize=_dequantize,
    pack=_pack,
)


# --- checkpoint files ---------------------------------------------------------------------


def _files_missing(device: torch.device) -> str | None:
    try:
        load(_FILES)
    except Missing as error:
        return error.reason
    return None


def _dequantize_file(weight: GPTQWeight, dtype: torch.dtype) -> torch.Tensor:
    """[K, N] by ``convert_gptq_file`` of a file that holds this weight alone.

    On the CPU: told to use a GPU, it leaves g_idx behind and fails (seen on CUDA).
    """
    if weight.zeros == "v1-nowrap" and stores_maxq(weight):
        raise Declined("GPTQModel wraps a stored zero of maxq to 0, the weight has v1-nowrap")
    n_rows, n_cols = weight.output_shape
    if n_rows == 0 or n_cols == 0:
        raise Declined("GPTQModel cannot reshape zero elements")
    # It indexes the codes' rows, padding included, by g_idx, and the scales' columns alike.
    if weight.qweight.shape[0] * 32 != n_rows * weight.bits or n_cols * weight.bits % 32:
        raise Declined(f"convert_gptq_file knows no padding, and the weight is {n_rows} x {n_cols}")
    g_idx = weight.g_idx
    if g_idx is None:
        g_idx = torch.arange(n_rows, dtype=torch.int32) // weight.group_rows
    tensors = {"qweight": weight.qweight, "qzeros": weight.qzeros, "scales": weight.scales, "g_idx": g_idx}
    config = {"bits": weight.bits, "checkpoint_format": "gptq_v2" if weight.zeros == "v2" else "gptq"}
    with tempfile.TemporaryDirectory() as folder, hidden():
        path = pathlib.Path(folder) / "model.safetensors"
        save_file({f"layer.{name}": tensor.cpu().contiguous() for name, tensor in tensors.items()}, path)
        found = load(_FILES).convert_gptq_file(path, dtype, config, "cpu")
    return found["layer.weight"].t().contiguous().to(weight.device)


GPTQMODEL_FILE = Oracle(
    name="gptqmodel-file",
    provenance=lambda: Provenance(
        "gptqmodel", version_of("gptqmodel"), TESTED, f"{_FILES}.convert_gptq_file", "call"
    ),
    missing=_files_missing,
    dequantize=_dequantize_file,
)
