"""Tell causes apart by failures that are there already: those that Hypothesis shrank the reported one from.

Nothing is run. A case that is shrunk to one element fits a dozen causes; the case that failed first fits
those alone that are about all of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from conformance.axes import even_steps, labels
from conformance.bits import DTYPES
from conformance.candidates import Candidate, Fit, fit
from conformance.case import Case
from conformance.context import context, wrong_in
from conformance.harness import Checked
from conformance.measures import measure
from conformance.registry import Format
from conformance.verdict import Verdict
from oracles.spec.rounding import round_to

# Different right values among the wrong elements below which a failure proves nothing.
LEAST = 8


@dataclasses.dataclass(frozen=True)
class Before:
    """What earlier failures said of candidates.

    Attributes:
        left: candidates that hold on them too; all of those given where none does.
        words: one sentence for the report, or empty.
        proven: one is left, and it gives a whole output of many different values.
    """

    left: tuple[tuple[Candidate, Fit], ...]
    words: str = ""
    proven: bool = False


def hold_to(fmt: Format, found: Sequence[tuple[Candidate, Fit]], earlier: Sequence[Checked]) -> Before:
    """Which candidates reproduce the earlier failures as well. One that none of them fits is passed over: a
    kernel may have two faults.

    Args:
        fmt: as the kernel sees it.
        found: candidates and how they fit the reported failure.
    """
    left, said, proven = tuple(found), [], False
    for one in earlier:
        bits = None if one.execution is None else one.execution.bits
        if one.weight is None or bits is None:
            continue
        dtype = DTYPES[one.verdict.case["out"]]
        ctx = context(fmt, one.weight, dtype, one.verdict.device)
        want = round_to(ctx.model.values(), dtype)
        if bits.shape != want.shape:
            continue
        wrong = wrong_in(bits, want, ctx)
        if not wrong.any():
            continue
        fits = [(pair, fit(pair[0].decode, bits, wrong, ctx)) for pair in left]
        fitting = [(pair, how.elsewhere) for pair, how in fits if how is not None]
        if not fitting:
            continue
        fewest = min(elsewhere for _, elsewhere in fitting)
        left = tuple(pair for pair, elsewhere in fitting if elsewhere == fewest)
        said.append(f"holds on {one.verdict.case.id} ({int(wrong.sum())} of {wrong.size} elements wrong)")
        proven |= fewest == 0 and np.unique(want[wrong]).size >= LEAST
    whole = all(how.whole for _, how in left)
    words = min(said, key=len) + _unlike(found, left) if said else ""
    return Before(left, words, proven and whole and len(left) == 1)


def larger_reading(fmt: Format, earlier: Sequence[Checked]) -> str:
    """What an error reads like in an earlier failure, as the end of a sentence; empty where in none."""
    for one in earlier:
        bits = None if one.execution is None else one.execution.bits
        if one.weight is not None and bits is not None:
            words = by_line(fmt, one.verdict.case, one.weight, bits)
            if words:
                return words
    return ""


def by_line(fmt: Format, case: Case, weight: Any, bits: np.ndarray) -> str:
    """Words for a case whose tokens, or channels, are off by a factor of their own; else empty."""
    model, dtype = fmt.unpack(weight), DTYPES[case["out"]]
    want = round_to(model.values(), dtype)
    if bits.shape != want.shape:
        return ""
    found = measure(bits, want, dtype, axes=labels(fmt, weight), steps=even_steps(model)).reading
    return f"; larger, {case.id}: {found.words}" if found.kind.startswith("factor-each") else ""


def _unlike(found: Sequence[tuple[Candidate, Fit]], left: Sequence[tuple[Candidate, Fit]]) -> str:
    kept = {candidate.name for candidate, _ in left}
    return unlike([candidate.name for candidate, _ in found if candidate.name not in kept])


def unlike(gone: Sequence[str]) -> str:
    """``, unlike`` the causes that do not hold, the first few by name."""
    more = f" and {len(gone) - 3} more" if len(gone) > 3 else ""
    return f", unlike {', '.join(gone[:3])}{more}" if gone else ""


def narrowed(verdict: Verdict, others: Sequence[Verdict]) -> Verdict:
    """A verdict of products, of which no weight is kept: causes that were named for the others too."""
    for other in others:
        names = {cause.name for cause in other.causes} - {"unknown"}
        kept = tuple(cause for cause in verdict.causes if cause.name in names)
        gone = [cause.name for cause in verdict.causes if cause not in kept]
        if kept and gone:
            words = f"holds on {other.case.id}{unlike(gone)}"
            verdict = dataclasses.replace(verdict, causes=kept, apart=words)
    return verdict
