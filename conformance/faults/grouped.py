"""The catalogue of wrong decoders for gptq and the three AWQ layouts, put together per format."""

from __future__ import annotations

from conformance.faults import grouped_arithmetic as arithmetic
from conformance.faults import grouped_groups as groups
from conformance.faults import grouped_index as index
from conformance.faults import grouped_order as order
from conformance.faults import grouped_precision as precision
from conformance.faults import grouped_words as words
from conformance.faults import grouped_zeros as zeros

GPTQ = (
    *zeros.CONVENTIONS,
    *zeros.INTEGER,
    *zeros.PADDED,
    *zeros.REPACKED,
    *arithmetic.INTEGER,
    *words.PLAIN,
    *order.AWQ_ORDER_ON_PLAIN,
    *order.STRIDED,
    *order.AXIS,
    *words.THREE_BITS,
    *groups.GROUPS,
    *index.INDEX,
    *precision.PRECISION,
)
AWQ_COLS = (
    *zeros.AWQ_OFFSET,
    *zeros.INTEGER,
    *zeros.REPACKED,
    *arithmetic.INTEGER,
    *words.PLAIN,
    *order.ORDER,
    *order.STRIDED,
    *order.AXIS,
    *groups.GROUPS,
    *precision.PRECISION,
)
AWQ_ROWS = (
    *zeros.AWQ_OFFSET,
    *zeros.INTEGER,
    *zeros.PADDED,
    *zeros.REPACKED,
    *arithmetic.INTEGER,
    *words.PLAIN,
    *order.AWQ_ORDER_ON_PLAIN,
    *order.STRIDED,
    *groups.GROUPS,
    *precision.PRECISION,
)
_OF_CODES = (
    "slots-reversed",
    "sign-extend-top",
    "codes-twos-complement",
    "codes-saturate-signed",
    "codes-plus-mid-saturate",
)
# Zeros are not packed here, so what is wrong with packed zeros alone does not exist.
QUADS = (
    *arithmetic.SCALED,
    *(fault for fault in words.PLAIN if fault.name in _OF_CODES),
    *order.QUADS,
    *groups.GROUPS,
    *precision.QUADS,
)

# Changes of a kernel that change no output, with the reason: not counted as missed.
EQUIVALENT = (
    (
        "signed-shift-with-mask",
        "(w >> s) & maxq is the same for both kinds of shift: the copies of the sign bit are masked",
    ),
    ("flat-bit-position-3bit", "10-1-10-1-10 is the plain little-endian stream of 3-bit fields"),
    ("g_idx-ignored-in-order", "g_idx[k] = k // group_size: activation order that reorders nothing"),
    ("group-per-tile-of-whole-groups", "the group size is a multiple of the tile: a tile has one group"),
    ("v1-conventions-without-maxq", "v1 and v1-nowrap differ on a stored maxq only"),
    (
        "float-subtraction",
        "the difference of code and zero has at most 9 bits: exact in float16 and float32",
    ),
    (
        "symmetric-reads-stored-zeros",
        "a weight carries no flag for symmetric: its stored zeros are what counts",
    ),
    ("straddle-of-2-4-8-bits", "a field whose width divides 32 never straddles two words"),
    ("padding-not-zero", "the bits behind the last column, and AWQ's padded groups, are never read"),
)
