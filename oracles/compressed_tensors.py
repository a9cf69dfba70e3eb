"""compressed-tensors 0.20.1: its pack-quantized format holds the same bits as GPTQ's v2 form.

``weight_packed`` [N, K * bits / 32] is GPTQ's ``qweight`` transposed, and the packed
``weight_zero_point`` [N * bits / 32, G] is ``qzeros`` transposed, both as one dense stream:
codes and zeros are stored with the same offset, so their difference is the same. So its
packer checks GPTQ packers, and its decompressor decodes ``v2`` weights without a group index.

The decompressor computes in the dtype of the scales. For another output dtype the scales are
widened to float32, which is exact, and its float32 answer is rounded.
"""

from __future__ import annotations

import torch

from kernels.gptq import GPTQWeight
from oracles.base import Declined, Oracle, Provenance
from oracles.upstream import Missing, hidden, load, version_of

TESTED = "0.20.1"

_HELPERS = "compressed_tensors.compressors.pack_quantized.helpers"
_COMPRESSOR = "compressed_tensors.compressors.pack_quantized.base"
_SCHEME = "compressed_tensors.quantization"


def _missing(device: torch.device) -> str | None:
    try:
        for module in (_HELPERS, _COMPRESSOR, _SCHEME):
            load(module)
    except Missing as error:
        return error.reason
    return None


def pack_codes(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """GPTQ's ``qweight`` by ``pack_to_int32``.

    Args:
        codes: integer [K, N], 0..2**bits - 1.
        bits: width of a code.

    Returns:
        int32 [ceil(K * bits / 32), N].
    """
    signed = (codes.to(torch.int32) - 2 ** (bits - 1)).to(torch.int8)
    return load(_HELPERS).pack_to_int32(signed.t().contiguous(), bits).t().contiguous()


def pack_zeros(zeros: torch.Tensor, bits: int) -> torch.Tensor:
    """GPTQ's ``qzeros`` in the v2 convention: int32 [G, ceil(N * bits / 32)] from integer [G, N]."""
    return pack_codes(zeros.t(), bits).t().contiguous()


def _dequantize(weight: GPTQWeight, dtype: torch.dtype) -> torch.Tensor:
    n_rows, n_cols = weight.output_shape
    if weight.zeros != "v2":
        raise Declined(f"compressed-tensors reads zeros as they are stored, the weight has {weight.zeros}")
    if weight.g_idx is not None:
        raise Declined("compressed-tensors' decompress takes no group index")
    if n_rows == 0 or n_cols == 0:
        raise Declined("compressed-tensors cannot reshape zero elements")
    if n_rows % weight.group_rows and weight.n_groups > 1:
        raise Declined(f"compressed-tensors needs whole groups, and K is {n_rows}")
    by_channel = weight.n_groups == 1
    quantization = load(_SCHEME)
    args = quantization.QuantizationArgs(
        num_bits=weight.bits,
        type="int",
        symmetric=False,
        strategy="channel" if by_channel else "group",
        group_size=None if by_channel else weight.group_size,
    )
    scheme = quantization.QuantizationScheme(targets=["Linear"], weights=args)
    compute = dtype if weight.scales.dtype == dtype else torch.float32
    state = {
        "weight_packed": weight.qweight.t().contiguous(),
        "weight_scale": weight.scales.to(compute).t().contiguous(),
        "weight_zero_point": weight.qzeros.t().contiguous(),
        "weight_shape": torch.tensor([n_cols, n_rows]),
    }
    with hidden():
        found = load(_COMPRESSOR).PackedQuantizationCompressor.decompress(state, scheme)["weight"]
    return found.t().contiguous().to(dtype)


COMPRESSED_TENSORS = Oracle(
    name="compressed-tensors",
    provenance=lambda: Provenance(
        "compressed-tensors",
        version_of("compressed-tensors"),
        TESTED,
        f"{_COMPRESSOR}.PackedQuantizationCompressor.decompress",
        "call",
    ),
    missing=_missing,
    dequantize=_dequantize,
)
