"""Tell causes apart that fit one failing case equally, by running the kernel on another input.

A failing case is shrunk until hardly anything is left to tell two causes by: with two groups,
"the group before" is also "the first group". So an input is looked for on which they predict
different outputs, and the kernel is called on it. One cause alone is put to the same proof.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from conformance.bits import DTYPES
from conformance.candidates import Candidate, Predicted, match, predict
from conformance.case import Case
from conformance.context import context, wrong_in
from conformance.dims import Choice, Text
from conformance.earlier import unlike
from conformance.errors import UsageError
from conformance.faults import Context
from conformance.registry import Format
from oracles.spec.rounding import round_to

# Inputs looked at (nothing is run on them), and those that the kernel is run on.
DRAWN = 40
RUNS = 3
# The dimension of a product that often chooses another kernel.
TOKENS = "M"
# Different right values below which an input says little: zeros, one bit set, a handful of elements.
LEAST = 8

# Output bit patterns of the kernel on a case, or None where it gave no values.
Run = Callable[[Case], np.ndarray | None]


@dataclasses.dataclass(frozen=True)
class Against:
    """An input that speaks against the candidates: its case, the kernel's output and where it is wrong."""

    case: Case
    ctx: Context
    got: np.ndarray
    wrong: np.ndarray


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What the second inputs said.

    Attributes:
        left: candidates that hold on them; all of those given where nothing could be said.
        words: one sentence for the report, or empty.
        refuted: no candidate holds on any of the inputs that the kernel fails on.
        confirmed: one of them holds on such an input; None where there was none to run.
        alone: none was confirmed, and the kernel is right on an input of the failing case's own kind on
            which every candidate is wrong.
        against: the first input that no candidate holds on.
    """

    left: tuple[Candidate, ...]
    words: str
    refuted: bool = False
    confirmed: bool | None = None
    alone: bool = False
    against: Against | None = None


@dataclasses.dataclass(frozen=True)
class _Input:
    """A case and what each candidate predicts for it; ``classes`` numbers equal predictions, 0 is
    the right output; ``kin`` is 0 for a case of the failing one's own kind."""

    kin: int
    case: Case
    ctx: Context
    right: np.ndarray
    predicted: tuple[Predicted, ...]
    classes: tuple[int, ...]

    @property
    def special(self) -> bool:
        return np.unique(self.right).size < LEAST


def pool(fmt: Format, case: Case) -> Iterator[tuple[int, Case]]:
    """Cases near the failing one first: those of the same kind, then any of the same output dtype, and
    the fixed ones with more groups than are drawn."""
    # Only here: replay looks for pairs of faults and works without Hypothesis.
    from conformance.strategies import sample

    fixed = {
        dim.name: value
        for dim, value in zip(case.dims, case.values, strict=True)
        if isinstance(dim, Choice | Text)
    }
    fixed["route"] = "words"
    common = {name: fixed[name] for name in ("out", "route", "layout", "dest", "tile")}
    if _tokens(case) == 1:
        # One token often has a kernel of its own: what is right for more says nothing of it.
        fixed[TOKENS] = common[TOKENS] = 1
    for kin, held in enumerate((fixed, common)):
        try:
            yield from ((kin, drawn) for drawn in sample(fmt, DRAWN, **held) if _another(drawn, case))
        except UsageError:
            continue
    more = (fmt.parse(text) for text in (*fmt.large, *fmt.tile_cases))
    others = (one.replace(**common) for one in more)
    yield from ((1, one) for one in others if _another(one, case))


def _another(one: Case, case: Case) -> bool:
    """Not the failing case itself, which proves nothing, and through the same code."""
    return one != case and (_tokens(one) == 1) == (_tokens(case) == 1)


def _tokens(case: Case) -> int | None:
    return next((case[dim.name] for dim in case.dims if dim.name == TOKENS), None)


def _look(fmt: Format, kin: int, case: Case, candidates: Sequence[Candidate], device: str) -> _Input | None:
    try:
        weight = fmt.words(case)
        weight.validate()
    except (UsageError, TypeError, ValueError, IndexError):
        return None
    dtype = DTYPES[case["out"]]
    ctx = context(fmt, weight, dtype, device)
    right = round_to(ctx.model.values(), dtype)
    if not right.size:
        return None
    # A fault that does not apply to an input leaves it right.
    outputs = [Predicted(right, ctx.model)]
    predicted, classes = [], []
    for candidate in candidates:
        found = predict(candidate.decode, ctx)
        if found.bits is None or found.bits.shape != right.shape:
            found = outputs[0]
        bits = right if found.bits is None else found.bits
        number = next((i for i, known in enumerate(outputs) if known.may_be(bits, ctx).all()), len(outputs))
        if number == len(outputs):
            outputs.append(found)
        predicted.append(found)
        classes.append(number)
    return _Input(kin, case, ctx, right, tuple(predicted), tuple(classes))


