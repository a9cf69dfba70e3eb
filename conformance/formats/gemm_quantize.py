"""Registration of gemm_quantize."""

from __future__ import annotations

import numpy as np

from conformance.axes import Labels, in_order
from conformance.case import Case
from conformance.faults import gemm_quantize as faults
from conformance.faults import rounding
from conformance.formats._gemm import LENGTH, ROWS, RULE, RULES, X_DTYPE, X, activations
from conformance.formats._grouped import DTYPES
from conformance.registry import Format
from kernels import gemm_quantize
from kernels.gemm_quantize import QuantizeInput
from oracles.bnb_gemm import QUANTIZE as BITSANDBYTES
from oracles.spec.gemm_quantize import quantized
from oracles.torchao_gemm import QUANTIZE as TORCHAO


def _words(case: Case) -> QuantizeInput:
    rule, signed = RULES[case["rule"]]
    x = activations(case["x"], (case["M"], case["K"]), DTYPES[case["xdtype"]])
    return QuantizeInput(x, rule, signed)  # type: ignore[arg-type]


def _locate(weight: QuantizeInput, index: tuple[int, ...]) -> str:
    m, k = index
    model = quantized(weight)
    words = f"token {m}, element {k}, x {float(weight.x[index]):.9g}, code {int(model.codes[index])}"
    if weight.rule == "minmax":
        words += f", zero {int(model.zero[m])}"
    return f"{words}, {'absmax' if weight.rule == 'absmax' else 'scale'} {model.scale[m]:.6g}"


def _axes(weight: QuantizeInput) -> Labels:
    """The row, which shares a scale, and the byte of a 32-bit word of codes."""
    return in_order(weight.output_shape, 4, scale=np.arange(weight.output_shape[0])[:, None])


FORMATS = (
    Format(
        name="gemm_quantize",
        summary="activations to 8-bit codes by token and back: the first step of an int8 GEMM",
        weight_type=QuantizeInput,
        kernel=gemm_quantize.round_trip,
        oracles=(TORCHAO, BITSANDBYTES),
        unpack=quantized,
        dims=(RULE, ROWS, LENGTH, X_DTYPE, X),
        words=_words,
        pack=None,
        pack_real=None,
        locate=_locate,
        axes=_axes,
        tiles={"case": {"rows": 32, "cols": 512}, "small": {"rows": 2, "cols": 16}, "default": {}},
        faults=faults.FAULTS + rounding.FAULTS,
        tile_cases=(
            "M=3,K=17,xdtype=fp32",
            "M=5,K=33,rule=minmax",
            "M=4,K=48,rule=minmax-u8,xdtype=bf16",
            "M=3,K=31,rule=absmax,x=last(1)",
            "M=3,K=31,rule=full,x=ties(1)",
            "M=1,K=1",
            "M=7,K=15,x=holes(1),xdtype=bf16",
            "M=3,K=17,x=tiny(1),xdtype=fp32",
            "M=3,K=17,x=tiny(1),rule=absmax,xdtype=fp32",
            "M=3,K=17,x=huge(1),rule=minmax,xdtype=fp32",
            # Subnormals: the scale's reciprocal is infinite, and so are the products with it.
            "M=1,K=65,x=tiny(36),rule=minmax,xdtype=fp32",
        ),
        large=(
            "M=3,K=1100,x=last(1)",
            "M=2,K=2049,x=outlier(1),rule=minmax",
            "M=300,K=5,rule=absmax",
            # Scales of so few bits that zero points would be beyond the codes.
            "M=40,K=1,x=tiny(1),rule=minmax,xdtype=fp32",
        ),
        zero_size=("M=0", "M=0,rule=minmax-u8", "M=0,xdtype=fp32,rule=absmax"),
        nonfinite=(
            "M=5,K=33,x=inf(1)",
            "M=5,K=33,x=nan(1)",
            "M=5,K=33,x=nan(2),rule=minmax,xdtype=fp32",
            "M=5,K=33,x=inf(2),rule=absmax,xdtype=bf16",
        ),
    ),
)
