"""Dimensions of a case: how a value is written in a case id, checked, and generated.

A format lists its dimensions; parsing, ids, Hypothesis strategies and shrinking follow.
Hypothesis is imported only when a strategy is asked for, so that replay works without it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from conformance.errors import UsageError
from conformance.patterns import Pattern, parse_pattern

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy


@dataclasses.dataclass(frozen=True)
class Dim:
    """One dimension. ``default`` is left out of case ids. Values are hashable."""

    name: str
    default: Any

    def parse(self, text: str) -> Any:
        """Value written as ``text``; raises :class:`UsageError` that names the field."""
        raise NotImplementedError

    def format(self, value: Any) -> str:
        return str(value)

    def strategy(self, drawn: Mapping[str, Any]) -> SearchStrategy[Any]:
        """Hypothesis strategy, simplest value first; ``drawn`` holds the dimensions before this one."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Choice(Dim):
    """One of a few strings or integers, simplest first."""

    choices: tuple[Any, ...]
    generated: tuple[Any, ...] | None = None
    """Choices that are drawn; the others only when asked for by id. None: all."""

    def parse(self, text: str) -> Any:
        for choice in self.choices:
            if str(choice) == text:
                return choice
        raise UsageError(f"{self.name}: expected one of {', '.join(map(str, self.choices))}, found {text!r}")

    def strategy(self, drawn: Mapping[str, Any]) -> SearchStrategy[Any]:
        from hypothesis import strategies as st

        return st.sampled_from(self.choices if self.generated is None else self.generated)


@dataclasses.dataclass(frozen=True)
class Text(Dim):
    """Free text without commas; never drawn."""

    def parse(self, text: str) -> str:
        return text

    def strategy(self, drawn: Mapping[str, Any]) -> SearchStrategy[Any]:
        from hypothesis import strategies as st

        return st.just(self.default)


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


@dataclasses.dataclass(frozen=True)
class Shape(Dim):
    """A shape written ``3x65``; columns around word, tile and block edges, and primes.

    ``block`` names an earlier dimension whose value is a block size: then totals just
    around multiples of it are drawn too.
    """

    limit: int = 20_000
    rank: int | None = None
    block: str | None = None
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
