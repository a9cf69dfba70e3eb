"""Registration of llm_int8."""

from __future__ import annotations

import numpy as np
import torch

from conformance.axes import Labels, in_order
from conformance.case import Case
from conformance.dims import Patterned, Shape
from conformance.faults import llm_int8 as faults
from conformance.faults import rounding
from conformance.patterns import (
    FINITE_SCALES,
    SCALE_PATTERNS,
    WORD_PATTERNS,
    Pattern,
    scale_values,
    word_bytes,
)
from conformance.randomness import raw_ints
from conformance.registry import Format, Packing
from kernels import llm_int8
from kernels.llm_int8 import LLMInt8Weight
from oracles import bnb
from oracles.base import Oracle
from oracles.spec.llm_int8 import unpack

WHY = (
    "the packer multiplies by fp32(127 / absmax): two roundings, of a value of at most 127, move it at most "
    "127 * 2**-22 of a step across a tie"
)


def _words(case: Case) -> LLMInt8Weight:
    rows, cols = case["shape"]
    data = word_bytes(case["words"], rows * cols)
    codes = torch.from_numpy(data).view(torch.int8).reshape(rows, cols)
    return LLMInt8Weight(codes, scale_values(case["scales"], rows))


def _bounded(weight: LLMInt8Weight, values: torch.Tensor) -> Packing:
    steps = unpack(weight).steps()
    return Packing(weight, values.double().numpy(), steps * (0.5 + 127 * 2.0**-22), WHY)


def _pack(case: Case, oracle: Oracle) -> Packing:
    assert oracle.pack is not None
    rows, cols = case["shape"]
    unit = (raw_ints(f"floats/{case['words']}", rows * cols, 2**24) - 2**23).astype(np.float32) / np.float32(
        2**23
    )
    scale = scale_values(case["scales"], rows).numpy()[:, None]
    values = torch.from_numpy(unit.reshape(rows, cols) * scale)
    return _bounded(oracle.pack(values.clone()), values)


def _pack_real(case: Case, values: torch.Tensor, oracle: Oracle) -> Packing:
    assert oracle.pack is not None
    return _bounded(oracle.pack(values.clone()), values)


def _locate(weight: LLMInt8Weight, index: tuple[int, ...]) -> str:
    row, col = index
    return (
        f"row {row}, column {col}, code {int(weight.codes[row, col])}, absmax {float(weight.absmax[row]):.6g}"
    )


def _axes(weight: LLMInt8Weight) -> Labels:
    """Row, which is what shares a scale, and the byte of a 32-bit word."""
    return in_order(weight.output_shape, 4, row=np.arange(weight.output_shape[0])[:, None])


FORMATS = (
    Format(
        name="llm_int8",
        summary="bitsandbytes LLM.int8() row-wise int8",
        weight_type=LLMInt8Weight,
        kernel=llm_int8.dequantize,
        oracles=(bnb.LLM_INT8,),
        unpack=unpack,
        dims=(
            Shape("shape", (2, 32), rank=2),
            Patterned("words", Pattern("random", 0), known=WORD_PATTERNS),
            Patterned("scales", Pattern("ordinary", 0), known=SCALE_PATTERNS, generated=FINITE_SCALES),
        ),
        words=_words,
        pack=_pack,
        pack_dims=(
            Patterned(
                "scales",
                Pattern("ordinary", 0),
                known=SCALE_PATTERNS,
                generated=("one", "ordinary", "negative", "small", "huge"),
            ),
        ),
        pack_real=_pack_real,
        locate=_locate,
        axes=_axes,
        tiles={"case": {"rows": 16, "cols": 2048}, "small": {"rows": 2, "cols": 16}, "default": {}},
        faults=faults.FAULTS + rounding.FAULTS,
        inner=1,
        real_variants=({},),
        tile_cases=(
            "shape=2x16",
            "shape=3x17",
            "shape=5x33",
            "shape=1x1",
            "shape=7x15",
            "shape=9x33,scales=ties(1)",
        ),
        # A scale taken by column shows on a square weight alone.
        large=("shape=700x33", "shape=9x1100", "shape=130x130"),
        zero_size=("shape=0x64", "shape=3x0"),
        nonfinite=(
            "shape=5x33,scales=inf(1)",
            "shape=5x33,scales=nan(1)",
            "shape=5x33,scales=inf(1),words=zeros",
        ),
    ),
)
