"""Registration of nf4."""

from __future__ import annotations

from conformance.formats._blockwise import four_bit_format
from kernels import nf4
from oracles import bnb

FORMATS = (
    four_bit_format(
        "nf4",
        "bitsandbytes 4-bit NormalFloat, blockwise, plain or nested absmax",
        nf4.NF4Weight,
        nf4.dequantize,
        nf4.codebook(),
        (bnb.NF4, bnb.NF4_PYTHON),
    ),
)
