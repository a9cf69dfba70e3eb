"""Where upstream libraries decode the same packed words to different weights: run and shown.

Each side has a name to ask for: a zero convention is a field of the case, an oracle its name
(``--oracle`` of the suite), and the decodes below that are no oracle are sides of
``python -m conformance disagreements --case ID --side NAME``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

from conformance.bits import DTYPES, same, to_bits, to_float
from conformance.case import Case
from conformance.errors import UsageError
from conformance.formats.awq import integer_zeros
from conformance.materialize import materialize
from conformance.registry import find_format, parse_case
from kernels.gptq import GPTQWeight
from oracles import autoawq
from oracles.base import Declined
from oracles.spec import gptq as gptq_spec
from oracles.spec.awq import unpack_quads
from oracles.spec.rounding import round_to

Bits = np.ndarray
Side = Callable[[Case, Any, torch.dtype], Bits]


@dataclasses.dataclass(frozen=True)
class Entry:
    """One disagreement.

    Attributes:
        title: heading; its anchor is linked to.
        reason: one line.
        sides: (case id, name of the side); the same words in each, read by another convention
            where the ids say so.
        element: index that is shown, or None for the first on which the sides differ.
    """

    title: str
    reason: str
    sides: tuple[tuple[str, str], ...]
    element: tuple[int, int] | None = None


_MAXQ = "gptq:g=-1,K=32,zeros={},zp=ramp,words=zeros,scales=one,out=fp32"
_MAXQ_3 = "gptq:bits=3,g=-1,K=32,zeros={},zp=ramp,words=zeros,scales=one,out=fp32"
_CARRY = "gptq:g=-1,K=32,zp=down,words=zeros,scales=one,out=fp32"
_REPACK = "awq_cols:K=8,N=8,g=-1,zp=ramp,words=zeros,scales=one,out=fp32"
_SCALED = "awq_quads:zp=ramp"
_OVERFLOW = "awq_quads:zp=maxq,words=ones,scales=huge(1)"

ENTRIES = (
    Entry(
        "Stored zero of maxq",
        "v1 files store zero - 1: adding 1 to a stored 15 gives 0 where the sum is masked and 16 where it is "
        "not; v2 files store the zero itself.",
        (
            (_MAXQ.format("v1"), "autogptq-old"),
            (_MAXQ.format("v1"), "gptqmodel"),
            (_MAXQ.format("v1"), "gptqmodel-file"),
            (_MAXQ.format("v1-nowrap"), "autogptq"),
            (_MAXQ.format("v2"), "gptqmodel"),
            (_MAXQ.format("v2"), "compressed-tensors"),
        ),
        (0, 15),
    ),
    Entry(
        "Stored zero of maxq at 3 bit",
        "AutoGPTQ's old layer masks after adding 1 at 2, 4 and 8 bit, but before it at 3 bit.",
        (
            (_MAXQ_3.format("v1"), "gptqmodel"),
            (_MAXQ_3.format("v1"), "gptqmodel-file"),
            (_MAXQ_3.format("v1-nowrap"), "autogptq-old"),
            (_MAXQ_3.format("v1-nowrap"), "autogptq"),
        ),
        (0, 7),
    ),
    Entry(
        "Word-wise conversion",
        "GPTQModel's layers turn v1 zeros into v2 by one addition a word, so the stored 15 of column 0 "
        "carries into column 1; its converter of checkpoint files adds 1 to each field.",
        tuple((_CARRY, side) for side in ("spec", "autogptq-old", "gptqmodel-file", "gptqmodel")),
        (0, 1),
    ),
    Entry(
        "Repack for ExLlama",
        "AutoAWQ's unpack_reorder_pack subtracts 1 from a word of zeros at once: the zero of 0 in column 0 "
        "borrows from the next slot, column 2; awq_to_exllama subtracts from each field.",
        tuple((_REPACK, side) for side in ("spec", "autoawq", "awq_to_exllama", "unpack_reorder_pack")),
        (0, 2),
    ),
    Entry(
        "Scaled zeros",
        "GEMVFast stores -fp16(zero * scale) in place of the zero: the rounding of that product stays in "
        "every weight.",
        tuple((_SCALED, side) for side in ("spec", "autoawq", "integer-zeros")),
    ),
    Entry(
        "Scaled zeros beyond float16",
        "The stored product of zero and scale is -inf: code = zero is -inf and not 0.",
        tuple((_OVERFLOW, side) for side in ("spec", "autoawq", "integer-zeros")),
    ),
)


def _spec(case: Case, weight: Any, dtype: torch.dtype) -> Bits:
    return round_to(find_format(case.format).unpack(weight).values(), dtype)


def _exllama(converter: autoawq.Converter) -> Side:
    """AutoAWQ's conversion to GPTQ's layout, then the exact model of what it wrote (v1)."""

    def decode(case: Case, weight: Any, dtype: torch.dtype) -> Bits:
        qweight, qzeros = autoawq.to_exllama(weight, converter)
        packed = GPTQWeight(qweight, qzeros, weight.scales, None, 4, weight.group_size, "v1")
        return round_to(gptq_spec.unpack(packed).values(), dtype)

    return decode


def _integer_zeros(case: Case, weight: Any, dtype: torch.dtype) -> Bits:
    """(code - zero) * scale with the zeros whose products with the scales are stored."""
    model = unpack_quads(weight)
    values = (model.codes - integer_zeros(case)[model.group]) * model.scales[model.group]
    return round_to(np.ascontiguousarray(values.T), dtype)


# Decodes that are neither the exact model nor an oracle of the suite.
EXTRA: dict[str, dict[str, Side]] = {
    "awq_cols": {
        "awq_to_exllama": _exllama("awq_to_exllama"),
        "unpack_reorder_pack": _exllama("unpack_reorder_pack"),
    },
    "awq_quads": {"integer-zeros": _integer_zeros},
}


def sides(case: Case) -> dict[str, Side]:
    """Everything that decodes weights of the case's format, by name."""
    found: dict[str, Side] = {"spec": _spec}
    for oracle in find_format(case.format).oracles:
        found[oracle.name] = lambda case, weight, dtype, oracle=oracle: to_bits(  # type: ignore[misc]
            oracle.dequantize(weight, dtype)
        )
    return {**found, **EXTRA.get(case.format, {})}


