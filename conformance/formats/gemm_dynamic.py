"""Registration of gemm_dynamic."""

from __future__ import annotations

from conformance.case import Case
from conformance.faults import gemm_dynamic as faults
from conformance.faults import rounding
from conformance.formats._gemm import (
    BIAS,
    BIAS_VALUES,
    COLUMNS,
    LAYOUT_B,
    LENGTH,
    ORDER,
    RIGHT,
    ROWS,
    RULE_FULL,
    RULES,
    W_PER,
    X_DTYPE,
    X,
    activations,
    bias,
    product_axes,
    right_operand,
    scaled_words,
    weight_scales,
)
from conformance.formats._grouped import DTYPES, SCALES
from conformance.registry import Format
from kernels import gemm_dynamic
from kernels.gemm_dynamic import DynamicGemmInput
from oracles.bnb_gemm import DYNAMIC as BITSANDBYTES
from oracles.spec.gemm import unpack_dynamic
from oracles.torchao_gemm import DYNAMIC as TORCHAO


def _words(case: Case) -> DynamicGemmInput:
    rule, signed = RULES[case["rule"]]
    return DynamicGemmInput(
        activations(case["x"], (case["M"], case["K"]), DTYPES[case["xdtype"]]),
        right_operand(case),
        weight_scales(case),
        bias(case),
        case["lay"],
        case["order"],
        rule,  # type: ignore[arg-type]
        signed,
    )


def _locate(weight: DynamicGemmInput, index: tuple[int, ...]) -> str:
    return scaled_words(unpack_dynamic(weight).epilogue(), index)


FORMATS = (
    Format(
        name="gemm_dynamic",
        summary="int8 GEMM of float activations, quantized by token, end to end",
        weight_type=DynamicGemmInput,
        kernel=gemm_dynamic.matmul_dynamic,
        oracles=(TORCHAO, BITSANDBYTES),
        unpack=unpack_dynamic,
        dims=(
            RULE_FULL,
            ORDER,
            LAYOUT_B,
            ROWS,
            LENGTH,
            COLUMNS,
            X_DTYPE,
            X,
            RIGHT,
            W_PER,
            BIAS,
            BIAS_VALUES,
            SCALES,
        ),
        words=_words,
        pack=None,
        pack_real=None,
        locate=_locate,
        axes=product_axes,
        tiles={
            "case": {"rows": 32, "cols": 512, "block_m": 32, "block_n": 64, "block_k": 256},
            "small": {"rows": 2, "cols": 16, "block_m": 16, "block_n": 16, "block_k": 32},
            "default": {},
        },
        faults=faults.FAULTS + rounding.FAULTS,
        tile_cases=(
            "M=17,N=17,K=33,rule=scale",
            "M=1,N=1,K=1,bias=fp32",
            "M=3,N=33,K=65,rule=minmax,xdtype=fp32",
            "M=16,N=16,K=16,rule=minmax-u8,lay=KN,bias=fp16",
            "M=5,N=17,K=31,rule=absmax,order=absmax,xdtype=bf16",
            "M=3,N=9,K=100,x=ties(1),order=w-a",
            "M=4,N=9,K=40,x=holes(1),order=product",
            "M=3,N=17,K=33,bias=fp32,bvals=fine(1),scales=negative(2)",
            "M=3,N=17,K=33,bias=fp32,bvals=mixed(1),order=w-a",
            "M=3,N=5,K=3,x=zeros,bias=fp32,bvals=negzero,scales=negative(1)",
            "M=3,N=33,K=3,x=zeros,bias=fp32,bvals=tiny(1)",
        ),
        large=(
            "M=3,N=5,K=1100,x=last(1),rule=scale",
            # Sums beyond 2**24, which float32 rounds.
            "M=2,N=3,K=1103,x=ones,b=max,rule=scale",
            "M=2,N=3,K=3501,x=last(1),rule=minmax,b=max",
            "M=70,N=130,K=40,rule=minmax",
            # Sizes of layers: whole tiles, several of each axis; K a multiple of 256, 512 and 4096.
            "M=24,N=16,K=4096",
            "M=48,N=256,K=512,lay=KN,rule=minmax,bias=fp16,bvals=fine(1)",
            "M=96,N=144,K=1024,rule=scale,bias=fp32,bvals=fine(2)",
            "M=3,N=200,K=768,rule=minmax-u8,order=w-a",
            "M=260,N=7,K=300,rule=absmax,order=absmax",
            "M=2,N=1030,K=64,xdtype=fp32,bias=bf16,bvals=fine(3),order=product",
            "M=2,N=3,K=2049,rule=absmax,order=absmax",
            # 255 * -128 * 65794 is below -2**31, and wraps.
            "M=1,N=1,K=65794,x=ones,rule=minmax-u8,b=top",
        ),
        zero_size=("M=0", "N=0,bias=fp32", "M=0,N=0,rule=minmax-u8"),
        nonfinite=(
            "M=5,N=33,x=inf(1)",
            "M=5,N=33,x=nan(1),rule=minmax,bias=fp16",
            "M=5,N=33,scales=inf(1),rule=absmax,order=absmax",
            "M=5,N=33,scales=nan(1),rule=minmax-u8",
            "M=5,N=33,bias=fp32,bvals=inf(1)",
            "M=5,N=33,bias=fp16,bvals=nan(1)",
            "M=5,N=33,x=inf(2),bias=bf16,bvals=inf(2)",
        ),
    ),
)
