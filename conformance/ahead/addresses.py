"""Does any address of a kernel go through a 32-bit number that is too small for a large tensor?

Interval arithmetic over the Triton IR of a launch. The program's number, the arguments and the loop
counters are given their true ranges for one launch, a tensor of more than 2**31 elements. Every
integer that an address is computed of must then stay within its type. What a kernel has loaded from
memory has the range of its type, and only a product of it in 32 bits counts as too small, not a sum.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence

_LINE = re.compile(r"(?:(%[\w#:, %-]+?) = )?\"?([a-z_]+\.[\w.]+)\"?(.*)")
_VALUE = re.compile(r"%[\w#-]+")
_TYPE = re.compile(r"i(1|8|16|32|64)\b(?![^<]*ptr)")
_BODY = re.compile(r"\s*loc\(#?\w*\)\s*$")


@dataclasses.dataclass(frozen=True)
class _Range:
    """Values that an integer may have; ``flaws``: operations before it that left their type."""

    low: int
    high: int
    known: bool = True
    flaws: frozenset[str] = frozenset()


def _any(bits: int, flaws: frozenset[str] = frozenset()) -> _Range:
    return _Range(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1, False, flaws)


def _union(ranges: Sequence[_Range]) -> frozenset[str]:
    return frozenset().union(*(one.flaws for one in ranges))


def _hull(ranges: Sequence[_Range]) -> _Range:
    low, high = min(one.low for one in ranges), max(one.high for one in ranges)
    return _Range(low, high, all(one.known for one in ranges), _union(ranges))


class _Analysis:
    def __init__(self, ttir: str, integers: Sequence[int | None], grid: Sequence[int]) -> None:
        self.locations = dict(re.findall(r"^(#loc\d*) = (loc\(.*)$", ttir, re.MULTILINE))
        self.grid = (*grid, 1, 1)
        self.values: dict[str, _Range] = {}
        self.flaws: set[str] = set()
        lines = ttir.splitlines()
        start = next(i for i, line in enumerate(lines) if "tt.func public" in line)
        names = re.findall(r"(%[\w-]+): ", lines[start])
        for name, value in zip(names, integers, strict=True):
            self.values[name] = _Range(value, value) if value is not None else _Range(0, 0)
        self.lines = lines
        self._block(start + 1)

    def _at(self, text: str) -> str:
        """``file.py:line`` of an operation."""
        found = re.search(r"loc\((#loc\d*)\)", text)
        for _ in range(20):
            if found is None:
                return "?"
            body = self.locations.get(found[1], "")
            place = re.search(r'"([^"]+)":(\d+):\d+', body)
            if place:
                return f"{place[1].rsplit('/', 1)[-1]}:{place[2]}"
            found = re.search(r"(#loc\d*)", body)
        return "?"

    def _end(self, at: int) -> int:
        """The line behind the block that starts at ``at``."""
        depth = 0
        while True:
            text = self.lines[at].strip()
            if text.startswith("}"):
                if depth == 0:
                    return at
                depth -= 1
            if re.search(r"\{$", _BODY.sub("", text)):
                depth += 1
            at += 1

    def _block(self, at: int) -> list[_Range]:
        """Evaluate the lines of a block; returns what it yields."""
        end = self._end(at)
        yielded: list[_Range] = []
        while at < end:
            text = self.lines[at].strip()
            found = _LINE.match(text)
            if found is None:
                at += 1
                continue
            names, operation, rest = found[1] or "", found[2], found[3]
            if operation in ("scf.for", "scf.while", "scf.if"):
                at = self._region(at, names, operation, rest)
                continue
            operands = [self.values.get(name, _Range(0, 0)) for name in _VALUE.findall(rest)]
            if operation == "scf.yield":
                yielded = operands
            else:
                self._operation(names.split(":")[0], operation, rest, operands, text)
            at += 1
        return yielded

    def _region(self, at: int, names: str, operation: str, rest: str) -> int:
        results = [name.split(":")[0].strip() for name in names.split(",") if name]
        end = self._end(at + 1)
        if operation == "scf.for":
            bounds = re.match(r"\s*(%[\w-]+) = (%[\w#-]+) to (%[\w#-]+) step", rest)
            assert bounds is not None
            low, high = self.values[bounds[2]], self.values[bounds[3]]
            self.values[bounds[1]] = _Range(low.low, max(high.high - 1, low.low), low.known and high.known)
            carried = re.search(r"iter_args\(([^)]*)\)", rest)
            pairs = re.findall(r"(%[\w-]+) = (%[\w#-]+)", carried[1] if carried else "")
            # Twice: what one turn makes of a carried value is what the next one starts with.
            flaws = [self.values.get(start, _Range(0, 0)).flaws for _, start in pairs]
            made: list[_Range] = []
            for _ in range(2):
                for (name, _), before in zip(pairs, flaws, strict=True):
                    self.values[name] = _any(32, before)
                made = self._block(at + 1)
                flaws = [before | value.flaws for before, value in zip(flaws, made or [], strict=bool(pairs))]
            values = [_any(32, before) for before in flaws]
            at = end + 1
        else:
            values = self._block(at + 1)
            while self.lines[end].strip().startswith(("} else", "} do")):
                at, end = end, self._end(end + 1)
                other = self._block(at + 1)
                values = [_hull(pair) for pair in zip(values, other, strict=False)]
            at = end + 1
        if len(results) == 1 and len(values) > 1:
            for number, value in enumerate(values):
                self.values[f"{results[0]}#{number}"] = value
        elif results and values:
            self.values[results[0]] = values[0]
        return at

    def _operation(self, name: str, operation: str, rest: str, operands: list[_Range], text: str) -> None:
        if operation in ("tt.load", "tt.store", "tt.atomic_rmw", "tt.atomic_cas"):
            self.flaws |= operands[0].flaws
            if name:
                self.values[name] = _any(_bits(rest))
            return
        if not name:
            return
        value = self._value(operation, rest, operands)
        bits = _bits(rest)
        fits = -(2 ** (bits - 1)) <= value.low <= value.high < 2 ** (bits - 1)
        kept = operation in ("arith.addi", "arith.subi", "arith.muli", "arith.shli")
        if kept and value.known and not fits:
            reach = max(abs(value.low), abs(value.high))
            flaw = f"{self._at(text)}: i{bits} {operation.split('.')[1]} reaches {reach}"
            value = _any(bits, value.flaws | {flaw})
        elif operation == "arith.muli" and bits <= 32 and not fits:
            flaw = f"{self._at(text)}: i{bits} muli of a loaded value"
            value = _any(bits, value.flaws | {flaw})
        self.values[name] = value

    def _value(self, operation: str, rest: str, operands: list[_Range]) -> _Range:
        bits, flaws = _bits(rest), _union(operands)
        if operation == "arith.constant":
            return _constant(rest, bits)
        if operation in ("tt.get_program_id", "tt.get_num_programs"):
            size = self.grid["xyz".index(rest.split()[0])]
            return _Range(0, size - 1) if operation == "tt.get_program_id" else _Range(size, size)
        if operation == "tt.make_range":
            start, end = re.search(r"start = (\d+)", rest), re.search(r"end = (\d+)", rest)
            assert start is not None
            assert end is not None
            return _Range(int(start[1]), int(end[1]) - 1)
        if operation == "tt.addptr":
            return _Range(0, 0, flaws=flaws)
        if operation == "arith.cmpi":
            return _Range(0, 1)
        if operation == "arith.select":
            return _hull(operands[1:])
        if operation in ("arith.extsi", "tt.splat", "tt.expand_dims", "tt.broadcast", "tt.reshape"):
            return operands[0]
        if operation in ("tt.join", "tt.cat", "tt.trans"):
            return _hull(operands)
        if operation in ("arith.trunci", "arith.extui", "tt.bitcast"):
            fits = -(2 ** (bits - 1)) <= operands[0].low and operands[0].high < 2 ** (bits - 1)
            positive = operation == "arith.trunci" or operands[0].low >= 0
            return operands[0] if fits and positive else _any(bits, flaws)
        combine = _ARITHMETIC.get(operation)
        if combine is None or len(operands) != 2:
            return _any(bits, flaws)
        return dataclasses.replace(combine(*operands), flaws=flaws)


def _bits(rest: str) -> int:
    """Width of an operation's result, at the end of its line."""
    found = _TYPE.findall(re.sub(r"loc\(.*", "", rest.rsplit(" : ", 1)[-1]))
    return int(found[-1]) if found else 64


