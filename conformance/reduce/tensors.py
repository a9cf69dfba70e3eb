"""Reduce the tensors of a failing weight: constant but for the elements that the failure needs.

Works on the named tensors of any packed type. A weight that ``validate(deep=True)`` refuses (an
index out of range) is not tried, so that no kernel reads where nothing is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import torch

from conformance.case import Case
from conformance.errors import UsageError
from conformance.harness import Checked
from conformance.materialize import materialize
from conformance.patterns import Pattern
from conformance.reduce.ddmin import ddmin
from conformance.reduce.trial import Trial
from conformance.registry import Format
from kernels._packed import PackedWeight, map_tensors, named_tensors
from oracles.spec.rounding import numpy_bytes

MOST_ROUNDS = 4
# Single bits and rounder numbers are looked for in this many elements.
FEW = 16
SHOWN = 4
# Easier to compute with than what a profile drew. Powers of two: no rounding hides or makes a fault.
ROUND_NUMBERS = (2.0, 0.5, -1.0, -2.0)


@dataclasses.dataclass(frozen=True)
class Kept:
    """What is left of one tensor.

    Attributes:
        name: dotted.
        size: its elements.
        constant: the value of all elements but ``kept``, or None for a tensor that was left alone.
        kept: index and value of the others, as text.
        why: why it was left alone.
    """

    name: str
    size: int
    constant: str | None
    kept: tuple[str, ...] = ()
    why: str = ""

    def __str__(self) -> str:
        if self.constant is None:
            return self.why
        if not self.kept:
            return f"not needed: {self.constant} everywhere"
        shown = ", ".join(self.kept[:SHOWN]) + (" ..." if len(self.kept) > SHOWN else "")
        rest = f"; the rest is {self.constant}" if len(self.kept) < self.size else ""
        return f"{len(self.kept)} of {self.size} needed: {shown}{rest}"


@dataclasses.dataclass(frozen=True)
class Reduced:
    """The reduced weight as judged, what is left of each tensor, and the closest weight that passes
    (one needed element made constant, ``good_change`` says which), where there is one."""

    bad: Checked
    kept: tuple[Kept, ...]
    good: Checked | None = None
    good_change: str = ""


def data_tensors(fmt: Format, case: Case, weight: PackedWeight) -> frozenset[str]:
    """Names of the tensors that depend on the case's patterns: data, and not tables or indices."""
    plain = case.replace(route="words")
    others = []
    for dim in case.dims:
        value = case[dim.name]
        if isinstance(value, Pattern):
            near = [v for _, v in dim.neighbours(value, case.as_mapping())]
            others += [plain.replace(**{dim.name: v}) for v in near]
    try:
        first = dict(named_tensors(materialize(fmt, plain)[0]))
    except UsageError:
        return frozenset(name for name, _ in named_tensors(weight))
    found: set[str] = set()
    for other in others:
        try:
            again = dict(named_tensors(materialize(fmt, other)[0]))
        except UsageError:
            continue
        found |= {
            name
            for name, tensor in again.items()
            if name in first and not np.array_equal(numpy_bytes(tensor), numpy_bytes(first[name]))
        }
    return frozenset(found)


def reduce_tensors(trial: Trial, case: Case, start: Checked) -> Reduced:
    """Make tensors constant as far as the failure stays. ``start`` is the failing weight, judged."""
    assert start.weight is not None
    state = _State(trial, case, start.weight, start)
    free = data_tensors(trial.harness.formats[case.format], case, start.weight)
    names = [name for name, tensor in state.tensors.items() if name in free and tensor.numel()]
    for _ in range(MOST_ROUNDS):
        before = {name: numpy_bytes(state.tensors[name]).tobytes() for name in names}
        for name in names:
            state.reduce(name)
        if trial.ended or all(numpy_bytes(state.tensors[n]).tobytes() == before[n] for n in names):
            break
    good, change = state.nearest_good(names)
    kept = tuple(state.kept(name, name in names) for name in state.tensors)
    return Reduced(state.checked, kept, good, change)


