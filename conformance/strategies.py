"""Hypothesis strategies for cases: the format's dimensions in order, simplest first."""

from __future__ import annotations

import contextlib
import unittest
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.strategies import SearchStrategy

from conformance.case import Case
from conformance.dims import Dim
from conformance.registry import Format

if TYPE_CHECKING:
    from hypothesis.internal.conjecture.data import ConjectureData


# Cases of one of Hypothesis' examples where many are drawn, and bytes that it draws for each of them: what it
# does for an example, and for each choice in it, takes several times as long as making a case.
BATCH = 32
ENTROPY = 12
# Choices left in a case's bytes below which more are drawn: an index is then even to one in so many.
EVEN = 2**16
Choices = tuple[int, ...]


class _Value(SearchStrategy[Any]):
    """A value of a dimension: choices that Hypothesis shrinks together, and then one by one."""

    def __init__(self, dim: Dim, drawn: Mapping[str, Any]) -> None:
        super().__init__()
        self.dim, self.drawn = dim, drawn

    def do_draw(self, data: ConjectureData) -> Any:
        return self.dim.draw(lambda count: data.draw_integer(0, count - 1) if count > 1 else 0, self.drawn)


class Cases(SearchStrategy[Case]):
    """Cases of a format, with the dimensions in ``fixed`` held."""

    def __init__(self, fmt: Format, fixed: Mapping[str, Any]) -> None:
        super().__init__()
        narrowed = {dim.name: dim for dim in fmt.pack_dims} if fixed.get("route") == "pack" else {}
        self.fmt = fmt
        self.fixed = fixed
        self._dims = tuple(narrowed.get(dim.name, dim) for dim in fmt.all_dims if dim.name not in fixed)

    def __repr__(self) -> str:
        held = "".join(f", {name}={value!r}" for name, value in self.fixed.items())
        return f"cases({self.fmt.name}{held})"

    def made(self, value: Callable[[Dim, Mapping[str, Any]], Any]) -> Case:
        """The case whose dimensions are as ``value`` says, of each and those before it."""
        drawn = dict(self.fixed)
        for dim in self._dims:
            drawn[dim.name] = value(dim, drawn)
        return self.fmt.case(**drawn)

    def do_draw(self, data: ConjectureData) -> Case:
        return self.made(lambda dim, drawn: data.draw(_Value(dim, drawn), label=dim.name))  # type: ignore[arg-type]


def cases(fmt: Format, **fixed: Any) -> Cases:
    """Cases of a format, with the dimensions in ``fixed`` held."""
    return Cases(fmt, fixed)


class _Batch(SearchStrategy[list[tuple[Case, Choices]]]):
    """A few cases, each with the choices that :class:`Cases` makes it of: never shrunk, so Hypothesis draws
    their bytes, and the choices are made of these as digits of a number. All bytes 0 is the simplest case."""

    def __init__(self, strategy: Cases) -> None:
        super().__init__()
        self.strategy = strategy

    def do_draw(self, data: ConjectureData) -> list[tuple[Case, Choices]]:
        size = BATCH * ENTROPY
        drawn = data.draw_bytes(size, size)
        return [self._one(data, drawn[at : at + ENTROPY]) for at in range(0, size, ENTROPY)]

    def _one(self, data: ConjectureData, drawn: bytes) -> tuple[Case, Choices]:
        made: list[int] = []
        number, room = int.from_bytes(drawn, "little"), 256**ENTROPY

        def pick(count: int) -> int:
            nonlocal number, room
            if count == 1:
                return 0
            if room < count * EVEN:
                number, room = int.from_bytes(data.draw_bytes(ENTROPY, ENTROPY), "little"), 256**ENTROPY
            number, index = divmod(number, count)
            room //= count
            made.append(index)
            return index

        case = self.strategy.made(lambda dim, before: dim.draw(pick, before))
        return case, tuple(made)


class _Enough(unittest.SkipTest):
    """Ends a Hypothesis test without a failure."""


def drawing(count: int) -> settings:
    """Settings that draw at most ``count`` examples: nothing is remembered, replayed or shrunk."""
    return settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )


def draw_each(strategy: Cases, count: int, seed: int | str, look: Callable[[Case, Choices], object]) -> None:
    """Call ``look`` with ``count`` different cases and the choices that make each of them, the same ones for
    the same ``seed``; with fewer where there are not as many. What it raises ends the drawing, and nothing is
    shrunk. Not for use inside a running Hypothesis test, which it would be a part of.
    """
    seen: set[Case] = set()
    raised: list[BaseException] = []

    @given(_Batch(strategy))
    def each(batch: list[tuple[Case, Choices]]) -> None:
        for case, choices in batch:
            if case not in seen:
                seen.add(case)
                try:
                    look(case, choices)
                except BaseException as error:
                    # Hypothesis would try it again, and call what then passes flaky.
                    raised.append(error)
                if raised or len(seen) == count:
                    raise _Enough("enough")

    each._hypothesis_internal_use_seed = seed  # type: ignore[attr-defined]
    # The first batches are simple ones, and not all of their cases are different.
    with contextlib.suppress(_Enough):
        drawing(count // 2 + 2)(each)()
    if raised:
        raise raised[0]


def sample(fmt: Format, count: int, **fixed: Any) -> tuple[Case, ...]:
    """Distinct cases as they are drawn for a test: the same ones every time. Not for use inside a
    running Hypothesis test, which it would be a part of."""
    found: list[Case] = []
    label = f"{fmt.name}/{sorted(fixed.items(), key=lambda item: item[0])}"
    draw_each(cases(fmt, **fixed), count, label, lambda case, choices: found.append(case))
    return tuple(found)
