"""Turn an execution and the references' answers into a verdict: three votes, who is wrong."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from conformance.allowed import both, leeway, right, without_silent
from conformance.bits import is_finite, show
from conformance.case import Case
from conformance.compare import Comparison, agreement, class_words, compare
from conformance.context import context
from conformance.diagnose import explain
from conformance.execution import Execution
from conformance.faults import Context
from conformance.registry import Format
from conformance.verdict import Cause, Located, Verdict
from oracles.spec import Model
from oracles.spec.rounding import round_to

SHOWN = 4


class _Once:
    """A function without arguments, called when first asked for its result."""

    def __init__(self, function: Callable[[], np.ndarray]) -> None:
        self._function = function
        self._result: np.ndarray | None = None

    def __call__(self) -> np.ndarray:
        if self._result is None:
            self._result = self._function()
        return self._result


class Exact(NamedTuple):
    """The exact model of a weight, and the bits of its values in the output dtype."""

    model: Model
    bits: np.ndarray


def exact(fmt: Format, weight: object, dtype: torch.dtype) -> Exact:
    """What the spec says of a weight."""
    model = fmt.unpack(weight)
    return Exact(model, round_to(model.values(), dtype))


@dataclasses.dataclass(frozen=True)
class Answer:
    """What an oracle said of a weight.

    Attributes:
        oracle: its name.
        bits: output, or None when it has none.
        exact: whether they are known to be the exact model's, each NaN being as good as another.
        note: why there is none (missing, declined), or empty.
        breach: how its result is not a result of this format (another shape), or empty.
        excused: id of the known fault that covers and explains what is wrong, or empty.
        lost: what the device answers after it raised, if that is the end of it, or empty.
    """

    oracle: str
    bits: np.ndarray | None = None
    exact: bool = False
    note: str = ""
    breach: str = ""
    excused: str = ""
    lost: str = ""


@dataclasses.dataclass(frozen=True)
class Judge:
    """Rules of a run: the format, the kernel's name and device, and the gate it must pass."""

    fmt: Format
    kernel: str
    device: str
    gate: str = "exact"

    def __call__(
        self,
        case: Case,
        weight: object,
        dtype: torch.dtype,
        execution: Execution,
        answers: Sequence[Answer],
        known: Exact | None = None,
    ) -> Verdict:
        """Verdict of one case. Nothing is run here and nothing is raised. ``known``: what the spec says of
        the weight, where that was asked before."""
        model, want = exact(self.fmt, weight, dtype) if known is None else known
        steps = _Once(model.steps)
        near = {
            answer.oracle: leeway(
                self.fmt.allowance, model, answer.oracle, self.device, answer.bits, want, dtype
            )
            for answer in answers
            if answer.bits is not None
        }
        oracle_votes = tuple(
            agreement(answer.oracle, want.shape)
            if answer.exact
            else compare(answer.oracle, answer.bits, want, dtype, steps, right(near[answer.oracle]))
            for answer in answers
            if answer.bits is not None
        )
        notes = tuple(f"{answer.oracle}: {answer.note}" for answer in answers if answer.note)
        notes += execution.remarks.notes

        def verdict(kind: str, summary: str, **more: object) -> Verdict:
            fields = {"oracle_votes": oracle_votes, "notes": notes, "elements": want.size, **more}
            if kind == "EXACT" and execution.remarks.relaxed:
                kind, summary = "WITHIN", f"0 ULP, as registered: {execution.remarks.relaxed}"
            if execution.remarks.summary:
                summary = f"{summary}; {execution.remarks.summary}"
            return Verdict(kind, case, self.kernel, self.device, summary, **fields)  # type: ignore[arg-type]

        lost = next((answer for answer in answers if answer.lost), None)
        if lost is not None:
            text = f"the oracle {lost.oracle} ended the CUDA context: {lost.note}"
            return verdict("CRASH_WORKER", text, elements=0)
        early = self._without_values(execution, want, weight, dtype, verdict)
        if early is not None:
            return early
        got = execution.bits
        assert got is not None
        if want.size == 0:
            return verdict("VACUOUS", "no element was compared")
        ctx = context(self.fmt, weight, dtype, self.device, model)
        close = leeway(self.fmt.allowance, model, "kernel", self.device, got, want, dtype)
        spec = compare("spec", got, want, dtype, steps, right(close))
        with_spec = {vote.reference: vote for vote in oracle_votes if vote.exact and spec.exact}
        votes = (
            *(
                # What has the spec's bits, as the kernel has, has the kernel's.
                with_spec.get(a.oracle)
                or compare(a.oracle, got, a.bits, dtype, steps, both(close, near[a.oracle]))
                for a in answers
                if a.bits is not None
            ),
            spec,
        )
        found = self._count_votes(votes, oracle_votes, answers, got, want, ctx, verdict)
        return _with_reads(found if close is None else without_silent(found, close.silent), execution)

    def _without_values(
        self,
        execution: Execution,
        want: np.ndarray,
        weight: object,
        dtype: torch.dtype,
        verdict: Callable[..., Verdict],
    ) -> Verdict | None:
        """Verdicts that need no comparison of values."""
        if execution.stray:
            return verdict("OOB_WRITE", "; ".join(execution.stray))
        if execution.mutated:
            return verdict("INPUT_MUTATED", "; ".join(execution.mutated))
        if execution.unsupported is not None:
            return verdict("UNSUPPORTED", execution.unsupported, elements=0)
        if execution.crash is not None:
            kind = "CRASH_COMPILE" if execution.crash == "compile" else "CRASH_LAUNCH"
            end = "; the CUDA context did not survive it" if execution.lost else ""
            return verdict(kind, f"the kernel raised {execution.error}{end}", elements=0)
        if execution.contract is not None:
            text = f"wrong result: {execution.contract}"
            return verdict("MISMATCH", text, elements=0, causes=execution.causes)
        for kind, mask, words in (
            ("UNWRITTEN", execution.unwritten, "elements were never written"),
            ("NONDETERMINISTIC", execution.unstable, "elements differ between two runs on the same input"),
        ):
            if mask is not None:
                assert execution.bits is not None
                return verdict(
                    kind,
                    f"{int(mask.sum())} of {mask.size} {words}",
                    located=self._locate(mask, execution.bits, want, weight, dtype),
                )
        return None

    def _count_votes(
        self,
        votes: tuple[Comparison, ...],
        oracle_votes: tuple[Comparison, ...],
        answers: Sequence[Answer],
        got: np.ndarray,
        want: np.ndarray,
        ctx: Context,
        verdict: Callable[..., Verdict],
    ) -> Verdict:
        spec = votes[-1]
        # What is exact with the spec on either side is in ``votes`` and in ``oracle_votes``.
        if all(vote.exact for vote in votes) and not any(answer.breach for answer in answers):
            references = " = ".join(vote.reference for vote in votes)
            return verdict("EXACT", f"kernel = {references}", votes=votes)
        allowed = {r.oracle: r.ulp for r in self.fmt.relaxations if r.dtype is ctx.dtype}
        agrees = {vote.reference: vote.passes(self.gate, allowed.get(vote.reference)) for vote in votes}
        # An oracle that a known fault covers has no vote on this case.
        excused = {answer.oracle: answer.excused for answer in answers}
        breaches = [answer for answer in answers if answer.breach]
        dissent = [vote for vote in oracle_votes if not vote.exact and vote.n_wrong]
        faulty = [vote for vote in dissent if not vote.passes("exact", allowed.get(vote.reference))]
        known = [vote for vote in faulty if excused.get(vote.reference)]
        unknown = [vote for vote in faulty if not excused.get(vote.reference)]
        loyal = [vote for vote in oracle_votes if vote not in faulty]

        if agrees["spec"]:
            rest = "spec" + "".join(f" = {vote.reference}" for vote in loyal)
            faults = [
                f"{vote.reference} differs in {vote.n_wrong} of {vote.n} elements from kernel = {rest}"
                for vote in unknown
            ] + [f"{a.oracle} {a.breach}, not a result of this case" for a in breaches if not a.excused]
            if faults:
                causes = tuple(_positions(vote) for vote in unknown)
                return verdict("ORACLE_FAULT", "; ".join(faults), votes=votes, causes=causes)
            excuses = [f"{vote.reference} is wrong here: {excused[vote.reference]}" for vote in known]
            excuses += [f"{a.oracle} {a.breach}: {a.excused}" for a in breaches]
            if excuses and spec.agrees:
                return verdict("KNOWN_FAULT", "; ".join(excuses), votes=votes)
            return verdict("WITHIN", self._within(votes), votes=votes)

        kind = "NONFINITE_CLASS" if spec.classes else "MISMATCH"
        located = self._locate(spec.wrong, got, want, ctx.weight, ctx.dtype)
        causes = explain(got, want, spec.wrong, ctx, self.fmt.faults)
        count = f"{spec.n_wrong} of {spec.n} elements differ"
        if spec.max_ulp or not spec.classes:
            count += f", would need {spec.max_ulp} ULP"
        if spec.classes:
            finite = is_finite(got, ctx.dtype) & is_finite(want, ctx.dtype)
            at = np.nonzero(spec.wrong & ~finite)
            if at[0].size:
                count += f"; {class_words(int(got[at][0]), int(want[at][0]), ctx.dtype)}"
        siding = [
            vote.reference
            for vote in oracle_votes
            if agrees[vote.reference] and not excused.get(vote.reference)
        ]
        # One that a relaxation lets agree with both sides says nothing of what they differ in.
        with_spec = {vote.reference for vote in loyal}
        neither = [name for name in siding if name in with_spec]
        siding = [name for name in siding if name not in neither]
        loyal = [vote for vote in loyal if vote.reference not in neither]
        if siding and loyal:
            kind, words = (
                "SPLIT",
                f"kernel = {', '.join(siding)} against spec = {loyal[0].reference}: {count}",
            )
        elif siding:
            kind = "SPLIT"
            words = f"spec disputed: kernel = {', '.join(siding)}, the spec model differs: {count}"
        elif unknown:
            kind = "SPLIT"
            words = f"three ways: kernel, {unknown[0].reference} and spec all differ: {count}"
        else:
            right = "spec" + "".join(f" = {vote.reference}" for vote in loyal)
            words = f"kernel is wrong ({right}): {count}"
        if neither:
            words += f"; {', '.join(neither)} says nothing of it, as registered: {self._whys(neither)}"
        return verdict(
            kind,
            words,
            votes=votes,
            located=located,
            causes=causes,
        )

    def _within(self, votes: tuple[Comparison, ...]) -> str:
        needed = max(vote.max_ulp for vote in votes)
        if self.gate != "exact":
            return f"within the {self.gate} gate that was asked for; {needed} ULP needed to be exact"
        bounded = [vote for vote in votes if vote.bounded]
        if bounded and self.fmt.allowance is not None:
            alike = [vote.reference for vote in reversed(votes) if vote.exact]
            words = f"kernel = {' = '.join(alike)}; " if alike else ""
            words += ", ".join(f"{vote.max_abs:.3g} from {vote.reference}" for vote in bounded)
            return f"{words}, within the proven bound: {self.fmt.allowance.why}"
        inexact = [vote.reference for vote in votes if not vote.exact]
        return f"{needed} ULP, as registered: {self._whys(inexact)}"

    def _whys(self, oracles: Sequence[str]) -> str:
        """Reasons of the relaxations for these oracles, and of the bound, each once."""
        whys = [r.why for r in self.fmt.relaxations if r.oracle in oracles]
        if not whys and self.fmt.allowance is not None:
            whys = [self.fmt.allowance.why]
        return "; ".join(dict.fromkeys(whys))

    def _locate(
        self, mask: np.ndarray, got: np.ndarray, want: np.ndarray, weight: object, dtype: torch.dtype
    ) -> tuple[Located, ...]:
        flat = np.flatnonzero(mask.reshape(-1))[:SHOWN]
        found = []
        for position in flat:
            index = tuple(int(i) for i in np.unravel_index(int(position), mask.shape))
            found.append(
                Located(
                    index,
                    self.fmt.locate(weight, index),
                    show(int(got[index]), dtype),
                    show(int(want[index]), dtype),
                )
            )
        return tuple(found)


def _with_reads(verdict: Verdict, execution: Execution) -> Verdict:
    """A wrong value says more than a stray read, which may be its cause: then it is mentioned."""
    if not execution.strayed:
        return verdict
    text = "; ".join(execution.strayed)
    if verdict.failed:
        return dataclasses.replace(verdict, summary=f"{verdict.summary}; also {text}")
    return dataclasses.replace(verdict, kind="OOB_READ", summary=f"right values, but {text}")


def _positions(vote: Comparison) -> Cause:
    flat = np.flatnonzero(vote.wrong.reshape(-1))
    first = [int(i) for i in np.unravel_index(int(flat[0]), vote.wrong.shape)]
    return Cause(
        "upstream", f"{vote.reference} first differs at index {first}, by {vote.max_ulp} ULP at most"
    )
