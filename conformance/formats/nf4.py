"""Registration of nf4."""

from __future__ import annotations

from conformance.faults import blockwise, rounding
from conformance.formats import _blockwise
from conformance.registry import Format
from kernels import nf4
from oracles import bnb
from oracles.spec.blockwise import unpack

FORMATS = (
    Format(
        name="nf4",
        summary="bitsandbytes 4-bit NormalFloat, blockwise, plain or nested absmax",
        weight_type=nf4.NF4Weight,
        kernel=nf4.dequantize,
        oracles=(bnb.NF4, bnb.NF4_PYTHON),
        unpack=unpack,
        dims=_blockwise.four_bit_dims(),
        words=lambda case: _blockwise.words(case, nf4.NF4Weight, nf4.codebook()),
        pack=_blockwise.pack,
        pack_real=_blockwise.pack_real,
        locate=_blockwise.locate,
        tiles={"case": {"lanes": 16384}, "small": {"lanes": 16}, "default": {}},
        faults=blockwise.FAULTS + rounding.FAULTS,
        real_variants=_blockwise.REAL_VARIANTS,
        pack_dims=(_blockwise.PACK_SCALES, _blockwise.PACK_CODEBOOK),
        tile_cases=_blockwise.TILE_CASES,
        zero_size=("shape=0x64", "shape=3x0", "shape=0"),
        nonfinite=(
            "shape=3x65,scales=inf(1)",
            "shape=3x65,scales=nan(1)",
            "shape=3x65,scales=inf(2),words=zeros",
            "shape=1x8193,blocksize=32,absmax=nested,scales=inf(3)",
            "shape=1x8193,blocksize=32,absmax=nested,scales=nan(3)",
        ),
    ),
)