@dataclasses.dataclass
class _State:
    """The smallest failing weight so far, as dense flat tensors by name."""

    trial: Trial
    case: Case
    weight: PackedWeight
    checked: Checked
    tensors: dict[str, torch.Tensor] = dataclasses.field(default_factory=dict)
    constants: dict[str, torch.Tensor] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, tensor in named_tensors(self.weight):
            self.tensors[name] = tensor.contiguous().reshape(-1).clone()

    def built(self, changed: Mapping[str, torch.Tensor]) -> PackedWeight:
        flat = {**self.tensors, **changed}
        return map_tensors(self.weight, lambda name, t: flat[name].reshape(t.shape).clone())

    def fails(self, name: str, flat: torch.Tensor) -> bool:
        """Whether it still fails with one tensor replaced; if so the replacement is kept."""
        outcome = self.trial.weight(self.case, self.built({name: flat}))
        if outcome.same and outcome.checked is not None:
            self.tensors[name], self.checked = flat, outcome.checked
        return outcome.same

    def reduce(self, name: str) -> None:
        """Constant as far as possible; then single bits of integers, round numbers for floats."""
        constants = _constants(self.tensors[name])
        for constant in constants:
            if self.fails(name, constant.expand_as(self.tensors[name]).clone()):
                self.constants[name] = constant
                return
        constant = self.constants.setdefault(name, constants[0])
        ddmin(_unlike(self.tensors[name], constant), self._keeping(name, constant))
        positions = _unlike(self.tensors[name], constant)
        if len(positions) > FEW:
            return
        if self.tensors[name].is_floating_point():
            self._round(name, positions)
        else:
            ddmin(_bits(self.tensors[name], constant), self._keeping_bits(name, constant))

    def _keeping(self, name: str, constant: torch.Tensor) -> Callable[[Sequence[int]], bool]:
        whole = self.tensors[name]

        def holds(positions: Sequence[int]) -> bool:
            flat = constant.expand_as(whole).clone()
            index = torch.tensor(list(positions), dtype=torch.int64)
            flat[index] = whole[index]
            return self.fails(name, flat)

        return holds

    def _keeping_bits(self, name: str, constant: torch.Tensor) -> Callable[[Sequence[tuple[int, int]]], bool]:
        def holds(bits: Sequence[tuple[int, int]]) -> bool:
            data = _raw(constant.expand_as(self.tensors[name]).clone())
            for position, bit in bits:
                data[position] ^= data.dtype.type(1 << bit)
            return self.fails(name, torch.from_numpy(data.copy()).view(self.tensors[name].dtype))

        return holds

    def _round(self, name: str, positions: Sequence[int]) -> None:
        for position in positions:
            for number in ROUND_NUMBERS:
                if float(self.tensors[name][position]) in ROUND_NUMBERS:
                    break
                flat = self.tensors[name].clone()
                flat[position] = number
                if self.fails(name, flat):
                    break

    def nearest_good(self, names: Sequence[str]) -> tuple[Checked | None, str]:
        """The weight with the last needed element made constant that then passes."""
        for name in reversed(names):
            flat, constant = self.tensors[name], self.constants.get(name)
            if constant is None:
                continue
            for position in reversed(_unlike(flat, constant)[-FEW:]):
                changed = flat.clone()
                changed[position] = constant
                weight = self.built({name: changed})
                if self.trial.weight(self.case, weight).passes:
                    at = _at(self._shape(name), position)
                    change = f"{name}{at} is {_show(constant)} instead of {_show(flat[position])}"
                    return self.trial.judged(self.case, weight), change
        return None, ""

    def kept(self, name: str, free: bool) -> Kept:
        flat, constant = self.tensors[name], self.constants.get(name)
        if constant is None:
            why = "not tried: out of time" if free else "left alone: no pattern of the case changes it"
            return Kept(name, flat.numel(), None, (), why)
        shape = self._shape(name)
        values = tuple(f"{_at(shape, p)} {_show(flat[p])}" for p in _unlike(flat, constant))
        return Kept(name, flat.numel(), _show(constant), values)

    def _shape(self, name: str) -> tuple[int, ...]:
        return tuple(dict(named_tensors(self.weight))[name].shape)


def _constants(flat: torch.Tensor) -> list[torch.Tensor]:
    """Values to fill a tensor with, best first: of floats 1 and 0, of integers 0 and the middle code
    of each nibble, or of the byte of a signed one."""
    if flat.is_floating_point():
        return [torch.ones((), dtype=flat.dtype), torch.zeros((), dtype=flat.dtype)]
    zero = torch.zeros((), dtype=flat.dtype)
    if flat.dtype == torch.int8:
        return [zero]
    middle = np.full(flat.dtype.itemsize, 0x88, np.uint8).view(_raw(zero.reshape(1)).dtype)
    return [zero, torch.from_numpy(middle).view(flat.dtype)[0]]


def _raw(flat: torch.Tensor) -> np.ndarray:
    """The elements as unsigned integers of their size: [n]."""
    return numpy_bytes(flat).reshape(-1).view(f"u{flat.dtype.itemsize}").copy()


def _unlike(flat: torch.Tensor, constant: torch.Tensor) -> list[int]:
    """Positions whose bits are not those of ``constant``."""
    return np.flatnonzero(_raw(flat) != _raw(constant.reshape(1))[0]).tolist()


def _bits(flat: torch.Tensor, constant: torch.Tensor) -> list[tuple[int, int]]:
    """Position and number of each bit that differs from ``constant``."""
    return list(_differing(_raw(flat), int(_raw(constant.reshape(1))[0]), 8 * flat.dtype.itemsize))


def _differing(data: np.ndarray, constant: int, width: int) -> Iterator[tuple[int, int]]:
    for position in np.flatnonzero(data != constant).tolist():
        for bit in range(width):
            if (int(data[position]) ^ constant) >> bit & 1:
                yield position, bit


def _at(shape: tuple[int, ...], position: int) -> str:
    return str([int(i) for i in np.unravel_index(position, shape)]) if shape else "[]"


def _show(value: torch.Tensor) -> str:
    """A float as a number, an integer as hexadecimal bits when it holds packed codes."""
    if value.is_floating_point():
        return f"{float(value):.6g}"
    raw = int(_raw(value.reshape(1))[0])
    return str(int(value)) if -16 < int(value) < 16 else f"0x{raw:0{2 * value.dtype.itemsize}x}"
