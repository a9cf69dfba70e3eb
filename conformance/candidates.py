"""Faults as explanations of one output: alone, and two at a time. Raises nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np

from conformance.bits import same
from conformance.faults import Context, Fault
from conformance.faults.rounding import FAULTS as ROUNDING
from conformance.verdict import Cause
from oracles.spec import Model

# Decoding a pair costs about what decoding the weight does. A failing case is small once it is
# shrunk; for a whole layer several thousand pairs would take minutes, so they are not tried.
PAIR_WORK = 40_000_000


@dataclasses.dataclass(frozen=True)
class Candidate:
    """An explanation that can be asked for its output on any weight.

    Attributes:
        name: the fault's name, or two joined by ``+``.
        decode: output bit patterns under it, or None where it does not apply.
        cause: the words for it, without the proof.
    """

    name: str
    decode: Callable[[Context], np.ndarray | None]
    cause: Cause

    def proven(self, proof: str) -> Cause:
        return dataclasses.replace(self.cause, text=f"{self.cause.text} ({proof})")


@dataclasses.dataclass(frozen=True)
class Fit:
    """How far a prediction agrees with an output.

    Attributes:
        elsewhere: elements that are right although the prediction is wrong there. 0 for a
            prediction that gives the whole output.
    """

    elsewhere: int

    @property
    def whole(self) -> bool:
        return self.elsewhere == 0


def fit(predicted: np.ndarray | None, got: np.ndarray, wrong: np.ndarray, ctx: Context) -> Fit | None:
    """None unless the prediction has the output's bits on every wrong element."""
    if predicted is None or predicted.shape != got.shape:
        return None
    alike = same(predicted, got, ctx.dtype)
    if not alike[wrong].all():
        return None
    return Fit(int(np.count_nonzero(~alike)))


def single(fault: Fault) -> Candidate:
    return Candidate(
        fault.name,
        fault.decode,
        Cause(fault.name, fault.arithmetic, fault.effect, fault.fix, fault.links),
    )


@dataclasses.dataclass(frozen=True)
class _Recorder(Context):
    """A context that keeps the distorted model which a decoder decodes."""

    seen: list[tuple[Model, np.ndarray]] = dataclasses.field(default_factory=list)

    def bits(self, model: Model) -> np.ndarray:
        result = super().bits(model)
        self.seen.append((model, result))
        return result


def _distorted(fault: Fault, ctx: Context) -> Model | None:
    """The model that a fault decodes, or None when its output is not that of a model."""
    recorder = _Recorder(ctx.weight, ctx.model, ctx.dtype)
    result = fault.decode(recorder)
    if result is None or len(recorder.seen) != 1 or recorder.seen[0][1] is not result:
        return None
    return recorder.seen[0][0]


def _after(first: Fault, second: Fault) -> Callable[[Context], np.ndarray | None]:
    """``second`` on the model that ``first`` leaves."""

    def decode(ctx: Context) -> np.ndarray | None:
        model = _distorted(first, ctx)
        return None if model is None else _on(second, model, ctx)

    return decode


def _on(second: Fault, model: Model, ctx: Context) -> np.ndarray | None:
    # A model of another kind has values but not the fields that decoders change; the faults of the
    # output rounding need no more than values.
    if type(model) is not type(ctx.model) and second not in ROUNDING:
        return None
    return second.decode(Context(ctx.weight, model, ctx.dtype))


def _pair(first: Fault, second: Fault) -> Candidate:
    cause = Cause(
        f"{first.name} + {second.name}",
        f"two faults at once: {first.arithmetic}; and {second.arithmetic}",
        f"{first.effect}; {second.effect}",
        f"{first.fix}; {second.fix}",
        (*first.links, *second.links),
    )
    return Candidate(cause.name, _after(first, second), cause)


def pairs(
    got: np.ndarray, wrong: np.ndarray, ctx: Context, faults: tuple[Fault, ...]
) -> Iterator[Candidate] | None:
    """Pairs that give the whole output, each once; None when there are too many to try.

    Only the whole output counts: of a few thousand pairs, some agree with a few wrong elements
    by chance.
    """
    if len(faults) ** 2 * max(got.size, 500) > PAIR_WORK:
        return None
    return _fitting_pairs(got, wrong, ctx, faults)


def _fitting_pairs(
    got: np.ndarray, wrong: np.ndarray, ctx: Context, faults: tuple[Fault, ...]
) -> Iterator[Candidate]:
    found: set[frozenset[str]] = set()
    for first in faults:
        model = _distorted(first, ctx)
        if model is None:
            continue
        for second in faults:
            names = frozenset((first.name, second.name))
            if second is first or names in found:
                continue
            how = fit(_on(second, model, ctx), got, wrong, ctx)
            if how is not None and how.whole:
                found.add(names)
                yield _pair(first, second)
