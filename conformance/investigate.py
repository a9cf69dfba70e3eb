"""The second look at a failure: measures, pairs of faults, and inputs that tell the causes apart.

Too dear for every case that shrinking tries, so it is done once, on the case that is reported.
"""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np

from conformance.apart import Outcome, Run, tell_apart
from conformance.axes import even_steps, labels
from conformance.bits import DTYPES, same
from conformance.candidates import Candidate, Fit, fit, pairs
from conformance.case import Case
from conformance.deadline import TimeUp, time_limit
from conformance.diagnose import candidates, proof, structure
from conformance.faults import Context, Fault
from conformance.harness import Checked, Harness
from conformance.measures import measure
from conformance.registry import Format, Kernel
from conformance.verdict import Cause, Verdict
from oracles.spec.rounding import round_to

VALUES = ("MISMATCH", "NONFINITE_CLASS", "SPLIT")
# Of pairs; beyond that a name says nothing any more.
MOST = 12
# For the inputs that tell causes apart: a report must not wait for a kernel that hangs on one.
SECONDS = 10


def investigate(harness: Harness, checked: Checked, kernel: Kernel) -> Checked:
    """The same failure with its causes looked into, calling ``kernel`` again on further inputs."""
    quiet = dataclasses.replace(harness, oracles=frozenset(), writer=None)

    def run(case: Case) -> np.ndarray | None:
        again = quiet.judge(case, kernel)
        return None if again.execution is None else again.execution.bits

    return look_into(kernel.viewed(harness.formats[checked.verdict.case.format]), checked, run)


def look_into(fmt: Format, checked: Checked, run: Run | None = None) -> Checked:
    """The same failure with its causes looked into; the verdict's kind never changes.

    Args:
        run: calls the kernel on a case of the words route; None: only pairs of faults are tried.
    """
    verdict, execution, weight = checked.verdict, checked.execution, checked.weight
    if verdict.kind not in VALUES or weight is None or execution is None or execution.bits is None:
        return checked
    dtype = DTYPES[verdict.case["out"]]
    ctx = Context(weight, fmt.unpack(weight), dtype)
    got, want = execution.bits, round_to(ctx.model.values(), dtype)
    wrong = ~same(got, want, dtype)
    if not wrong.any():
        return checked
    measured = measure(got, want, dtype, axes=labels(fmt, weight), steps=even_steps(ctx.model))
    found = candidates(got, wrong, ctx, fmt.faults)
    explained = bool(found) and found[0][1].whole
    verdict = dataclasses.replace(verdict, measures=measured.to_json(), reading=measured.sentence(explained))
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
    outcome = None
    with time_limit(SECONDS) as limit:

        def in_time(case: Case) -> np.ndarray | None:
            output = run(case)
            if limit.reached:
                # The harness took the exception for one of the kernel's.
                raise TimeUp
            return output

        outcome = tell_apart(fmt, verdict.case, [candidate for candidate, _ in found], in_time)
    if outcome is None:
        late = _named(verdict, found, got, want, wrong, ctx)
        words = f"not tried to the end: {SECONDS} s were over"
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
    return _with(checked, dataclasses.replace(named, causes=causes, apart=outcome.words))


def _pairs_on_both(
    outcome: Outcome, got: np.ndarray, wrong: np.ndarray, ctx: Context, faults: tuple[Fault, ...]
) -> tuple[tuple[Candidate, Fit], ...]:
    """Pairs that give the output of the input that refuted the single faults, and the failing case's."""
    other = outcome.against
    several = None if other is None else pairs(other.got, other.wrong, other.ctx, faults)
    fitting = ((pair, fit(pair.decode(ctx), got, wrong, ctx)) for pair in several or ())
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
