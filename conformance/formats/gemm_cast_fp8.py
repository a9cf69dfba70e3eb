"""Registration of gemm_cast_fp8."""

from __future__ import annotations

import numpy as np
import torch

from conformance.axes import Labels, in_order
from conformance.case import Case
from conformance.dims import Choice, Patterned
from conformance.faults import gemm_cast_fp8 as faults
from conformance.faults import rounding
from conformance.formats._fp8 import FP8_LENGTH, FP8_ROWS, given_scale
from conformance.formats._gemm import ACTIVATIONS, FINITE, X_DTYPE, activations
from conformance.formats._grouped import DTYPES, SCALES
from conformance.patterns import Pattern
from conformance.randomness import raw_ints
from conformance.registry import Format
from kernels import gemm_cast_fp8
from kernels.gemm_cast_fp8 import CastInput
from oracles.compressed_tensors_fp8 import CAST as COMPRESSED_TENSORS
from oracles.spec.fp8 import VALUES
from oracles.spec.gemm_cast_fp8 import BLOCK, cast_of
from oracles.torchao_fp8 import CAST as TORCHAO

# "codes" has every code and every tie between two, against a scale that is a power of two.
_PATTERNS = {**ACTIVATIONS, "codes": True}
_DRAWN = (*(name for name in FINITE if name not in ("ties", "whole")), "codes", "codes")
CAST_X = Patterned("x", Pattern("ordinary", 0), known=_PATTERNS, generated=_DRAWN)
PER = Choice("per", "token", choices=("token", "block", "tensor"))


def _values(case: Case) -> torch.Tensor:
    """Activations [M, K]; ``codes``: codes, ties of two and their float32 neighbours, times a power of two.

    Each row has its own. The first element of each block is 448 times it, so that the scale is exact."""
    pattern, shape, dtype = case["x"], (case["M"], case["K"]), DTYPES[case["xdtype"]]
    if pattern.name != "codes":
        return activations(pattern, shape, dtype)
    count, label = shape[0] * shape[1], f"x/codes/{pattern.number}"
    code = raw_ints(label, count, 126)
    size = VALUES[code]
    kind = raw_ints(label + "/kind", count, 4)
    size = np.where(kind == 0, size, (size + VALUES[code + 1]) / 2)
    beside = size * (1 + np.where(kind == 3, 2.0**-23, -(2.0**-23)))
    size = np.where(kind >= 2, beside, size)
    size = np.where(raw_ints(label + "/sign", count, 2) == 1, -size, size).reshape(shape)
    if case["per"] != "tensor":
        size[:, :: BLOCK if case["per"] == "block" else max(shape[1], 1)] = 448.0
    power = 2.0 ** (raw_ints(label + "/row", shape[0], 9) - 6)
    values = size * (1.0 if case["per"] == "tensor" else power[:, None])
    return torch.from_numpy(values.astype(np.float32)).to(dtype)


def _words(case: Case) -> CastInput:
    return CastInput(_values(case), given_scale(case), case["per"])


def _locate(weight: CastInput, index: tuple[int, ...]) -> str:
    m, k = index
    model = cast_of(weight)
    return (
        f"token {m}, element {k}, x {float(weight.x[index]):.9g}, code 0x{int(model.codes[index]):02x}, "
        f"scale {model.scale[index]:.9g}"
    )


def _axes(weight: CastInput) -> Labels:
    """What shares a scale, and the byte of a 32-bit word of codes."""
    rows, cols = weight.output_shape
    row, block = np.arange(rows)[:, None], np.arange(cols)[None, :] // BLOCK
    scale = {"tensor": row * 0, "token": row, "block": row * (-(-cols // BLOCK)) + block}[weight.per]
    return in_order(weight.output_shape, 4, scale=scale)


FORMATS = (
    Format(
        name="gemm_cast_fp8",
        summary="activations to fp8 e4m3 and back, by tensor, token or block: the first step of an fp8 GEMM",
        weight_type=CastInput,
        kernel=gemm_cast_fp8.round_trip,
        oracles=(TORCHAO, COMPRESSED_TENSORS),
        unpack=cast_of,
        dims=(PER, FP8_ROWS, FP8_LENGTH, X_DTYPE, SCALES, CAST_X),
        words=_words,
        pack=None,
        pack_real=None,
        locate=_locate,
        axes=_axes,
        tiles={"case": {"rows": 32, "cols": 512}, "small": {"rows": 2, "cols": 16}, "default": {}},
        faults=faults.FAULTS + rounding.FAULTS,
        record_all=False,
        tile_cases=(
            "M=3,K=17,xdtype=fp32",
            "M=5,K=129,per=block",
            "M=4,K=257,per=block,x=codes(1),xdtype=fp32",
            "M=8,K=127,x=codes(2),xdtype=fp32",
            "M=8,K=127,x=codes(3),per=tensor,scales=one,xdtype=fp32",
            "M=3,K=96,per=tensor,xdtype=bf16",
            "M=3,K=31,x=last(1)",
            "M=1,K=1",
            "M=7,K=15,x=holes(1),xdtype=bf16",
            "M=3,K=17,x=tiny(1),xdtype=fp32",
            "M=3,K=17,x=huge(1),xdtype=fp32",
            "M=3,K=300,x=outlier(1),per=block,xdtype=fp32",
            "M=2,K=33,x=ordinary(1),per=tensor,scales=zero",
            # Zeros over a negative scale are negative.
            "M=8,K=17,x=ramp,per=tensor,scales=negative(33)",
        ),
        large=(
            "M=3,K=1100,x=last(1)",
            "M=2,K=2049,x=outlier(1),per=block",
            "M=300,K=5",
            "M=40,K=256,x=codes(4),xdtype=fp32",
            # A scale of -0: values are zeros of the sign that is not the codes'.
            "M=2,K=33,x=ordinary(1),per=tensor,scales=mixed(16)",
        ),
        zero_size=("M=0", "M=0,per=block", "M=0,per=tensor,xdtype=fp32"),
        nonfinite=(
            "M=5,K=33,x=inf(1)",
            "M=5,K=33,x=nan(1)",
            "M=5,K=200,x=nan(2),per=block,xdtype=fp32",
            "M=5,K=33,x=inf(2),per=tensor,xdtype=bf16",
            "M=5,K=33,x=nan(3),per=tensor",
            "M=5,K=33,per=tensor,scales=inf(1)",
        ),
    ),
)
