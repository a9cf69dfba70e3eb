"""Faults as explanations of one output: alone, and two at a time. Raises nothing."""

from __future__ import annotations

import dataclasses
import functools
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


Decode = Callable[[Context], "np.ndarray | None"]


@dataclasses.dataclass(frozen=True)
class Predicted:
    """What a decoder gives: bits, or None where it does not apply, and the distorted model that they are the
    output of, if they are."""

    bits: np.ndarray | None
    model: Model | None = None

    def may_be(self, got: np.ndarray, ctx: Context) -> np.ndarray:
        """bool mask: where ``got`` has these bits, or others that the model's computation may give."""
        assert self.bits is not None
        alike = same(self.bits, got, ctx.dtype)
        if ctx.may is None or self.model is None or alike.all():
            return alike
        return alike | ctx.may(self.model, got)


def predict(decode: Decode, ctx: Context) -> Predicted:
    recorder = _Recorder(ctx.weight, ctx.model, ctx.dtype, ctx.may)
    bits = decode(recorder)
    return Predicted(bits, None if ctx.may is None else recorder.model_of(bits))


def fit(decode: Decode, got: np.ndarray, wrong: np.ndarray, ctx: Context) -> Fit | None:
    """How a decoder's output fits; see :func:`match`."""
    return match(predict(decode, ctx), got, wrong, ctx)


def match(predicted: Predicted, got: np.ndarray, wrong: np.ndarray, ctx: Context) -> Fit | None:
    """None unless the prediction has the output's bits on every wrong element; where a format has a proven
    bound, unless the output is within that of the distorted model."""
    if predicted.bits is None or predicted.bits.shape != got.shape:
        return None
    alike = predicted.may_be(got, ctx)
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

    def model_of(self, result: np.ndarray | None) -> Model | None:
        """The model that gave ``result``, or None when it is not the output of one."""
        if result is None or len(self.seen) != 1 or self.seen[0][1] is not result:
            return None
        return self.seen[0][0]

    def bits(self, model: Model) -> np.ndarray:
        result = super().bits(model)
        self.seen.append((model, result))
        return result


def _distorted(fault: Fault, ctx: Context) -> Model | None:
    """The model that a fault decodes, or None when its output is not that of a model."""
    recorder = _Recorder(ctx.weight, ctx.model, ctx.dtype)
    return recorder.model_of(fault.decode(recorder))


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
    return second.decode(dataclasses.replace(ctx, model=model))


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
            how = fit(functools.partial(_on, second, model), got, wrong, ctx)
            if how is not None and how.whole:
                found.add(names)
                yield _pair(first, second)