def decode(case: Case, name: str) -> Bits | str:
    """What a side makes of a case, or why it does not answer.

    Raises:
        UsageError: no such side.
    """
    known = sides(case)
    if name not in known:
        raise UsageError(f"side: expected one of {', '.join(known)}, found {name!r}")
    fmt = find_format(case.format)
    for oracle in fmt.oracles:
        if oracle.name == name and (reason := oracle.missing(torch.device("cpu"))):
            return f"missing: {reason}"
    weight, _ = materialize(fmt, case)
    try:
        return known[name](case, weight, DTYPES[case["out"]])
    except Declined as refusal:
        return f"declined: {refusal.reason}"


@dataclasses.dataclass(frozen=True)
class Row:
    """One side's answer: its value at the element shown, and how many of all elements differ
    from the first side's. ``value`` is a reason where it has none."""

    case: str
    side: str
    value: str
    differ: int | None


def compare(
    pairs: Iterable[tuple[str, str]], element: tuple[int, int] | None = None
) -> tuple[str, list[Row]]:
    """Run sides; the element that is shown and a row for each side."""
    answers = [(text, side, decode(parse_case(text), side)) for text, side in pairs]
    given = [(text, bits) for text, _, bits in answers if not isinstance(bits, str)]
    if not given:
        return "-", [Row(text, side, str(bits), None) for text, side, bits in answers]
    dtype, first = DTYPES[parse_case(given[0][0])["out"]], given[0][1]
    if element is None:
        wrong = np.zeros(first.shape, bool)
        for _, bits in given[1:]:
            wrong |= ~same(bits, first, dtype)
        k, n = (np.argwhere(wrong)[0] if wrong.any() else (0, 0)) if first.size else (0, 0)
        element = (int(k), int(n))
    rows = []
    for text, side, answer in answers:
        if isinstance(answer, str):
            rows.append(Row(text, side, answer, None))
            continue
        value = to_float(answer[element].reshape(1), dtype)[0]
        rows.append(Row(text, side, f"{value:.9g}", int((~same(answer, first, dtype)).sum())))
    return str(list(element)), rows


def markdown() -> str:
    """``docs/disagreements.md``."""
    lines = [
        "# Where upstream libraries disagree",
        "",
        "Written by `python -m conformance disagreements --markdown`, which runs the libraries. Each row is",
        "one reading of the same packed words. A case id can be given to `pytest conformance --case ID`, a",
        "side to `python -m conformance disagreements --case ID --side NAME`; a zero convention is the",
        "case's `zeros`.",
        "With codes of 0 and scales of one, a value is minus the zero.",
    ]
    for entry in ENTRIES:
        place, rows = compare(entry.sides, entry.element)
        lines += ["", f"## {entry.title}", "", entry.reason, ""]
        lines += [
            f"| side | case | value at {place} | elements unlike the first side's |",
            "|---|---|---|---|",
        ]
        lines += [f"| {row.side} | `{row.case}` | {row.value} | {row.differ} |" for row in rows]
    lines += ["", "Versions: " + "; ".join(_versions()) + ".", ""]
    return "\n".join(lines)


def _versions() -> list[str]:
    packages = {}
    for entry in ENTRIES:
        for oracle in find_format(parse_case(entry.sides[0][0]).format).oracles:
            found = oracle.provenance()
            packages[found.package] = f"{found.package} {found.version or 'not installed'}"
    return sorted(packages.values())