def _constant(rest: str, bits: int) -> _Range:
    if re.match(r"\s*(dense<)?true", rest):
        return _Range(1, 1)
    if re.match(r"\s*(dense<)?false", rest):
        return _Range(0, 0)
    number = re.match(r"\s*(?:dense<)?(-?\d+)>? :", rest)
    return _Range(int(number[1]), int(number[1])) if number else _any(bits)


def _products(a: _Range, b: _Range) -> _Range:
    ends = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
    return _Range(min(ends), max(ends), a.known and b.known)


def _quotients(a: _Range, b: _Range) -> _Range:
    if b.low < 1:
        reach = max(abs(a.low), abs(a.high))
        return _Range(-reach, reach, a.known)
    ends = [abs(x) // y * (1 if x > 0 else -1) for x in (a.low, a.high) for y in (b.low, b.high)]
    return _Range(min(ends), max(ends), a.known)


def _remainders(a: _Range, b: _Range) -> _Range:
    most = max(abs(b.low), abs(b.high)) - 1
    high = max(0, min(a.high, most))
    return _Range(0 if a.low >= 0 else max(a.low, -most), high, a.known or b.known)


def _shifted(a: _Range, b: _Range) -> _Range:
    if not (b.known and 0 <= b.low <= b.high < 64):
        return _Range(min(a.low, 0), max(a.high, 0), a.known)
    ends = [x >> y for x in (a.low, a.high) for y in (b.low, b.high)]
    return _Range(min(ends), max(ends), a.known)


def _masked(a: _Range, b: _Range) -> _Range:
    limits = [one.high for one in (a, b) if one.low >= 0]
    if not limits:
        return _Range(min(a.low, b.low), max(a.high, b.high), False)
    return _Range(0, min(limits))


def _either(a: _Range, b: _Range) -> _Range:
    if a.low < 0 or b.low < 0:
        return _Range(min(a.low, b.low, 0), max(a.high, b.high), False)
    return _Range(0, 2 ** max(a.high, b.high).bit_length() - 1, a.known and b.known)


_ARITHMETIC = {
    "arith.addi": lambda a, b: _Range(a.low + b.low, a.high + b.high, a.known and b.known),
    "arith.subi": lambda a, b: _Range(a.low - b.high, a.high - b.low, a.known and b.known),
    "arith.muli": _products,
    "arith.divsi": _quotients,
    "arith.remsi": _remainders,
    "arith.shrsi": _shifted,
    "arith.shli": lambda a, b: (
        _products(a, _Range(1 << b.low, 1 << b.high)) if 0 <= b.low <= b.high < 64 else _any(64)
    ),
    "arith.andi": _masked,
    "arith.ori": _either,
    "arith.xori": _either,
    "arith.minsi": lambda a, b: _Range(min(a.low, b.low), min(a.high, b.high), a.known and b.known),
    "arith.maxsi": lambda a, b: _Range(max(a.low, b.low), max(a.high, b.high), a.known and b.known),
}


def narrow(
    ttir: str, arguments: Sequence[str], integers: Mapping[str, int], grid: Sequence[int]
) -> list[str]:
    """Operations that addresses are computed of and that leave their type; empty if there are none.

    Args:
        ttir: text of the Triton IR of a kernel, helper functions inlined.
        arguments: names of its parameters, in order.
        integers: values of those that are integers, as in the launch.
        grid: programs along each axis.
    """
    values = [integers.get(name) for name in arguments]
    return sorted(_Analysis(ttir, values, grid).flaws)
