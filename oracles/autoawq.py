"""AutoAWQ: its packers for the three layouts, ``dequantize_gemm``, and its conversion to ExLlama.

AutoAWQ has a dequantize function for the GEMM layout only. The GEMV layout goes through its
``unpack``, then ``pack`` and ``dequantize_gemm``; for GEMVFast there is nothing but the packer
(and CUDA kernels that are in no AutoAWQ package on the index), so the packer is run on
positions and inverted.

Upstream's own Triton kernel is in ``oracles/autoawq_triton.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from types import ModuleType
from typing import Literal

import numpy as np
import torch

from kernels.awq_cols import AWQColsWeight
from kernels.awq_quads import AWQQuadsWeight
from kernels.awq_rows import AWQRowsWeight
from oracles.base import Declined, Kind, Oracle, Provenance
from oracles.spec.rounding import round_to
from oracles.upstream import Missing, load, version_of

PACKAGE = "autoawq"
TESTED = "0.2.9"
BITS = 4

PACKING = "awq.utils.packing_utils"
QUANT = "awq.utils.quant_utils"
LINEAR = "awq.modules.linear"

Converter = Literal["awq_to_exllama", "unpack_reorder_pack"]


def upstream_module(name: str) -> ModuleType:
    """A submodule of AutoAWQ, without the packages' ``__init__`` (which want ``datasets``).

    Raises:
        Missing: not installed, or it does not import.
    """
    parts = name.split(".")
    return load(name, bare_parents=[".".join(parts[:depth]) for depth in range(1, len(parts))])


def missing(*modules: str) -> Callable[[torch.device], str | None]:
    """``Oracle.missing`` for what needs ``modules`` and runs on any device."""

    def reason(device: torch.device) -> str | None:
        try:
            for name in modules:
                upstream_module(name)
        except Missing as error:
            return error.reason
        return None

    return reason


def provenance(called: str, kind: Kind = "call") -> Callable[[], Provenance]:
    return lambda: Provenance(PACKAGE, version_of(PACKAGE), TESTED, called, kind)


def scales_for(scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Scales in the dtype that upstream shall multiply in.

    Upstream's result has the dtype of the scales. Where another is asked for, scales are
    widened to float32 first, which is exact, and the float32 result is rounded: converting a
    float16 result to bfloat16 would round twice.
    """
    return scales if scales.dtype == dtype else scales.to(torch.float32)


# --- GEMM layout ---------------------------------------------------------------------------


def dequantize_cols(weight: AWQColsWeight, dtype: torch.dtype) -> torch.Tensor:
    """[K, N] from ``packing_utils.dequantize_gemm``. Declines K = 0, where it raises."""
    weight.validate()
    if weight.n_rows == 0:
        raise Declined("dequantize_gemm cannot reshape a weight with K = 0")
    # Not weight.group_size: dequantize_gemm raises for -1, and for groups longer than K.
    value = upstream_module(PACKING).dequantize_gemm(
        weight.qweight, weight.qzeros, scales_for(weight.scales, dtype), BITS, weight.group_rows
    )
    return value.to(dtype)


def pack_codes(
    codes: torch.Tensor, zeros: torch.Tensor, scales: torch.Tensor, group_size: int
) -> AWQColsWeight:
    """Pack integers with ``quant_utils.apply_order`` and ``pack``, which keeps 4 bits of each.

    Args:
        codes: integers [K, N], N a multiple of 8.
        zeros: integers [G, N].
        scales: [G, N], stored as they are.
        group_size: as in the packed type.
    """
    quant = upstream_module(QUANT)

    def words(matrix: torch.Tensor) -> torch.Tensor:
        matrix = matrix.to(torch.int32).contiguous()
        return quant.pack(quant.apply_order(matrix, "column", quant.AWQ_PACK_ORDER), "column")

    return AWQColsWeight(words(codes), words(zeros), scales, group_size)


