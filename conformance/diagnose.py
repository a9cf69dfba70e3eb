"""Explain a mismatch: try the known faults, else describe the structure. Raises nothing."""

from __future__ import annotations

import numpy as np

from conformance.bits import to_float
from conformance.candidates import Candidate, Fit, fit, single
from conformance.faults import Context, Fault
from conformance.verdict import Cause


def explain(
    got: np.ndarray, want: np.ndarray, wrong: np.ndarray, ctx: Context, faults: tuple[Fault, ...]
) -> tuple[Cause, ...]:
    """Causes of a mismatch, best first.

    A fault is named only if its decoder gives the kernel's bits on every mismatching element;
    those that reproduce the whole output come first, the others say so. Without any, the
    last entry describes the structure of the error and says that the cause is unknown.
    """
    fitting = candidates(got, wrong, ctx, faults)
    causes = tuple(candidate.proven(proof(how, wrong)) for candidate, how in fitting)
    if fitting and fitting[0][1].whole:
        return causes
    return (*causes, structure(got, want, wrong, ctx))


def candidates(
    got: np.ndarray, wrong: np.ndarray, ctx: Context, faults: tuple[Fault, ...]
) -> tuple[tuple[Candidate, Fit], ...]:
    """Single faults that fit equally well: all of the output, or else most of it."""
    fitting = []
    for fault in faults:
        how = fit(fault.decode, got, wrong, ctx)
        if how is not None:
            fitting.append((single(fault), how))
    fewest = min((how.elsewhere for _, how in fitting), default=0)
    return tuple((candidate, how) for candidate, how in fitting if how.elsewhere == fewest)


def proof(how: Fit, wrong: np.ndarray) -> str:
    """Words for how well a fault fits."""
    count = int(wrong.sum())
    if how.whole:
        return f"reproduces the whole output, {count} wrong elements included"
    return (
        f"reproduces all {count} wrong elements, but the kernel is right in {how.elsewhere} others "
        f"where this fault would show: it applies in a part only"
    )


def _span(flat: np.ndarray, n: int) -> str:
    """Words for which flat positions are affected."""
    if flat.size == n:
        return "every element"
    first, last = int(flat[0]), int(flat[-1])
    if flat.size == 1:
        return f"one element, flat index {first}"
    if last - first + 1 == flat.size:
        if last == n - 1:
            return f"the tail: the last {flat.size} elements"
        if first == 0:
            return f"the head: the first {flat.size} elements"
        return f"one run of {flat.size} elements from flat index {first}"
    steps = np.diff(flat)
    if (steps == steps[0]).all():
        if flat.size == 2:
            return f"two elements, flat indices {first} and {last}"
        return f"one element in {int(steps[0])}, from flat index {first} to {last}"
    for modulus in (2, 4, 8, 16, 32):
        slots = np.unique(flat % modulus)
        if n >= 2 * modulus and slots.size <= modulus // 2:
            return f"{flat.size} elements, all with flat index mod {modulus} in {slots.tolist()[:8]}"
    return f"{flat.size} of {n} elements between flat index {first} and {last}"


def structure(got: np.ndarray, want: np.ndarray, wrong: np.ndarray, ctx: Context) -> Cause:
    """Where and how an output differs, when no known fault reproduces it."""
    flat = np.flatnonzero(wrong.reshape(-1))
    parts = [_span(flat, wrong.size)]
    if wrong.ndim >= 2:
        matrix = wrong.reshape(-1, wrong.shape[-1])
        rows, columns = int(matrix.any(axis=1).sum()), int(matrix.any(axis=0).sum())
        parts.append(f"{rows} of {matrix.shape[0]} rows, {columns} of {matrix.shape[1]} columns")
    g = to_float(got.reshape(-1)[flat], ctx.dtype)
    w = to_float(want.reshape(-1)[flat], ctx.dtype)
    with np.errstate(all="ignore"):
        finite = np.isfinite(g) & np.isfinite(w)
        if not finite.all():
            parts.append(f"{int((~finite).sum())} of them not finite on one side")
        g, w = g[finite], w[finite]
        if g.size:
            if (g == w).all():
                parts.append("only the sign of zeros differs")
            elif (g == 0).all():
                parts.append("got 0 everywhere there")
            elif (g == -w).all():
                parts.append("got the negated value everywhere there")
            else:
                nonzero = w != 0
                ratio = g[nonzero] / w[nonzero]
                error = g - w
                # One wanted value fits a factor and an offset alike.
                sizes = np.unique(np.abs(w[nonzero])).size
                if sizes > 1 and np.ptp(ratio) <= 1e-6 * abs(ratio[0]) and ratio[0] != 1:
                    parts.append(f"proportional: got = {ratio[0]:.6g} * want")
                elif np.unique(w).size > 1 and np.ptp(error) <= 1e-6 * abs(error[0]):
                    parts.append(f"constant offset: got = want + {error[0]:.6g}")
    return Cause("unknown", "cause unknown; " + "; ".join(parts))
