"""Registration of gemm_fp8."""

from __future__ import annotations

from conformance.case import Case
from conformance.faults import gemm_fp8 as faults
from conformance.faults import rounding
from conformance.formats._fp8 import (
    A_PER,
    FP8_COLUMNS,
    FP8_DEPTH,
    FP8_LEFT,
    FP8_ORDER,
    FP8_RIGHT,
    FP8_ROWS,
    W_PER,
    activation_scales,
    left_codes,
    right_codes,
    weight_scales,
)
from conformance.formats._gemm import BIAS, bias, product_axes
from conformance.formats._grouped import SCALES
from conformance.fp8_bound import ALLOWANCE
from conformance.registry import Format
from kernels import gemm_fp8
from kernels.gemm_fp8 import Fp8GemmInput
from oracles.spec.gemm_fp8 import unpack_fp8
from oracles.torch_scaled_mm import SCALED_MM


def _words(case: Case) -> Fp8GemmInput:
    return Fp8GemmInput(
        left_codes(case),
        right_codes(case),
        activation_scales(case),
        weight_scales(case),
        bias(case),
        case["order"],
    )


def _locate(weight: Fp8GemmInput, index: tuple[int, ...]) -> str:
    m, n = index
    model = unpack_fp8(weight)
    sums = " + ".join(f"{part[m, n]:.9g}" for part in model.parts()) or "0"
    a, w = (scale.reshape(len(scale), -1) for scale in (model.a_scale, model.w_scale))
    scales = [", ".join(f"{s:.6g}" for s in side) for side in (a[:, m], w[:, n])]
    words = f"token {m}, channel {n}, sums {sums}, scales {scales[0]} and {scales[1]}"
    return words if model.bias is None else f"{words}, bias {model.bias[n]:.6g}"


FORMATS = (
    Format(
        name="gemm_fp8",
        summary="fp8 e4m3 GEMM of quantized operands, scaled by tensor, token, channel or block",
        weight_type=Fp8GemmInput,
        kernel=gemm_fp8.matmul,
        oracles=(SCALED_MM,),
        unpack=unpack_fp8,
        dims=(
            FP8_ORDER,
            FP8_ROWS,
            FP8_DEPTH,
            FP8_COLUMNS,
            A_PER,
            W_PER,
            BIAS,
            SCALES,
            FP8_LEFT,
            FP8_RIGHT,
        ),
        words=_words,
        pack=None,
        pack_real=None,
        locate=_locate,
        axes=product_axes,
        tiles={
            "case": {"block_m": 32, "block_n": 256, "block_k": 128},
            "small": {"block_m": 16, "block_n": 16, "block_k": 32},
            "default": {},
        },
        faults=faults.FAULTS + rounding.FAULTS,
        allowance=ALLOWANCE,
        record_all=False,
        tile_cases=(
            "M=17,N=17,K=33",
            "M=1,N=1,K=1,bias=fp32",
            "M=3,N=18,K=130,aper=block,wper=block",
            "M=17,N=130,K=129,aper=token,wper=block,bias=fp16",
            "M=2,N=33,K=257,aper=block,wper=channel,order=w-a",
            "M=5,N=129,K=40,aper=tensor,wper=block,order=product",
            "M=3,N=16,K=96,a=ramp,b=random(1)",
            "M=16,N=33,K=33,a=random(1),b=eye",
            "M=16,N=16,K=16,a=ramp,b=eye,aper=unit,wper=unit",
            "M=3,N=8,K=17,a=sub(1),b=max,bias=bf16",
            "M=5,N=9,a=nan(1)",
            "M=3,N=5,K=0,bias=fp16",
            "M=3,N=5,K=0,aper=block,wper=block",
        ),
        large=(
            "M=3,N=5,K=1100,aper=block,wper=block",
            "M=2,N=300,K=400,wper=block",
            "M=70,N=130,K=200,aper=block,wper=block,bias=fp32",
            "M=4,N=257,K=300,wper=block,aper=block,order=product",
            # Blocks of scales that are as many along N as along K.
            "M=3,N=257,K=384,wper=block,aper=block",
            "M=3,N=9,K=2100,a=random(1),b=random(1)",
            "M=2,N=3,K=1103,a=max,b=max",
            # All codes of each side, alone.
            "M=2,N=256,K=256,a=ramp,b=eye,wper=unit",
            "M=256,N=2,K=256,a=eye,b=ramp,aper=unit",
        ),
        zero_size=("M=0", "N=0,bias=fp32", "M=0,N=0,K=0", "M=0,aper=block,wper=block"),
        nonfinite=(
            "M=5,N=33,scales=inf(1)",
            "M=5,N=33,scales=nan(1),bias=fp16,wper=block,aper=block",
            "M=5,N=33,scales=inf(2),a=zeros",
            "M=5,N=33,a=nan(1)",
            "M=5,N=33,K=200,b=nan(2),aper=block,wper=block,bias=fp32",
        ),
    ),
)
