"""Dimensions of a case: how a value is written in a case id, checked, and generated.

A format lists its dimensions; parsing, ids, Hypothesis strategies and shrinking follow.
Hypothesis is imported only when a strategy is asked for, so that replay works without it.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from conformance.errors import UsageError
from conformance.patterns import Pattern, parse_pattern
from conformance.steps import FAR, NEAR, TO_DEFAULT, distance, near_sizes, smaller_sizes

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy


@dataclasses.dataclass(frozen=True)
class Dim:
    """One dimension. ``default`` is left out of case ids. Values are hashable."""

    name: str
    default: Any
    is_size: ClassVar[bool] = False
    """Whether values are sizes, which are made smaller where others are made simpler."""

    def parse(self, text: str) -> Any:
        """Value written as ``text``; raises :class:`UsageError` that names the field."""
        raise NotImplementedError

    def format(self, value: Any) -> str:
        return str(value)

    def strategy(self, drawn: Mapping[str, Any]) -> SearchStrategy[Any]:
        """Hypothesis strategy, simplest value first; ``drawn`` holds the dimensions before this one."""
        raise NotImplementedError

    def neighbours(self, value: Any, case: Mapping[str, Any]) -> Iterator[tuple[int, Any]]:
        """Other values and how far each is (:mod:`conformance.steps`); ``case`` holds all dimensions.

        They need not fit together with the other dimensions.
        """
        if value != self.default:
            yield TO_DEFAULT, self.default

    def simpler(self, value: Any, case: Mapping[str, Any]) -> Iterator[Any]:
        """Values to try instead of ``value`` when a case is reduced, simplest first."""
        if value != self.default:
            yield self.default


@dataclasses.dataclass(frozen=True)
class Choice(Dim):
    """One of a few strings or integers, simplest first."""

    choices: tuple[Any, ...]
    generated: tuple[Any, ...] | None = None
    """Choices that are drawn; the others only when asked for by id. None: all."""
    near: tuple[Any, ...] | None = None
    """Choices that are tried instead of a failing one. None: those that are drawn."""

    def parse(self, text: str) -> Any:
        for choice in self.choices:
            if str(choice) == text:
                return choice
        raise UsageError(f"{self.name}: expected one of {', '.join(map(str, self.choices))}, found {text!r}")

    def strategy(self, drawn: Mapping[str, Any]) -> SearchStrategy[Any]:
        from hypothesis import strategies as st

        return st.sampled_from(self.choices if self.generated is None else self.generated)

    def neighbours(self, value: Any, case: Mapping[str, Any]) -> Iterator[tuple[int, Any]]:
        yield from super().neighbours(value, case)
        near = self.near or self.generated or self.choices
        for choice in dict.fromkeys(near):
            if choice not in (value, self.default):
                yield NEAR, choice

    def simpler(self, value: Any, case: Mapping[str, Any]) -> Iterator[Any]:
        yield from super().simpler(value, case)
        for choice in self.choices[: self.choices.index(value)]:
            if choice != self.default and value != self.default:
                yield choice


@dataclasses.dataclass(frozen=True)
class Text(Dim):
    """Free text without commas; never drawn."""

    def parse(self, text: str) -> str:
        return text

    def strategy(self, drawn: Mapping[str, Any]) -> SearchStrategy[Any]:
        from hypothesis import strategies as st

        return st.just(self.default)

    def neighbours(self, value: Any, case: Mapping[str, Any]) -> Iterator[tuple[int, Any]]:
        return iter(())


@dataclasses.dataclass(frozen=True)
class Patterned(Dim):
    """A :class:`Pattern` out of a table of names."""

    known: Mapping[str, bool]
    generated: tuple[str, ...] | None = None

    def parse(self, text: str) -> Pattern:
        return parse_pattern(self.name, text, dict(self.known))

    def strategy(self, drawn: Mapping[str, Any]) -> SearchStrategy[Any]:
        names = tuple(self.known) if self.generated is None else self.generated
        return _patterns(tuple((name, self.known[name]) for name in names))

    def _of(self, name: str, number: int | None) -> Pattern:
        return Pattern(name, (number or 0) if self.known[name] else None)

    def neighbours(self, value: Any, case: Mapping[str, Any]) -> Iterator[tuple[int, Any]]:
        yield from super().neighbours(value, case)
        others = [(NEAR, Pattern(value.name, n)) for n in _around(value.number)]
        names = dict.fromkeys(self.known if self.generated is None else self.generated)
        others += [(FAR, self._of(name, value.number)) for name in names if name != value.name]
        for far, other in others:
            if other != self.default:
                yield far, other

    def simpler(self, value: Any, case: Mapping[str, Any]) -> Iterator[Any]:
        """The table is in order from simple to wild; of one name, the smaller numbers."""
        names = list(self.known)
        for name in names[: names.index(value.name)]:
            yield self._of(name, 0)
        if value.number:
            for number in (0, *smaller_sizes(value.number)):
                yield Pattern(value.name, number)


@dataclasses.dataclass(frozen=True)
class Shape(Dim):
    """A shape written ``3x65``; columns around word, tile and block edges, and primes.

    ``block`` names an earlier dimension whose value is a block size: then totals just
    around multiples of it are drawn too.
    """

    limit: int = 20_000
    rank: int | None = None
    block: str | None = None
    is_size: ClassVar[bool] = True
    EDGES: ClassVar[tuple[int, ...]] = (
        1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 61, 64, 65, 127, 128, 129, 256, 257,
    )  # fmt: skip

    def parse(self, text: str) -> tuple[int, ...]:
        parts = text.split("x")
        if not all(part.isascii() and part.isdecimal() for part in parts):
            raise UsageError(f"{self.name}: expected sizes joined by x, such as 3x65, found {text!r}")
        if self.rank is not None and len(parts) != self.rank:
            raise UsageError(f"{self.name}: expected {self.rank} sizes, found {text!r}")
        return tuple(int(part) for part in parts)

    def format(self, value: tuple[int, ...]) -> str:
        return "x".join(map(str, value))

    def strategy(self, drawn: Mapping[str, Any]) -> SearchStrategy[tuple[int, ...]]:
        block = None if self.block is None else int(drawn[self.block])
        return _shapes(self.EDGES, self.limit, self.rank, block)

    def neighbours(self, value: Any, case: Mapping[str, Any]) -> Iterator[tuple[int, Any]]:
        """Each axis alone, the last first; and the same elements with one leading axis more or less."""
        for axis in reversed(range(len(value))):
            size, rest = value[axis], math.prod(value[:axis] + value[axis + 1 :])
            extra = list(_whole_blocks(size, rest, 0 if self.block is None else int(case[self.block])))
            if len(value) == len(self.default):
                extra.append(self.default[axis])
            for other in near_sizes(size, extra=extra):
                if other * rest <= max(self.limit, size * rest):
                    yield distance(size, other), (*value[:axis], other, *value[axis + 1 :])
        for other_rank in self._other_ranks(value):
            yield TO_DEFAULT, other_rank

    def _other_ranks(self, value: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if self.rank is None and len(value) < 3:
            yield (1, *value)
        if self.rank is None and len(value) > 1 and value[0] == 1:
            yield value[1:]

    def simpler(self, value: Any, case: Mapping[str, Any]) -> Iterator[Any]:
        """Each axis made smaller, the first ones first; and without leading axes of one."""
        if len(value) > len(self.default) and value[0] == 1:
            yield value[1:]
        for axis, size in enumerate(value):
            for other in smaller_sizes(size):
                yield (*value[:axis], other, *value[axis + 1 :])


def _around(number: int | None) -> Iterator[int]:
    """Numbers of the same pattern: one less, one more, 0."""
    if number is not None:
        yield from dict.fromkeys(n for n in (number - 1, number + 1, 0) if n >= 0 and n != number)


def _whole_blocks(size: int, rest: int, block: int) -> Iterator[int]:
    """Sizes of an axis around ``size`` that make the total, ``rest`` times it, whole blocks."""
    if block > 0 and rest > 0:
        step = block // math.gcd(block, rest)
        yield from ((size - 1) // step * step, size // step * step + step)


# Building a strategy costs ten times what drawing from it does, so those that are the same
# for every case are built once.


@functools.cache
def _patterns(names: tuple[tuple[str, bool], ...]) -> SearchStrategy[Pattern]:
    from hypothesis import strategies as st

    number = st.integers(0, 99)
    return st.one_of(
        *(
            st.builds(Pattern, st.just(name), number) if numbered else st.just(Pattern(name))
            for name, numbered in names
        )
    )


@functools.cache
def _shapes(
    edges: tuple[int, ...], limit: int, rank: int | None, block: int | None
) -> SearchStrategy[tuple[int, ...]]:
    from hypothesis import strategies as st

    column = st.one_of(st.sampled_from(edges), st.integers(1, 300))
    row = st.integers(1, 9)
    shapes: list[SearchStrategy[tuple[int, ...]]] = [st.tuples(row, column)]
    if rank is None:
        shapes.append(st.tuples(column))
        shapes.append(st.tuples(st.integers(1, 3), st.integers(1, 5), column))
    if block is not None:
        counts = list(range(1, max(1, min(5, limit // block)) + 1))
        if block * 257 <= limit:
            # Enough blocks for a second-level block of 256 to end inside the weight. Not a
            # branch of its own: out of this one it shrinks to a single block.
            counts += [256, 257] * len(counts)
        # Simplest first is one element more than whole blocks: the least that has a short
        # last block, so that a failure found in a big shape shrinks to it in one step.
        near = st.builds(
            lambda blocks, more: max(1, blocks * block + more),
            st.sampled_from(counts),
            st.sampled_from((1, 0, -1, 2, -2)),
        )
        shapes += [st.tuples(st.just(1), near)] * 2
        # Rows that are no whole number of blocks: a block goes on in the next row.
        rows = st.integers(2, max(2, min(5, limit // (2 * block))))
        columns = st.sampled_from((block // 2 * 3, block // 4 * 3, block + 1, block - 1))
        shapes.append(st.tuples(rows, columns))
    return st.one_of(*shapes)