def pack_cols(
    weight: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor, group_size: int
) -> AWQColsWeight:
    """Quantize and pack with ``WQLinear_GEMM.from_linear``.

    Args:
        weight: float [N, K], as ``torch.nn.Linear.weight``.
        scales: [G, N]; upstream stores them as float16, but computes the codes in the dtype of
            ``weight`` and ``scales``. Give float32 for both: in float16 the code of a weight at
            the top of its group can come out as 16, which spills.
        zeros: integers [G, N]. Neither they nor the codes are clamped by upstream: beyond
            0 .. 15 they spill into the neighbours.
        group_size: -1 stands for K, which is what upstream is given.

    Raises:
        Declined: N is no multiple of 32 (upstream then raises IndexError), or the group size
            neither divides nor spans K.
    """
    outputs, rows = weight.shape
    size = rows if group_size == -1 else min(group_size, rows)
    if outputs % 32:
        raise Declined(f"WQLinear_GEMM.from_linear packs multiples of 32 columns only, found N = {outputs}")
    if rows == 0 or rows % size:
        raise Declined(f"WQLinear_GEMM asserts that the group size divides K = {rows}, found {group_size}")
    layer = upstream_module(f"{LINEAR}.gemm").WQLinear_GEMM.from_linear(
        _linear(weight), BITS, size, scales=scales.clone(), zeros=zeros.clone()
    )
    # Upstream moves the zeros, and only them, to its "best device".
    return AWQColsWeight(layer.qweight, layer.qzeros.to(weight.device), layer.scales, group_size)


def to_exllama(
    weight: AWQColsWeight, converter: Converter = "awq_to_exllama"
) -> tuple[torch.Tensor, torch.Tensor]:
    """``qweight`` int32 [K / 8, N] and ``qzeros`` int32 [G, N / 8] as AutoAWQ gives them to ExLlama.

    That is GPTQ's layout with stored zero = zero - 1 (v1). ``unpack_reorder_pack``, which
    AutoAWQ's ExLlama layers call, corrupts the zero in the next slot of the word wherever a
    zero is 0; ``awq_to_exllama`` does not.
    """
    if converter == "awq_to_exllama":
        return upstream_module(QUANT).awq_to_exllama(weight.qweight, weight.qzeros)
    return upstream_module(PACKING).unpack_reorder_pack(weight.qweight, weight.qzeros, BITS)


# --- GEMV layout ---------------------------------------------------------------------------


def dequantize_rows(weight: AWQRowsWeight, dtype: torch.dtype) -> torch.Tensor:
    """[N, K]: ``quant_utils.unpack``, repacked for the GEMM layout, ``dequantize_gemm``."""
    weight.validate()
    if 0 in weight.output_shape or weight.n_outputs % 8:
        raise Declined(
            f"AutoAWQ's layers have N a positive multiple of 8 and K positive, "
            f"found N = {weight.n_outputs}, K = {weight.n_rows}"
        )
    unpack = upstream_module(QUANT).unpack
    codes = unpack(weight.qweight, "column").T
    zeros = unpack(weight.qzeros, "column")[:, : weight.n_groups].T
    scales = weight.scales[:, : weight.n_groups].T.contiguous()
    return dequantize_cols(pack_codes(codes, zeros, scales, weight.group_size), dtype).T.contiguous()


def pack_rows(
    weight: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor, group_size: int
) -> AWQRowsWeight:
    """Quantize and pack with ``WQLinear_GEMV.from_linear``. Arguments as in :func:`pack_cols`.

    Raises:
        Declined: a size or group size that upstream does not pack.
    """
    outputs, rows = weight.shape
    size = _padded_group_size(rows, outputs, group_size)
    if rows % 32:
        raise Declined(f"WQLinear_GEMV.from_linear packs multiples of 32 codes only, found K = {rows}")
    layer = upstream_module(f"{LINEAR}.gemv").WQLinear_GEMV.from_linear(
        _linear(weight), BITS, size, scales=scales.T.contiguous(), zeros=zeros.T.contiguous()
    )
    return AWQRowsWeight(layer.qweight, layer.qzeros, layer.scales, group_size)


# --- GEMVFast layout -----------------------------------------------------------------------


