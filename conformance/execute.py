"""Run a kernel on a fenced copy of a weight, twice, and say what it did. Compares no values."""

from __future__ import annotations

import dataclasses
import inspect
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from conformance import device_loss
from conformance.arena import Arena, Memory, OutputArena, alike
from conformance.bits import all_same, same, to_bits
from conformance.reads import watched
from conformance.registry import NO_REMARKS, Kernel, Remarks
from conformance.staying import staying
from conformance.verdict import Cause
from conformance.waiting import wait
from kernels import Unsupported
from kernels._packed import PackedWeight, describe, map_tensors, named_tensors


@dataclasses.dataclass(frozen=True)
class Execution:
    """What two runs of a kernel did.

    Attributes:
        bits: output of the first run as bit patterns, or None when there is none.
        crash: ``compile`` or ``launch`` when the kernel raised, with ``error`` as its text.
        lost: what the device answers after a crash that it did not survive, or empty.
        unsupported: the kernel's own reason for not doing this case.
        contract: what the returned tensor should have been, when it is another.
        stray: writes outside the output and the inputs.
        mutated: inputs that were written.
        strayed: reads outside the inputs, where they can be seen (:mod:`conformance.reads`).
        unwritten: mask of elements that neither run wrote, or None when not observable.
        unstable: mask of elements that differ from run to run.
        causes: of a breach of contract, where it has a name.
        remarks: what the kernel's adapter adds.
    """

    bits: np.ndarray | None = None
    crash: str | None = None
    error: str = ""
    lost: str = ""
    unsupported: str | None = None
    contract: str | None = None
    stray: tuple[str, ...] = ()
    mutated: tuple[str, ...] = ()
    strayed: tuple[str, ...] = ()
    unwritten: np.ndarray | None = None
    unstable: np.ndarray | None = None
    causes: tuple[Cause, ...] = ()
    remarks: Remarks = NO_REMARKS


class Breach(Exception):
    """Raised by an adapter around a user's function for what that did against its contract; the
    arguments are those of :class:`Execution`."""

    def __init__(
        self, contract: str | None = None, *, mutated: tuple[str, ...] = (), causes: tuple[Cause, ...] = ()
    ) -> None:
        super().__init__(contract or "; ".join(mutated))
        self.contract = contract
        self.mutated = mutated
        self.causes = causes


def crash_kind(error: BaseException) -> str:
    seen: BaseException | None = error
    while seen is not None:
        if type(seen).__name__ in ("CompilationError", "CompileTimeAssertionFailure", "PTXASError"):
            return "compile"
        seen = seen.__cause__ or seen.__context__
    return "launch"


def one_line(error: BaseException, limit: int = 300) -> str:
    """Type and text of an exception on one line. Triton wraps the cause: take the innermost."""
    while error.__cause__ is not None:
        error = error.__cause__
    try:
        text = " ".join(str(error).split())
    except Exception as second:  # its own __str__ may raise
        text = f"(without a text: {type(second).__name__} in its __str__)"
    return f"{type(error).__name__}: {text}"[:limit]


def raised_in(error: BaseException, kernel: Kernel) -> str:
    """`` at file.py:12`` of the last line of the kernel's own file that the exception passed, or empty."""
    code = getattr(inspect.unwrap(kernel.function), "__code__", None)
    if code is None:
        return ""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == code.co_filename]
    return f" (at {Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""


