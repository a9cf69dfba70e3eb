"""Registration of gemm_epilogue."""

from __future__ import annotations

import numpy as np
import torch

from conformance.case import Case
from conformance.dims import Patterned
from conformance.faults import gemm_epilogue as faults
from conformance.faults import rounding
from conformance.formats._gemm import (
    A_PER_UNIT,
    COLUMNS,
    EPILOGUE,
    ROWS,
    activation_scales,
    bias,
    product_axes,
    scaled_words,
    weight_scales,
    zeros,
)
from conformance.patterns import Pattern
from conformance.randomness import raw_bytes, raw_ints
from conformance.registry import Format
from kernels import gemm_epilogue
from kernels.gemm_epilogue import EpilogueInput
from oracles.bnb_gemm import EPILOGUE as BITSANDBYTES
from oracles.spec.gemm import unpack_epilogue
from oracles.torch_gemm import QINT32

SUMS = {
    "zeros": False,
    "ones": False,
    "ramp": False,
    "small": True,
    "random": True,
    "ties": True,
    "wide": True,
}
_EPILOGUE = tuple(A_PER_UNIT if dim.name == "aper" else dim for dim in EPILOGUE)
ACC = Patterned("acc", Pattern("random", 0), known=SUMS)


def _accumulators(pattern: Pattern, shape: tuple[int, int]) -> torch.Tensor:
    """int32 of ``shape``.

    ====== ==============================================================
    ones   -1
    small  16 bits, what int16 holds
    random 24 bits: exact in float32
    ties   odd numbers of 25 bits: half-way between two float32
    wide   any 32 bits, the ends among them
    ====== ==============================================================
    """
    count, label = shape[0] * shape[1], f"acc/{pattern.name}/{pattern.number}"
    flat = np.arange(count, dtype=np.int64)
    if pattern.name == "wide":
        found = raw_bytes(label, 4 * count).view("<i4").astype(np.int64)
        found[flat % 7 == 0] = 2**31 - 1
        found[flat % 7 == 3] = -(2**31)
    elif pattern.name in ("zeros", "ones", "ramp"):
        found = {"zeros": flat * 0, "ones": flat * 0 - 1, "ramp": flat}[pattern.name]
    elif pattern.name == "ties":
        found = (raw_ints(label, count, 2**23) * 2 + 2**24 + 1) * np.where(
            raw_ints(label + "/s", count, 2), 1, -1
        )
    else:
        bits = 16 if pattern.name == "small" else 24
        found = raw_ints(label, count, 2**bits) - 2 ** (bits - 1)
    return torch.from_numpy(found).to(torch.int32).reshape(shape)


def _words(case: Case) -> EpilogueInput:
    zero = zeros(case, unsigned=False)
    sums = None
    if zero is not None:
        sums = torch.from_numpy(raw_ints("sums", case["N"], 2**16) - 2**15).to(torch.int32)
    return EpilogueInput(
        _accumulators(case["acc"], (case["M"], case["N"])),
        activation_scales(case),
        weight_scales(case),
        zero,
        sums,
        bias(case),
        case["order"],
    )


def _locate(weight: EpilogueInput, index: tuple[int, ...]) -> str:
    return scaled_words(unpack_epilogue(weight), index)


FORMATS = (
    Format(
        name="gemm_epilogue",
        summary="int32 accumulators to floats, zero point, scales and bias: the last step of an int8 GEMM",
        weight_type=EpilogueInput,
        kernel=gemm_epilogue.epilogue,
        oracles=(QINT32, BITSANDBYTES),
        unpack=unpack_epilogue,
        dims=(ROWS, COLUMNS, *_EPILOGUE, ACC),
        words=_words,
        pack=None,
        pack_real=None,
        locate=_locate,
        axes=product_axes,
        tiles={
            "case": {"block_m": 64, "block_n": 128},
            "small": {"block_m": 2, "block_n": 16},
            "default": {},
        },
        faults=faults.FAULTS + rounding.FAULTS,
        tile_cases=(
            "M=3,N=17,bias=fp16,aper=token",
            "M=5,N=33,azero=token,bias=fp32,order=w-a,aper=token",
            "M=4,N=16,azero=tensor,aper=tensor,order=product",
            "M=3,N=31,wper=tensor,bias=bf16,order=absmax,aper=token",
            "M=1,N=1,aper=token",
            "M=16,N=16,acc=wide(1),azero=token,aper=token",
            # Subnormal products of a float32, which a GPU may flush.
            "M=3,N=17,scales=subnormal(1),acc=wide(1),aper=token",
            "M=3,N=17,scales=small(1),acc=small(1),bias=fp32,aper=token",
            "M=3,N=17,acc=ties(1),aper=token",
            "M=3,N=17,bias=fp32,bvals=fine(1),aper=token,scales=negative(2)",
            "M=3,N=33,bias=fp32,bvals=mixed(1),aper=token,order=w-a",
            "M=3,N=17,bias=fp16,bvals=huge(1),aper=token",
            "M=3,N=5,acc=zeros,bias=fp32,bvals=negzero,scales=negative(1),aper=token",
            "M=3,N=33,acc=zeros,bias=fp32,bvals=tiny(1),aper=token",
        ),
        large=(
            "M=40,N=70,azero=token,bias=fp16,aper=token",
            "M=300,N=3,acc=wide(2),aper=token",
            "M=2,N=700,order=w-a,aper=token",
        ),
        zero_size=("M=0", "N=0,bias=fp32", "M=0,N=0,azero=token"),
        nonfinite=(
            "M=5,N=33,scales=inf(1),aper=token",
            "M=5,N=33,scales=nan(1),bias=fp16,aper=token",
            "M=5,N=33,scales=inf(2),acc=zeros,aper=token",
            "M=5,N=33,scales=nan(2),order=product,azero=token,aper=token",
            "M=5,N=33,bias=fp32,bvals=inf(1),aper=token",
            "M=5,N=33,bias=fp16,bvals=nan(1),aper=token",
            "M=5,N=33,scales=inf(3),bias=bf16,bvals=inf(2),aper=token",
        ),
    ),
)
