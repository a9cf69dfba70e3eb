"""Registration of gemm_int8."""

from __future__ import annotations

import torch

from conformance.case import Case
from conformance.faults import gemm as faults
from conformance.faults import rounding
from conformance.formats._gemm import (
    A_PER_TENSOR,
    CODE_DTYPE,
    COLUMNS,
    DEPTH,
    EPILOGUE,
    LAYOUT_B,
    LEFT,
    RIGHT,
    ROWS,
    activation_scales,
    bias,
    left_operand,
    product_axes,
    right_operand,
    scaled_words,
    weight_scales,
    zeros,
)
from conformance.registry import Format, Relaxation
from kernels import gemm_int8
from kernels.gemm_int8 import Int8GemmInput
from oracles.bnb_gemm import GEMM as BITSANDBYTES
from oracles.spec.gemm import unpack_gemm
from oracles.torch_gemm import ONEDNN

_EPILOGUE = tuple(A_PER_TENSOR if dim.name == "aper" else dim for dim in EPILOGUE)


def _words(case: Case) -> Int8GemmInput:
    return Int8GemmInput(
        left_operand(case),
        right_operand(case),
        activation_scales(case),
        weight_scales(case),
        zeros(case, case["codes"] == "uint8"),
        bias(case),
        case["lay"],
        case["order"],
    )


def _locate(weight: Int8GemmInput, index: tuple[int, ...]) -> str:
    return scaled_words(unpack_gemm(weight).epilogue(), index)


FORMATS = (
    Format(
        name="gemm_int8",
        summary="int8 GEMM of quantized operands, from codes to floats",
        weight_type=Int8GemmInput,
        kernel=gemm_int8.matmul,
        oracles=(ONEDNN, BITSANDBYTES),
        unpack=unpack_gemm,
        dims=(CODE_DTYPE, LAYOUT_B, ROWS, DEPTH, COLUMNS, *_EPILOGUE, LEFT, RIGHT),
        words=_words,
        pack=None,
        pack_real=None,
        locate=_locate,
        axes=product_axes,
        tiles={
            "case": {"block_m": 32, "block_n": 64, "block_k": 256},
            "small": {"block_m": 16, "block_n": 16, "block_k": 32},
            "default": {},
        },
        faults=faults.FAULTS + rounding.FAULTS,
        relaxations=tuple(
            Relaxation("torch-onednn", dtype, 0, "oneDNN adds 0 for a bias that is not there: -0 becomes +0")
            for dtype in (torch.float16, torch.bfloat16, torch.float32)
        ),
        tile_cases=(
            "M=17,N=17,K=33,aper=token",
            "M=1,N=1,K=1,bias=fp32",
            "M=1,N=33,K=65,codes=uint8,azero=tensor",
            "M=16,N=16,K=16,lay=KN,azero=token,aper=token",
            "M=5,N=33,K=31,lay=KN,codes=uint8,azero=token,bias=fp16,order=w-a,aper=token",
            "M=33,N=3,K=100,a=top,b=top,order=product,wper=tensor",
            "M=3,N=18,K=257,order=absmax,bias=bf16,aper=token",
            "M=3,N=5,K=0,bias=fp16",
            "M=3,N=17,K=33,bias=fp32,bvals=fine(1),scales=negative(2)",
            "M=3,N=17,K=33,bias=fp32,bvals=mixed(1),aper=token,order=w-a",
            # Products of 0, which a bias of -0 leaves alone.
            "M=3,N=5,K=3,a=zeros,bias=fp32,bvals=negzero,scales=negative(1)",
            # A subnormal bias alone, which a GPU may flush.
            "M=3,N=33,K=0,bias=fp32,bvals=tiny(1)",
        ),
        large=(
            # Sums beyond 2**24, which float32 rounds.
            "M=2,N=3,K=1103,a=max,b=max,azero=token,azp=random(1)",
            "M=2,N=3,K=1103,a=max,b=max",
            "M=70,N=130,K=40,azero=token,bias=fp32,aper=token",
            # Sizes of layers: whole tiles, several of each axis; K a multiple of 256, 512 and 4096.
            "M=24,N=16,K=4096",
            "M=48,N=256,K=512,lay=KN,bias=fp16,bvals=fine(1),aper=token",
            "M=96,N=144,K=1024,bias=fp32,bvals=fine(2)",
            "M=3,N=200,K=768,codes=uint8,azero=token,aper=token,order=w-a",
            "M=260,N=7,K=300,aper=token,order=absmax",
            "M=2,N=1030,K=64,bias=bf16,bvals=fine(3),order=product",
            "M=3,N=5,K=2100,codes=uint8,azero=token",
            # 255 * -128 * 65794 is below -2**31, and wraps.
            "M=1,N=1,K=65794,codes=uint8,a=ones,b=top",
        ),
        zero_size=("M=0", "N=0,bias=fp32", "M=0,N=0,K=0,azero=token", "M=0,codes=uint8,lay=KN"),
        nonfinite=(
            "M=5,N=33,scales=inf(1),aper=token",
            "M=5,N=33,scales=nan(1),bias=fp16,codes=uint8",
            "M=5,N=33,scales=inf(2),a=zeros,azero=token,aper=token",
            "M=5,N=33,bias=fp32,bvals=inf(1),aper=token",
            "M=5,N=33,bias=fp16,bvals=nan(1)",
            # An infinite product and a bias: infinite or NaN, by their signs.
            "M=5,N=33,scales=inf(3),bias=bf16,bvals=inf(2),aper=token",
        ),
    ),
)
