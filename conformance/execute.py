"""Run a kernel on a fenced copy of a weight, twice, and say what it did. Compares no values."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from conformance.arena import Arena, Memory, OutputArena, alike
from conformance.bits import all_same, same, to_bits
from conformance.calling import call, not_plain
from conformance.execution import Execution
from conformance.reads import watched
from conformance.registry import Kernel
from kernels._packed import PackedWeight, map_tensors, named_tensors


def identity(tensors: Iterable[tuple[str, torch.Tensor]]) -> list[tuple[Any, ...]]:
    """What a kernel must leave as it was besides bytes: which tensors a weight has, where, how strided."""
    return [(name, id(t), t.data_ptr(), t.dtype, t.shape, t.stride()) for name, t in tensors]


def fields(value: Any) -> list[tuple[Any, str, Any]]:
    """``(object, attribute, value)`` of a weight, of tensors and of sizes, and of dataclasses in it."""
    found = [(value, name, held) for name, held in vars(value).items()]
    return found + [one for _, _, held in found if dataclasses.is_dataclass(held) for one in fields(held)]


def left_alone(
    weight: PackedWeight, before: list[tuple[Any, ...]], held: list[tuple[Any, str, Any]] | None = None
) -> bool:
    """Whether a weight has the tensors that it had, as :func:`identity` says, and the ``fields``; one may be
    gone, or be what raises when it is looked at."""
    try:
        same = all(getattr(owner, name) is value for owner, name, value in held or ())
        return same and identity(named_tensors(weight)) == before
    except Exception:
        return False


def execute(
    kernel: Kernel,
    weight: PackedWeight,
    dtype: torch.dtype,
    device: torch.device,
    *,
    layout: str = "contiguous",
    dest: str = "given",
    launch: Mapping[str, int] | None = None,
) -> Execution:
    """Run ``kernel`` on ``weight`` (CPU tensors), moved to ``device`` between guards.

    The output is poisoned with another NaN payload in each run. ``dest`` is how the first run
    gets it: ``given``, in one of the arena's layouts, or ``new`` (the kernel allocates); the
    second run is always given one, if the kernel takes one. After a ``new`` one there is a third,
    so that a kernel is also called on a weight that it has seen twice; a fused one, which each run calls
    dozens of times, has two. Exceptions are recorded.
    """
    count = 3 if dest == "new" and kernel.remarks is None else 2
    outputs = [_output(kernel, weight, dtype, dest, number) for number in range(count)]
    execution = _Calls(kernel, weight, dtype, device, layout, outputs).run(launch)
    return execution if kernel.remarks is None else dataclasses.replace(execution, remarks=kernel.remarks())


def _output(
    kernel: Kernel, weight: PackedWeight, dtype: torch.dtype, dest: str, run: int
) -> OutputArena | None:
    """The output that a run is given, or None where the kernel allocates it."""
    if not kernel.takes_out or (run != 1 and dest == "new"):
        return None
    layout = "contiguous" if run or dest in ("given", "new") else dest
    return OutputArena(weight.output_shape, dtype, run, layout)


class _Calls:
    """Calls of a kernel on one memory: what they wrote where, and the bits of their outputs."""

    def __init__(
        self,
        kernel: Kernel,
        weight: PackedWeight,
        dtype: torch.dtype,
        device: torch.device,
        layout: str,
        outputs: Sequence[OutputArena | None],
    ) -> None:
        self.kernel, self.dtype, self.outputs = kernel, dtype, outputs
        self.shape = weight.output_shape
        self.inputs = Arena(dict(named_tensors(weight)), layout)
        # The inputs last: what is looked at after a call is then one piece.
        self.memory = Memory([*(output for output in outputs if output is not None), self.inputs], device)
        self.device = self.memory.buffer.device
        self.expected = self.memory.snapshot
        views = {name: self.inputs.view(name) for name in self.inputs.sections}
        self.weight = map_tensors(weight, lambda name, _: views[name])
        self.before, self.fields = identity(views.items()), fields(self.weight)
        self.bits: list[np.ndarray] = []
        self.new: torch.Tensor | None = None
        self.place = 0
        self.stray: list[str] = []
        self.mutated: list[str] = []
        self.strayed: list[str] = []

    def run(self, launch: Mapping[str, int] | None) -> Execution:
        """Make the calls, and look at the memory after each of them."""
        for number, output in enumerate(self.outputs):
            with watched(self.inputs) as reads:
                found = call(self.kernel, self.weight, self.shape, self.dtype, self.device, output, launch)
            self.strayed += reads
            if isinstance(found, Execution) and found.lost:
                return found  # nothing on the device can be looked at any more
            written = self._look(number)
            if isinstance(found, Execution):
                if found.unsupported is not None and number:
                    found = Execution(contract="expected an answer as in the call before, found Unsupported")
                return self._with_writes(found)
            # Of the memory that was handed out: the tensor object may have been pointed elsewhere.
            try:
                self.bits.append(to_bits(found).copy() if written is None else written)
            except Exception as error:
                return self._with_writes(Execution(contract=not_plain(error)))
            shared = self._shared(found if output is None else None)
            if shared is not None:
                return self._with_writes(Execution(contract=f"expected a tensor of its own, found {shared}"))
            if number == 0 and output is None:
                self.new, self.place = found, _storage(found)
        if not left_alone(self.weight, self.before, self.fields):
            self.mutated.append("the weight's tensors or sizes were replaced by others")
        unwritten = self._unwritten()
        return self._with_writes(
            Execution(
                bits=self.bits[0],
                strayed=tuple(dict.fromkeys(self.strayed)),
                unwritten=unwritten,
                unstable=self._unstable(unwritten),
            )
        )

    def _shared(self, found: torch.Tensor | None) -> str | None:
        """How a result is not its caller's alone. ``found``: what this call allocated, or None."""
        if self.new is not None and not _holds(self.new, self.bits[0], self.dtype):
            return "one that a later call overwrote"
        if found is None:
            return None
        # The first is alive: only a kernel that keeps it can hand it out again.
        if self.new is not None and self.place and _storage(found) == self.place:
            return "one in the storage of an earlier call's"
        buffer = self.memory.buffer
        if 0 <= found.data_ptr() - buffer.data_ptr() < buffer.numel():
            return "one in memory that this call was not given for it"
        return None

    def _with_writes(self, found: Execution) -> Execution:
        stray, mutated = tuple(dict.fromkeys(self.stray)), (*found.mutated, *self.mutated)
        return dataclasses.replace(found, stray=stray, mutated=mutated) if stray or mutated else found

    def _look(self, number: int) -> np.ndarray | None:
        """What the call wrote into the output that it was given, or None without one. What else it wrote is
        put down."""
        output, start = self.outputs[number], self.inputs.start
        now, expected = self.memory.read(), self.expected
        bits = None if output is None else output.allow(expected[output.start :], now[output.start :])
        if not alike(expected, now):
            # Outputs behind this call's own are among what lies beside it.
            others = self.outputs[:number] if output is not None else self.outputs
            self.stray += _touched([other for other in others if other is not None], expected, now)
            if output is not None:
                beside = slice(output.start, start)
                self.stray += output.stray_writes(now[beside], expected[beside])
            changed, fences = self.inputs.changes(now[start:])
            self.mutated = self.mutated or changed
            self.stray += fences
            expected[:] = now  # each change is said once
        return bits

    def _unwritten(self) -> np.ndarray | None:
        """Mask of elements that still hold the poison in every run that was given an output, or None where
        there is none."""
        unwritten: np.ndarray | None = None
        for bits, output in zip(self.bits, self.outputs, strict=True):
            if output is not None:
                mask: np.ndarray = bits == output.payload
                unwritten = mask if unwritten is None else unwritten & mask
                if not np.count_nonzero(unwritten):
                    return None
        return unwritten

    def _unstable(self, unwritten: np.ndarray | None) -> np.ndarray | None:
        """Mask of written elements that differ from the first run's in another; None without any."""
        first, *rest = self.bits
        others = [bits for bits in rest if not all_same(first, bits, self.dtype)]
        if not others:
            return None
        unstable: np.ndarray = np.logical_or.reduce([~same(first, bits, self.dtype) for bits in others])
        if unwritten is not None:
            unstable &= ~unwritten
        return unstable if unstable.any() else None


def _storage(result: torch.Tensor) -> int:
    """Address of a tensor's storage, 0 where it is empty."""
    return result.untyped_storage().data_ptr()


def _holds(result: torch.Tensor, bits: np.ndarray, dtype: torch.dtype) -> bool:
    """Whether a result is still what it was; its tensor may have been given another dtype or shape since."""
    try:
        kept = result.dtype == dtype and tuple(result.shape) == bits.shape
        return kept and bool((to_bits(result) == bits).all())
    except Exception:  # it may be another kind of tensor by now
        return False


def _touched(outputs: Sequence[OutputArena], expected: np.ndarray, now: np.ndarray) -> list[str]:
    """What a call wrote into the outputs of other calls or beside them: a sentence for each."""
    found = []
    for output in outputs:
        part = slice(output.start, output.start + output.size)
        at = np.flatnonzero(now[part] != expected[part])
        if at.size:
            where = output.place(int(at[0]))
            found.append(f"{at.size} bytes of another call's output and its fence changed, the first {where}")
    return found
