"""Registration of fp4."""

from __future__ import annotations

from conformance.formats._blockwise import four_bit_format
from kernels import fp4
from oracles import bnb

FORMATS = (
    four_bit_format(
        "fp4",
        "bitsandbytes 4-bit float, blockwise, plain or nested absmax",
        fp4.FP4Weight,
        fp4.dequantize,
        fp4.codebook(),
        (bnb.FP4, bnb.FP4_PYTHON),
    ),
)
