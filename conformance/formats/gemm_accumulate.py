"""Registration of gemm_accumulate."""

from __future__ import annotations

import numpy as np

from conformance.axes import Labels, spread
from conformance.case import Case
from conformance.faults import gemm_accumulate as faults
from conformance.formats._gemm import (
    CODE_DTYPE,
    COLUMNS,
    DEPTH,
    LAYOUT_B,
    LEFT,
    RIGHT,
    ROWS,
    left_operand,
    right_operand,
)
from conformance.registry import Format
from kernels import gemm_accumulate
from kernels.gemm_accumulate import Int8Operands
from oracles.bnb_gemm import ACCUMULATE as BITSANDBYTES
from oracles.spec.gemm import unpack_operands
from oracles.torch_gemm import INT_MM
from oracles.torchao_gemm import ACCUMULATE as TORCHAO


def _words(case: Case) -> Int8Operands:
    return Int8Operands(left_operand(case), right_operand(case), case["lay"])


def _locate(weight: Int8Operands, index: tuple[int, ...]) -> str:
    m, n, byte = index
    total = int(unpack_operands(weight).sums()[m, n])
    return f"token {m}, channel {n}, byte {byte} of accumulator {total} (0x{total & 0xFFFFFFFF:08x})"


def _axes(weight: Int8Operands) -> Labels:
    """Token, channel, and the byte of the accumulator."""
    shape = weight.output_shape
    token, channel = np.arange(shape[0])[:, None, None], np.arange(shape[1])[:, None]
    return spread(shape, token=token, channel=channel, byte=np.arange(4), scale=0)


FORMATS = (
    Format(
        name="gemm_accumulate",
        summary="int32 sums of products of 8-bit codes: the integer step of an int8 GEMM",
        weight_type=Int8Operands,
        kernel=gemm_accumulate.accumulate_bytes,
        oracles=(INT_MM, TORCHAO, BITSANDBYTES),
        unpack=unpack_operands,
        dims=(CODE_DTYPE, LAYOUT_B, ROWS, DEPTH, COLUMNS, LEFT, RIGHT),
        words=_words,
        pack=None,
        pack_real=None,
        locate=_locate,
        axes=_axes,
        tiles={
            "case": {"block_m": 32, "block_n": 64, "block_k": 256},
            "small": {"block_m": 16, "block_n": 16, "block_k": 32},
            "default": {},
        },
        faults=faults.FAULTS,
        tile_cases=(
            "M=17,N=2,K=33",
            "M=2,N=17,K=33",
            "M=1,N=1,K=1",
            "M=1,N=33,K=65,codes=uint8",
            "M=8,N=16,K=16,lay=KN",
            "M=3,N=17,K=31,lay=KN,codes=uint8",
            "M=17,N=3,K=100,a=top,b=top",
            "M=3,N=18,K=257,a=extremes(1),b=extremes(1),codes=uint8",
            "M=3,N=5,K=0",
        ),
        large=(
            # Past every int16 and float16; odd sums beyond 2**24, which float32 rounds.
            "M=2,N=3,K=1101,a=max,b=max",
            "M=2,N=2,K=2100,a=random(1),b=ones",
            "M=70,N=130,K=40",
            # Sizes of layers: whole tiles, several of each axis; K a multiple of 256, 512 and 4096.
            "M=24,N=16,K=4096",
            "M=48,N=256,K=512,lay=KN",
            "M=96,N=144,K=1024",
            "M=3,N=200,K=768,codes=uint8",
            "M=260,N=7,K=300",
            "M=2,N=1030,K=64",
            # -128 * -128 * 131072 is 2**31, which wraps.
            "M=1,N=1,K=131072,a=top,b=top",
        ),
        zero_size=("M=0", "N=0", "M=0,N=0,K=0", "M=0,codes=uint8,lay=KN"),
    ),
)
