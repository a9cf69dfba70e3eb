"""The second look at a failure: measures, pairs of faults, and inputs that tell the causes apart.

Too dear for every case that shrinking tries, so it is done once, on the case that is reported.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np

from conformance.apart import Outcome, Run, denied, pool, refuted, tell_apart
from conformance.axes import even_steps, labels
from conformance.bits import DTYPES
from conformance.candidates import Candidate, Fit, fit, pairs
from conformance.case import Case
from conformance.context import context, wrong_in
from conformance.deadline import TimeUp, time_limit
from conformance.diagnose import candidates, proof, structure
from conformance.earlier import by_line, hold_to, larger_reading, narrowed
from conformance.faults import Context, Fault
from conformance.harness import Checked, Harness
from conformance.judge import exact
from conformance.measures import measure
from conformance.registry import Format, Kernel
from conformance.verdict import Cause, Verdict
from oracles.spec.rounding import round_to

VALUES = ("MISMATCH", "NONFINITE_CLASS", "SPLIT")
# Readings that one element or one token gives: what a larger failure reads like says more.
SILENT = ("none", "proportional", "sign", "zero")
# Of pairs; beyond that a name says nothing any more.
MOST = 12
# For the inputs that tell causes apart: a report must not wait for a kernel that hangs on one.
SECONDS = 10
# Inputs that are drawn for products, and those that tell the most causes apart, which are judged.
DRAWN, TELLING = 40, 4


def investigate(harness: Harness, checked: Checked, kernel: Kernel) -> Checked:
    """The same failure with its causes looked into, calling ``kernel`` again on further inputs."""
    quiet = dataclasses.replace(harness, oracles=frozenset(), writer=None)
    if checked.verdict.kind in VALUES and checked.weight is None:
        return _products(quiet, checked, kernel)

    def run(case: Case) -> np.ndarray | None:
        again = quiet.judge(case, kernel)
        return None if again.execution is None else again.execution.bits

    return look_into(kernel.viewed(harness.formats[checked.verdict.case.format]), checked, run)


def _asked_reading(fmt: Format, case: Case, run: Run | None) -> str:
    """The same of a few inputs like the failing one, those with the most different right values, which the
    kernel is called on."""
    if run is None or not {dim.name for dim in case.dims} >= {"M", "N"}:
        return ""

    def different(other: Case) -> int:
        return np.unique(exact(fmt, fmt.words(other), DTYPES[other["out"]]).bits).size

    with time_limit(SECONDS):
        inputs = [other for kin, other in pool(fmt, case) if kin == 0 and other["M"] and other["N"]]
        for other in sorted(inputs, key=different, reverse=True)[:TELLING]:
            bits = run(other)
            words = "" if bits is None else by_line(fmt, other, fmt.words(other), bits)
            if words:
                return words
    return ""


def _products(harness: Harness, checked: Checked, kernel: Kernel) -> Checked:
    """Products, of which no weight is kept: causes that fit the earlier failures and a few more inputs."""
    from conformance.products import Products
    from conformance.strategies import sample

    verdict = narrowed(checked.verdict, [one.verdict for one in checked.earlier])
    fmt = kernel.viewed(harness.formats[verdict.case.format])
    with time_limit(SECONDS):
        if len(verdict.causes) > 1:
            drawn = sample(fmt, DRAWN, out=verdict.case["out"], route="words")
            names = {cause.name for cause in verdict.causes}
            faults = [fault for fault in fmt.faults if fault.name in names]
            for case in sorted(drawn, key=lambda case: -_different(fmt, case, faults))[:TELLING]:
                verdict = narrowed(verdict, [Products(harness).judge(case).verdict])
    return _with(checked, verdict)


def _different(fmt: Format, case: Case, faults: Sequence[Fault]) -> int:
    """How many different weights the faults make of a case."""
    weight = fmt.words(case)
    ctx = Context(weight, fmt.unpack(weight), DTYPES[case["out"]])
    decoded = (fault.decode(ctx) for fault in faults)
    return len({None if bits is None else bits.tobytes() for bits in decoded})


def look_into(fmt: Format, checked: Checked, run: Run | None = None) -> Checked:
    """The same failure with its causes looked into; the verdict's kind never changes.

    Args:
        run: calls the kernel on a case of the words route; None: only pairs of faults are tried.
    """
    verdict, execution, weight = checked.verdict, checked.execution, checked.weight
    if verdict.kind not in VALUES or weight is None or execution is None or execution.bits is None:
        return checked
    dtype = DTYPES[verdict.case["out"]]
    ctx = context(fmt, weight, dtype, verdict.device)
    got, want = execution.bits, round_to(ctx.model.values(), dtype)
    wrong = wrong_in(got, want, ctx)
    if not wrong.any():
        return checked
    measured = measure(got, want, dtype, axes=labels(fmt, weight), steps=even_steps(ctx.model))
    found = candidates(got, wrong, ctx, fmt.faults)
    explained = bool(found) and found[0][1].whole
    reading = measured.sentence(explained)
    if not explained and measured.reading.kind in SILENT:
        reading += larger_reading(fmt, checked.earlier) or _asked_reading(fmt, verdict.case, run)
    verdict = dataclasses.replace(verdict, measures=measured.to_json(), reading=reading)
    note = ""
    if not found:
        several = pairs(got, wrong, ctx, fmt.faults)
        if several is None:
            note = "pairs of faults were not tried on a weight of this size"
        else:
            found = tuple((pair, Fit(0)) for pair in itertools.islice(several, MOST))
    if not found:
        cause = structure(got, want, wrong, ctx)
        if note:
            cause = dataclasses.replace(cause, text=f"{cause.text}; {note}")
        return _with(checked, dataclasses.replace(verdict, causes=(cause,)))
    if run is None:
        return _with(checked, _named(verdict, found, got, want, wrong, ctx))
    before = hold_to(fmt, found, checked.earlier)
    found = before.left
    outcome = None
    with time_limit(SECONDS) as limit:

        def in_time(case: Case) -> np.ndarray | None:
            output = run(case)
            if limit.reached:
                # The harness took the exception for one of the kernel's.
                raise TimeUp
            return output

        left = [candidate for candidate, _ in found]
        if not before.proven:
            outcome = tell_apart(fmt, verdict.case, left, in_time, verdict.device)
        elif against := denied(fmt, verdict.case, left, in_time, verdict.device):
            outcome = refuted(left, before.words, against)
    if outcome is None and before.proven:
        named = _named(verdict, found, got, want, wrong, ctx)
        return _with(checked, dataclasses.replace(named, apart=before.words))
    if outcome is None:
        late = _named(verdict, found, got, want, wrong, ctx)
        words = f"not tried to the end: {SECONDS} s were over"
        words = f"{before.words}; further inputs {words}" if before.words else words
        return _with(checked, dataclasses.replace(late, apart=words))
    both = _pairs_on_both(outcome, got, wrong, ctx, fmt.faults) if outcome.refuted else ()
    if both and outcome.against is not None:
        pair = _named(verdict, both, got, want, wrong, ctx)
        words = f"holds on {outcome.against.case.id} too, where no single fault does"
        return _with(checked, dataclasses.replace(pair, apart=words))
    kept = tuple((candidate, how) for candidate, how in found if candidate in outcome.left)
    named = _named(verdict, kept, got, want, wrong, ctx)
    causes = named.causes
    # One that fits only in part here and shows nowhere else, or that an input like this one shows to be
    # no fault of the kernel, is a coincidence.
    partly = outcome.confirmed is False and not found[0][1].whole
    if outcome.refuted or outcome.alone or partly:
        names = ", ".join(candidate.name for candidate, _ in found[:4])
        unknown = structure(got, want, wrong, ctx)
        unknown = dataclasses.replace(unknown, text=f"{unknown.text}; fits this case alone: {names}")
        causes = (unknown,)
    return _with(checked, dataclasses.replace(named, causes=causes, apart=outcome.words or before.words))


def _pairs_on_both(
    outcome: Outcome, got: np.ndarray, wrong: np.ndarray, ctx: Context, faults: tuple[Fault, ...]
) -> tuple[tuple[Candidate, Fit], ...]:
    """Pairs that give the output of the input that refuted the single faults, and the failing case's."""
    other = outcome.against
    several = None if other is None else pairs(other.got, other.wrong, other.ctx, faults)
    fitting = ((pair, fit(pair.decode, got, wrong, ctx)) for pair in several or ())
    whole = ((pair, how) for pair, how in fitting if how is not None and how.whole)
    return tuple(itertools.islice(whole, MOST))


def _named(
    verdict: Verdict,
    found: tuple[tuple[Candidate, Fit], ...],
    got: np.ndarray,
    want: np.ndarray,
    wrong: np.ndarray,
    ctx: Context,
) -> Verdict:
    causes: tuple[Cause, ...] = tuple(candidate.proven(proof(how, wrong)) for candidate, how in found)
    if not found[0][1].whole:
        causes += (structure(got, want, wrong, ctx),)
    return dataclasses.replace(verdict, causes=causes)


def _with(checked: Checked, verdict: Verdict) -> Checked:
    return dataclasses.replace(checked, verdict=verdict)
