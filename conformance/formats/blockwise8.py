"""Registration of blockwise8."""

from __future__ import annotations

import triton

from conformance.faults import blockwise, rounding
from conformance.formats import _blockwise
from conformance.registry import Format
from kernels import blockwise8
from oracles import bnb
from oracles.spec.blockwise import unpack

# Small tiles look codes up the other way; Triton 3.3 does not compile that.
_GATHER = 0 if triton.__version__.startswith("3.3.") else 1

FORMATS = (
    Format(
        name="blockwise8",
        summary="bitsandbytes 8-bit blockwise with a 256-entry map, plain or nested absmax",
        weight_type=blockwise8.Blockwise8Weight,
        kernel=blockwise8.dequantize,
        oracles=(bnb.BLOCKWISE8, bnb.BLOCKWISE8_PYTHON),
        unpack=unpack,
        dims=_blockwise.eight_bit_dims(),
        words=lambda case: _blockwise.words(case, blockwise8.Blockwise8Weight, _blockwise.dynamic_map()),
        pack=_blockwise.pack,
        pack_real=_blockwise.pack_real,
        locate=_blockwise.locate,
        axes=_blockwise.axes,
        tiles={"case": {"lanes": 16384}, "small": {"lanes": 16, "gather": _GATHER}, "default": {}},
        faults=blockwise.EIGHT_BITS + rounding.FAULTS,
        inner=1,
        real_variants=_blockwise.REAL_VARIANTS,
        pack_dims=(_blockwise.PACK_SCALES,),
        tile_cases=_blockwise.TILE_CASES,
        large=_blockwise.LARGE,
        zero_size=("shape=0x64", "shape=3x0", "shape=0"),
        nonfinite=(
            "shape=3x257,scales=inf(1)",
            "shape=3x257,scales=nan(1)",
            "shape=1x8193,blocksize=32,absmax=nested,scales=nan(3)",
        ),
    ),
)
