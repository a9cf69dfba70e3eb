"""Faults of the tables of nf4 and fp4: another table, entries of few digits, one wrong entry."""

from __future__ import annotations

import math
import struct

import numpy as np

from conformance.faults import Fault
from conformance.faults import _blockwise as wrong
from kernels import fp4, nf4


def _floats(bits: tuple[int, ...]) -> np.ndarray:
    return np.array([struct.unpack("<f", struct.pack("<I", b))[0] for b in bits], np.float32)


NF4_TABLE = _floats(nf4.CODEBOOK_BITS)
FP4_TABLE = _floats(fp4.CODEBOOK_BITS)
_FP4_OLD = FP4_TABLE.copy()
_FP4_OLD[[1, 9]] = np.array([0x3BAAAAA4, 0xBBAAAAA4], np.uint32).view(np.float32)
_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)

# Tables that kernels in the field use for these codes: what a mismatch is decoded with, so
# that the report can say which table a kernel has.
TABLES = {
    "bitsandbytes nf4": NF4_TABLE,
    "bitsandbytes fp4": FP4_TABLE,
    "nf4 rounded to 4 digits (torchao)": np.round(NF4_TABLE.astype(np.float64), 4).astype(np.float32),
    "nf4 rounded to 5 digits": np.round(NF4_TABLE.astype(np.float64), 5).astype(np.float32),
    "nf4 rounded to 6 digits": np.round(NF4_TABLE.astype(np.float64), 6).astype(np.float32),
    "nf4 in float16": NF4_TABLE.astype(np.float16).astype(np.float32),
    "fp4 rounded to 4 digits": np.round(FP4_TABLE.astype(np.float64), 4).astype(np.float32),
    "fp4 with codes 1 and 9 at 0x3baaaaa4": _FP4_OLD,
    "fp4 in float16": FP4_TABLE.astype(np.float16).astype(np.float32),
    "OCP e2m1": np.concatenate([_E2M1, -_E2M1]),
    "OCP e2m1 divided by 6": np.concatenate([_E2M1 / 6, -_E2M1 / 6]).astype(np.float32),
    "two's complement int4 divided by 7": (((np.arange(16) + 8) % 16 - 8) / 7).astype(np.float32),
}

_LITERALS = ("https://github.com/bitsandbytes-foundation/bitsandbytes/issues/2025",)
_EXACT = "store the table as exact float32 values of the format that was quantized"


def _imprecise(name: str, entries: np.ndarray) -> Fault:
    """A table of the right format whose entries are off by some ULPs."""
    own = NF4_TABLE if name.startswith("nf4") else FP4_TABLE
    codes = np.flatnonzero(entries != own)
    error = np.abs(entries[codes].astype(np.float64) / own[codes] - 1).max()
    return Fault(
        f"codebook: {name}",
        f"value = table[q] * absmax with the table of {name}",
        f"weights are off by {error:.1g} of their value at most: invisible in a model, never bit-exact",
        _EXACT,
        wrong.table(entries),
        () if "float16" in name else _LITERALS,
        kind="codebooks",
        trigger=f"one of the codes {', '.join(map(str, codes))} in an {name[:3]} weight, fp32 output; hides "
        f"behind rtol 1e{math.ceil(math.log10(error))}",
    )


def _other(name: str, entries: np.ndarray) -> Fault:
    """The table of another format."""
    links = ("https://github.com/bitsandbytes-foundation/bitsandbytes/pull/1567",)
    return Fault(
        f"codebook: {name}",
        f"value = table[q] * absmax with the table of {name}",
        "loads and runs, output is garbage",
        _EXACT,
        wrong.table(entries),
        links if name == "bitsandbytes fp4" else (),
        kind="codebooks",
        trigger="any code whose entry differs in the weight's own table: another format, or a table that the "
        "weight brings",
    )


CODEBOOKS = tuple(
    (_imprecise if name.startswith(("nf4", "fp4")) else _other)(name, entries)
    for name, entries in TABLES.items()
)


def _long(entries: np.ndarray) -> list[int]:
    """Codes whose entry has more than 5 decimals."""
    return [code for code in range(16) if np.round(float(entries[code]), 5) != entries[code]]


LITERALS = tuple(
    Fault(
        f"lut-literal-{code}",
        f"the table's entry {code} is rounded to 5 decimals, the others are right",
        "every use of one code is off by some ULPs: invisible in a model, never bit-exact",
        "write float32 literals with 9 significant digits, or as bits",
        wrong.literal(code, 5),
        _LITERALS,
        kind="codebooks",
        trigger=f"code {code} of an nf4 {'or fp4 ' if code in _long(FP4_TABLE) else ''}weight, fp32 output; "
        "hides behind rtol 1e-3, and where the code is never drawn",
    )
    for code in sorted({*_long(NF4_TABLE), *_long(FP4_TABLE)})
)