@lru_cache(maxsize=2)
def _source_of_nibbles(outputs: int, rows: int) -> np.ndarray:
    """int64 [N / 4, K, 4]: flat index n * K + k of the code that upstream's packer puts into
    each nibble, found by packing the indices' own hexadecimal digits."""
    packer = upstream_module(f"{LINEAR}.gemv_fast").pack_intweight
    index = torch.arange(outputs * rows, dtype=torch.int64).reshape(outputs, rows)
    source = np.zeros((outputs // 4, rows, 4), np.int64)
    for digit in range(0, (outputs * rows).bit_length(), 4):
        packed = packer(((index >> digit) & 15).to(torch.int32), interleave=4, kstride=64)
        source |= _int16_nibbles(packed) << digit
    return source


def _int16_nibbles(words: torch.Tensor) -> np.ndarray:
    values = words.cpu().numpy().astype(np.int64)
    return np.stack([(values >> (4 * slot)) & 15 for slot in range(4)], axis=-1)


def dequantize_quads(weight: AWQQuadsWeight, dtype: torch.dtype) -> torch.Tensor:
    """[N, K]: codes by inverting ``gemv_fast.pack_intweight``.

    The product has no CPU code upstream; it is the fused multiply-add of the CUDA kernels,
    ``code * scale + scaled_zero`` rounded once, computed here in float64 (exact).
    """
    weight.validate()
    if 0 in weight.output_shape:
        raise Declined("pack_intweight cannot reshape an empty weight")
    codes = np.empty(weight.n_outputs * weight.n_rows, np.int64)
    codes[_source_of_nibbles(weight.n_outputs, weight.n_rows)] = _int16_nibbles(weight.qweight)
    code = torch.from_numpy(codes).reshape(weight.n_outputs, weight.n_rows).to(torch.float64)

    def of_each(table: torch.Tensor) -> torch.Tensor:
        used = table[: weight.n_groups].cpu().to(torch.float64)
        return used.repeat_interleave(weight.group_rows, dim=0).T

    value = code * of_each(weight.scales) + of_each(weight.qzeros)
    bits = round_to(value.numpy(), dtype)
    return (
        torch.from_numpy(bits.view(np.int16 if bits.itemsize == 2 else np.int32))
        .view(dtype)
        .to(weight.device)
    )


def pack_quads(
    weight: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor, group_size: int
) -> AWQQuadsWeight:
    """Quantize and pack with ``WQLinear_GEMVFast.from_linear``. Arguments as in :func:`pack_cols`.

    Raises:
        Declined: a size or group size that upstream does not pack.
    """
    outputs, rows = weight.shape
    size = _padded_group_size(rows, outputs, group_size)
    if rows % 64:
        raise Declined(f"pack_intweight packs multiples of 64 codes only, found K = {rows}")
    layer = upstream_module(f"{LINEAR}.gemv_fast").WQLinear_GEMVFast.from_linear(
        _linear(weight), BITS, size, scales=scales.T.contiguous(), zeros=zeros.T.contiguous()
    )
    return AWQQuadsWeight(layer.qweight, layer.scales, layer.qzeros, group_size)


def _padded_group_size(rows: int, outputs: int, group_size: int) -> int:
    """Group size to call upstream's GEMV packers with. They raise on -1, on a group size that
    they have no padding for, and where the sizes do not fit."""
    size = rows if group_size == -1 else group_size
    if outputs % 8 or rows % size:
        raise Declined(
            f"AutoAWQ's layers have N a multiple of 8 and K of the group size, "
            f"found N = {outputs}, K = {rows}, group size {size}"
        )
    if size < 128 and size not in (32, 64):
        raise Declined(f"calculate_zeros_width knows groups of 32, 64, and 128 or more, found {size}")
    return size


def _linear(weight: torch.Tensor) -> torch.nn.Linear:
    outputs, rows = weight.shape
    linear = torch.nn.Linear(rows, outputs, bias=False, device="meta")
    linear.weight = torch.nn.Parameter(weight.detach().clone(), requires_grad=False)
    return linear


ROWS_FUNCTIONS = f"{QUANT}.unpack, pack and {PACKING}.dequantize_gemm"

COLS = Oracle(
    "autoawq", provenance(f"{PACKING}.dequantize_gemm"), missing(PACKING, QUANT), dequantize_cols, pack_cols
)
ROWS = Oracle("autoawq", provenance(ROWS_FUNCTIONS), missing(PACKING, QUANT), dequantize_rows, pack_rows)
QUADS = Oracle(
    "autoawq",
    provenance(f"{LINEAR}.gemv_fast.pack_intweight, inverted", "identity probe"),
    missing(f"{LINEAR}.gemv_fast"),
    dequantize_quads,
    pack_quads,
)
