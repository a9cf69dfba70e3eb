"""Dimensions of a case: how a value is written in a case id, checked, and drawn.

A format lists its dimensions; parsing, ids, drawing and shrinking follow. A dimension is drawn by a few
choices, each an index below a number: Hypothesis makes them (:mod:`conformance.strategies`), and shrinks each
towards 0, the simplest.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from conformance.errors import UsageError
from conformance.patterns import Pattern, parse_pattern
from conformance.steps import FAR, NEAR, TO_DEFAULT, distance, near_sizes, smaller_sizes

T = TypeVar("T")
Pick = Callable[[int], int]
"""An index below the given number, any one; 0 stands for the simplest."""


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

    def draw(self, pick: Pick, drawn: Mapping[str, Any]) -> Any:
        """A value made of picked indices; ``drawn`` holds the dimensions before this one.

        Where a case is drawn alone, to be shrunk, indices of 256 and more are less likely than smaller ones.
        """
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

    def draw(self, pick: Pick, drawn: Mapping[str, Any]) -> Any:
        return one_of(pick, self.choices if self.generated is None else self.generated)

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

    def draw(self, pick: Pick, drawn: Mapping[str, Any]) -> str:
        return str(self.default)

    def neighbours(self, value: Any, case: Mapping[str, Any]) -> Iterator[tuple[int, Any]]:
        return iter(())


@dataclasses.dataclass(frozen=True)
class Patterned(Dim):
    """A :class:`Pattern` out of a table of names."""

    known: Mapping[str, bool]
    generated: tuple[str, ...] | None = None

    def parse(self, text: str) -> Pattern:
        return parse_pattern(self.name, text, dict(self.known))

    def draw(self, pick: Pick, drawn: Mapping[str, Any]) -> Pattern:
        name = one_of(pick, tuple(self.known) if self.generated is None else self.generated)
        return Pattern(name, pick(NUMBERS)) if self.known[name] else Pattern(name)

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

    def draw(self, pick: Pick, drawn: Mapping[str, Any]) -> tuple[int, ...]:
        block = 0 if self.block is None else int(drawn[self.block])
        kind = one_of(pick, _kinds(self.rank, block > 0))
        if kind == "near":
            near, around = one_of(pick, _near(block, self.limit)), one_of(pick, AROUND)
            return (1, max(1, near + around))
        if kind == "across":
            # Rows that are no whole number of blocks: a block goes on in the next row.
            rows = 2 + pick(max(2, min(5, self.limit // (2 * block))) - 1)
            return (rows, one_of(pick, (block // 2 * 3, block // 4 * 3, block + 1, block - 1)))
        leading = {"vector": (), "matrix": (9,), "cube": (3, 5)}[kind]
        return (*(1 + pick(most) for most in leading), self._column(pick))

    def _column(self, pick: Pick) -> int:
        return 1 + pick(300) if pick(2) else one_of(pick, self.EDGES)

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


# Numbers of patterns that are drawn: 0 to 99.
NUMBERS = 100
# Elements more than whole blocks. Simplest first is one more: the least that has a short last block, so that
# a failure found in a big shape shrinks to it in one step.
AROUND = (1, 0, -1, 2, -2)


def one_of(pick: Pick, values: Sequence[T]) -> T:
    """One of ``values``, simplest first; those that are there twice are twice as likely."""
    return values[pick(len(values))]


def _kinds(rank: int | None, blocks: bool) -> tuple[str, ...]:
    """Kinds of shapes, the larger ones less often where there are others."""
    if rank is None:
        whole = ("matrix", "vector", "cube")
        return (*whole, "near", "across", "cube", "across", "matrix") if blocks else whole
    return ("matrix", "near", "across") if blocks else ("matrix",)


@functools.cache
def _near(block: int, limit: int) -> tuple[int, ...]:
    """Elements of whole blocks."""
    counts = list(range(1, max(1, min(5, limit // block)) + 1))
    if block * 257 <= limit:
        # Enough blocks for a second-level block of 256 to end inside the weight. Not a
        # kind of its own: out of this one it shrinks to a single block.
        counts += [256, 257] * len(counts)
    return tuple(count * block for count in counts)