def contract_breach(
    result: Any, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> str | None:
    if not isinstance(result, torch.Tensor):
        return f"expected a tensor, found {type(result).__name__}"
    if result.layout is not torch.strided or result.is_neg() or result.is_conj():
        return f"expected a plain strided tensor, found {result.layout} with pending negation or conjugation"
    if result.dtype != dtype:
        return f"expected dtype {describe(dtype)}, found {describe(result.dtype)}"
    if tuple(result.shape) != shape:
        return f"expected shape {list(shape)}, found {list(result.shape)}"
    if result.device != device:
        return f"expected device {device}, found {result.device}"
    return None


def identity(tensors: Iterable[tuple[str, torch.Tensor]]) -> list[tuple[Any, ...]]:
    """What a kernel must leave as it was besides bytes: which tensors a weight has, where, how strided."""
    return [(name, id(t), t.data_ptr(), t.dtype, t.shape, t.stride()) for name, t in tensors]


class _Run(NamedTuple):
    """One call of a kernel: its output's bits at once, and the result itself for a later look."""

    bits: np.ndarray
    result: torch.Tensor
    output: OutputArena | None


def _call(
    kernel: Kernel,
    weight: PackedWeight,
    dtype: torch.dtype,
    device: torch.device,
    output: OutputArena | None,
    launch: Mapping[str, int] | None,
) -> torch.Tensor | Execution:
    """Call the kernel once; an :class:`Execution` says why there is no result."""
    arguments: dict[str, Any] = dict(launch or {})
    if output is not None:
        arguments["out"] = output.tensor
        place = (output.tensor.data_ptr(), output.tensor.stride())
    try:
        with np.errstate(all="ignore"), staying():  # the interpreter computes with NumPy
            result = kernel.function(weight, dtype=dtype, **arguments)
        wait(device)
    except Unsupported as refusal:
        return Execution(unsupported=str(refusal.reason))
    except Breach as found:
        return Execution(contract=found.contract, mutated=found.mutated, causes=found.causes)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a kernel may raise anything, pytest.skip too: a CRASH verdict
        lost = device_loss.why_lost(device)
        return Execution(crash=crash_kind(error), error=one_line(error) + raised_in(error, kernel), lost=lost)
    breach = contract_breach(result, weight.output_shape, dtype, device)
    if breach is None and output is not None and (result.data_ptr(), result.stride()) != place:
        breach = "expected the given out to be returned, found another tensor"
    if breach:
        return Execution(contract=breach)
    checked: torch.Tensor = result
    return checked


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
    execution = _execute(kernel, weight, dtype, device, layout, dest, launch)
    return execution if kernel.remarks is None else dataclasses.replace(execution, remarks=kernel.remarks())


def _execute(
    kernel: Kernel,
    weight: PackedWeight,
    dtype: torch.dtype,
    device: torch.device,
    layout: str,
    dest: str,
    launch: Mapping[str, int] | None,
) -> Execution:
    count = 3 if dest == "new" and kernel.remarks is None else 2
    inputs = Arena(dict(named_tensors(weight)), layout)
    outputs = [_output(kernel, weight, dtype, dest, number) for number in range(count)]
    # The inputs last: what is looked at after a call is then one piece.
    fenced = [*(output for output in outputs if output is not None), inputs]
    memory = Memory(fenced, device)
    device = memory.buffer.device
    views = {name: inputs.view(name) for name in inputs.sections}
    embedded = map_tensors(weight, lambda name, _: views[name])
    before = identity(views.items())
    expected = memory.snapshot
    runs: list[_Run] = []
    stray: list[str] = []
    mutated: list[str] = []
    strayed: list[str] = []
    for number, output in enumerate(outputs):
        with watched(inputs) as reads:
            found = _call(kernel, embedded, dtype, device, output, launch)
        strayed += reads
        if isinstance(found, Execution) and found.lost:
            return found  # nothing on the device can be looked at any more
        now = memory.read()
        bits = None if output is None else output.allow(expected[output.start :], now[output.start :])
        if not alike(expected, now):
            # Outputs behind this call's own are among what lies beside it.
            others = outputs[:number] if output is not None else outputs
            stray += _touched([other for other in others if other is not None], expected, now)
            if output is not None:
                beside = slice(output.start, inputs.start)
                stray += output.stray_writes(now[beside], expected[beside])
            expected[: inputs.start] = now[: inputs.start]  # each change is said once
            changed, fences = inputs.changes(now[inputs.start :])
            mutated = mutated or changed
            stray += fences
        if isinstance(found, Execution):
            if found.unsupported is not None and runs:
                found = Execution(contract="expected an answer as in the call before, found Unsupported")
            stray = list(dict.fromkeys(stray))
            return dataclasses.replace(found, stray=tuple(stray), mutated=(*found.mutated, *mutated))
        # Of the memory that was handed out: the tensor object may have been pointed elsewhere.
        runs.append(_Run(to_bits(found).copy() if bits is None else bits, found, output))
        first = runs[0]
        if number and first.output is None and (to_bits(first.result) != first.bits).any():
            return Execution(
                contract="expected a tensor of its own, found one that a later call overwrote",
                stray=tuple(dict.fromkeys(stray)),
                mutated=tuple(mutated),
            )
    if identity(named_tensors(embedded)) != before:
        mutated.append("the weight's tensors were replaced by others")
    unwritten = _unwritten(runs)
    return Execution(
        bits=runs[0].bits,
        stray=tuple(dict.fromkeys(stray)),
        mutated=tuple(mutated),
        strayed=tuple(dict.fromkeys(strayed)),
        unwritten=unwritten,
        unstable=_unstable(runs, dtype, unwritten),
    )


def _touched(outputs: list[OutputArena], expected: np.ndarray, now: np.ndarray) -> list[str]:
    """What a call wrote into the outputs of other calls or beside them: a sentence for each."""
    found = []
    for output in outputs:
        part = slice(output.start, output.start + output.size)
        at = np.flatnonzero(now[part] != expected[part])
        if at.size:
            where = output.place(int(at[0]))
            found.append(f"{at.size} bytes of another call's output and its fence changed, the first {where}")
    return found


def _output(
    kernel: Kernel, weight: PackedWeight, dtype: torch.dtype, dest: str, run: int
) -> OutputArena | None:
    """The output that a run is given, or None where the kernel allocates it."""
    if not kernel.takes_out or (run != 1 and dest == "new"):
        return None
    layout = "contiguous" if run or dest in ("given", "new") else dest
    return OutputArena(weight.output_shape, dtype, run, layout)


def _unwritten(runs: list[_Run]) -> np.ndarray | None:
    """Mask of elements that still hold the poison in every run that was given an output, or None where
    there is none."""
    unwritten: np.ndarray | None = None
    for run in runs:
        if run.output is not None:
            mask = run.bits == run.output.payload
            unwritten = mask if unwritten is None else unwritten & mask
            if not np.count_nonzero(unwritten):
                return None
    return unwritten


def _unstable(runs: list[_Run], dtype: torch.dtype, unwritten: np.ndarray | None) -> np.ndarray | None:
    """Mask of written elements that differ from the first run's in another, or None where there is none."""
    first = runs[0].bits
    others = [run.bits for run in runs[1:] if not all_same(first, run.bits, dtype)]
    if not others:
        return None
    unstable: np.ndarray = np.logical_or.reduce([~same(first, bits, dtype) for bits in others])
    if unwritten is not None:
        unstable &= ~unwritten
    return unstable if unstable.any() else None