def tell_apart(fmt: Format, case: Case, candidates: Sequence[Candidate], run: Run, device: str) -> Outcome:
    """Which of the candidates hold on other inputs as well.

    Args:
        case: the failing case that all of them fit.
        run: calls the kernel again; its output on a case, or None.
        device: where it runs.

    Raises nothing but what ``run`` raises.
    """
    left = tuple(candidates)
    inputs = list(_inputs(fmt, case, left, device))
    held: dict[str, int] = {candidate.name: 0 for candidate in left}
    said: list[str] = []
    failed = largest = 0
    alone = False
    against: Against | None = None
    for _ in range(RUNS):
        known = [candidates.index(candidate) for candidate in left]

        def classes(one: _Input, known: list[int] = known) -> tuple[int, ...]:
            return tuple(one.classes[i] for i in known)

        # Most of all, different predictions; then all of them wrong somewhere; then an input that is
        # no special case, which everything fits; then one like the failing one; then a small one.
        inputs.sort(
            key=lambda i: (-len(set(classes(i))), classes(i).count(0), i.special, i.kin, i.right.size)
        )
        if not inputs or (failed and len(set(classes(inputs[0]))) == 1):
            break
        chosen = inputs.pop(0)
        got = run(chosen.case)
        if got is None or got.shape != chosen.right.shape:
            continue
        wrong = wrong_in(got, chosen.right, chosen.ctx)
        failed += bool(wrong.any())
        if wrong.any():
            largest = max(largest, chosen.right.size)
        fits = {
            i: how for i in known if (how := match(chosen.predicted[i], got, wrong, chosen.ctx)) is not None
        }
        if not fits:
            none = "it does not hold" if len(known) == 1 else f"none of the {len(known)} holds"
            said.append(f"{none} on {chosen.case.id}")
            against = against or Against(chosen.case, chosen.ctx, got, wrong)
            continue
        fewest = min(how.elsewhere for how in fits.values())
        left = tuple(candidates[i] for i, how in fits.items() if how.elsewhere == fewest)
        for candidate in left:
            held[candidate.name] += bool(wrong.any())
        if wrong.any():
            said = [f"holds on {chosen.case.id} ({int(wrong.sum())} of {wrong.size} elements wrong)"]
        elif fewest:
            alone |= chosen.kin == 0
            said.append(f"the kernel is right on {chosen.case.id}, where this would show")
        else:
            said.append(f"the kernel is right on {chosen.case.id}")
    sure = tuple(candidate for candidate in left if held[candidate.name])
    if sure:
        rest = (one for one in inputs if one.kin == 0 and one.right.size > largest)
        larger = _denied([candidates.index(candidate) for candidate in sure], rest, run)
        if larger is not None:
            return refuted(candidates, said[-1], larger)
    outcome = _outcome(candidates, left, held, said, failed)
    return dataclasses.replace(outcome, against=against, alone=alone and not any(held.values()))


def refuted(candidates: Sequence[Candidate], held: str, against: Against) -> Outcome:
    """The outcome for candidates that held on small inputs, as the words say, and not on a large one."""
    words = f"another fault, or more than one: {held}, but not on {against.case.id}"
    return Outcome(tuple(candidates), words, refuted=True, against=against)


def denied(fmt: Format, case: Case, candidates: Sequence[Candidate], run: Run, device: str) -> Against | None:
    """The largest input of the failing case's kind, if the kernel is wrong on it in another way than all of
    the candidates; arguments as of :func:`tell_apart`.

    With two or three groups the wrong group's index has few values, and a fault that is in no catalogue is
    likely to have those of one that is.
    """
    return _denied(range(len(candidates)), _inputs(fmt, case, candidates, device, most=0), run)


def _inputs(
    fmt: Format, case: Case, candidates: Sequence[Candidate], device: str, most: int = 1
) -> Iterator[_Input]:
    """Inputs on which a candidate shows; ``most``: the largest ``kin``, after which there are others."""
    for kin, drawn in pool(fmt, case):
        if kin > most:
            return
        found = _look(fmt, kin, drawn, candidates, device)
        if found is not None and any(found.classes):
            yield found


def _denied(known: Sequence[int], inputs: Iterable[_Input], run: Run) -> Against | None:
    telling = [one for one in inputs if not one.special and all(one.classes[i] for i in known)]
    if not telling:
        return None
    chosen = max(telling, key=lambda one: one.right.size)
    got = run(chosen.case)
    if got is None or got.shape != chosen.right.shape:
        return None
    wrong = wrong_in(got, chosen.right, chosen.ctx)
    fits = any(match(chosen.predicted[i], got, wrong, chosen.ctx) is not None for i in known)
    return None if fits or not wrong.any() else Against(chosen.case, chosen.ctx, got, wrong)


def _outcome(
    candidates: Sequence[Candidate],
    left: tuple[Candidate, ...],
    held: dict[str, int],
    said: list[str],
    failed: int,
) -> Outcome:
    gone = [candidate.name for candidate in candidates if candidate not in left]
    if failed and not any(held.values()):
        return Outcome(tuple(candidates), f"another fault, or more than one: {said[-1]}", refuted=True)
    words = said[-1] if said else ""
    if gone and words:
        words += unlike(gone)
    elif len(left) > 1:
        words = (words + "; " if words else "") + f"no input found that tells the {len(left)} apart"
    return Outcome(left, words, confirmed=any(held.values()) if said else None)
