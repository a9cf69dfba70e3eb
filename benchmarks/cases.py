"""What is measured: variants of the formats, output dtypes, sizes and group sizes, the telling ones first."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from typing import Any

from conformance.errors import UsageError

DTYPES = ("fp16", "bf16", "fp32")

SQUARE = ((16384, 16384), (8192, 8192), (4096, 4096))
# Layers of models: an MLP's projection at two sizes, a tall one, and one of few rows.
LAYERS = ((4096, 14336), (8192, 28672), (28672, 1024), (128, 16384))
LARGEST = SQUARE[0]
QUICK = SQUARE[1]


@dataclasses.dataclass(frozen=True)
class Variant:
    """One way a format comes.

    Attributes:
        format: the format's name.
        name: the way, such as ``nested`` or ``4bit-act-order``.
        groups: group or block sizes that are measured, the usual one first; -1 is one group over
            all of K, 0 that the format has none.
    """

    format: str
    name: str
    groups: tuple[int, ...] = (0,)

    @property
    def label(self) -> str:
        return f"{self.format}/{self.name}"


# bitsandbytes has no block over everything; 4096 is its largest.
_BLOCKS = (64, 32, 128, 4096)
_GROUPS = (128, 32, 64, -1)
VARIANTS = (
    Variant("nf4", "plain", _BLOCKS),
    Variant("nf4", "nested", _BLOCKS),
    Variant("fp4", "plain", _BLOCKS),
    Variant("fp4", "nested", _BLOCKS),
    Variant("blockwise8", "plain", (256,)),
    Variant("llm_int8", "rows"),
    Variant("gptq", "4bit", _GROUPS),
    Variant("gptq", "4bit-act-order", _GROUPS),
    Variant("gptq", "2bit", (128,)),
    Variant("gptq", "3bit", (128,)),
    Variant("gptq", "8bit", (128,)),
    Variant("awq_cols", "4bit", _GROUPS),
    Variant("awq_rows", "4bit", _GROUPS),
    Variant("awq_quads", "4bit", _GROUPS),
    Variant("squeezellm", "4bit"),
    Variant("squeezellm", "3bit"),
    Variant("int8_affine", "row"),
    Variant("int8_affine", "column"),
    Variant("int8_affine", "group", (128,)),
    Variant("int8_affine", "tensor"),
)


@dataclasses.dataclass(frozen=True)
class BenchCase:
    """One measurement: a variant at an output dtype, output shape [rows, cols] and group size."""

    format: str
    variant: str
    dtype: str
    rows: int
    cols: int
    group: int

    @property
    def id(self) -> str:
        group = f"/g{self.group}" if self.group else ""
        return f"{self.format}/{self.variant}/{self.dtype}/{self.rows}x{self.cols}{group}"

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> BenchCase:
        return cls(**{field.name: fields[field.name] for field in dataclasses.fields(cls)})


def parse_size(text: str) -> tuple[int, int]:
    """``8192`` or ``4096x14336`` as (rows, cols).

    Raises:
        UsageError: not of that form.
    """
    match = re.fullmatch(r"([1-9]\d*)(?:x([1-9]\d*))?", text)
    if not match:
        raise UsageError(f"size: expected N or ROWSxCOLS, found {text!r}")
    rows = int(match[1])
    return rows, int(match[2]) if match[2] else rows


def find_variants(names: Sequence[str]) -> tuple[Variant, ...]:
    """Variants of the names ``format`` or ``format/variant``; all of them for no name.

    Raises:
        UsageError: a name of none.
    """
    for name in names:
        if not any(name in (variant.format, variant.label) for variant in VARIANTS):
            known = ", ".join(dict.fromkeys(variant.format for variant in VARIANTS))
            raise UsageError(f"format: expected one of {known}, or FORMAT/VARIANT, found {name!r}")
    return tuple(
        variant for variant in VARIANTS if not names or variant.format in names or variant.label in names
    )


def find_dtypes(names: Sequence[str]) -> tuple[str, ...]:
    """Output dtypes of the names; all of them for no name.

    Raises:
        UsageError: a name of none.
    """
    for name in names:
        if name not in DTYPES:
            raise UsageError(f"dtype: expected one of {', '.join(DTYPES)}, found {name!r}")
    return tuple(dtype for dtype in DTYPES if not names or dtype in names)


def _all(
    variants: Sequence[Variant], dtypes: Sequence[str], sizes: Sequence[tuple[int, int]], further: bool
) -> Iterator[BenchCase]:
    # The order is what a time limit leaves: a line of the summary first, details after it.
    for rows, cols in sizes:
        for dtype in dtypes:
            for variant in variants:
                yield BenchCase(variant.format, variant.name, dtype, rows, cols, variant.groups[0])
    if further:
        rows, cols = sizes[0]
        for dtype in dtypes:
            for variant in variants:
                for group in variant.groups[1:]:
                    yield BenchCase(variant.format, variant.name, dtype, rows, cols, group)


def select(
    names: Sequence[str] = (), dtypes: Sequence[str] = (), sizes: Sequence[str] = (), *, quick: bool = False
) -> list[BenchCase]:
    """The cases of a selection; nothing given means everything.

    Args:
        names: formats, or ``format/variant``.
        dtypes: output dtypes.
        sizes: output sizes as :func:`parse_size` reads them, instead of the built-in ones.
        quick: one size, the usual group sizes, and float16 unless ``dtypes`` says else.

    Raises:
        UsageError: a name of nothing.
    """
    variants = find_variants(names)
    chosen = find_dtypes(dtypes or (("fp16",) if quick else ()))
    if sizes:
        shapes: tuple[tuple[int, int], ...] = tuple(dict.fromkeys(map(parse_size, sizes)))
    else:
        shapes = (QUICK,) if quick else SQUARE + LAYERS
    return list(dict.fromkeys(_all(variants, chosen, shapes, not quick)))
