"""Run a kernel on a fenced copy of a weight, twice, and say what it did. Compares no values."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from conformance.arena import Arena, OutputArena
from conformance.bits import to_bits
from conformance.registry import Kernel
from kernels import Unsupported
from kernels._packed import PackedWeight, describe, map_tensors, named_tensors


@dataclasses.dataclass(frozen=True)
class Execution:
    """What two runs of a kernel did.

    Attributes:
        bits: output of the first run as bit patterns, or None when there is none.
        crash: ``compile`` or ``launch`` when the kernel raised, with ``error`` as its text.
        unsupported: the kernel's own reason for not doing this case.
        contract: what the returned tensor should have been, when it is another.
        stray: writes outside the output and the inputs.
        mutated: inputs that were written.
        unwritten: mask of elements that neither run wrote, or None when not observable.
        unstable: mask of elements that differ from run to run.
    """

    bits: np.ndarray | None = None
    crash: str | None = None
    error: str = ""
    unsupported: str | None = None
    contract: str | None = None
    stray: tuple[str, ...] = ()
    mutated: tuple[str, ...] = ()
    unwritten: np.ndarray | None = None
    unstable: np.ndarray | None = None


def _crash_kind(error: BaseException) -> str:
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
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:limit]


def _contract_breach(
    result: Any, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> str | None:
    if not isinstance(result, torch.Tensor):
        return f"expected a tensor, found {type(result).__name__}"
    if result.dtype != dtype:
        return f"expected dtype {describe(dtype)}, found {describe(result.dtype)}"
    if tuple(result.shape) != shape:
        return f"expected shape {list(shape)}, found {list(result.shape)}"
    if result.device != device:
        return f"expected device {device}, found {result.device}"
    return None


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
    gets it: ``given``, ``strided``, or ``new`` (the kernel allocates); the second run is
    always given one, if the kernel takes one. Exceptions of the kernel are recorded.
    """
    shape = weight.output_shape
    arena = Arena(dict(named_tensors(weight)), layout, device)
    embedded = map_tensors(weight, lambda name, _: arena.view(name))
    if device.type == "cuda":
        device = arena.buffer.device
    stray: list[str] = []
    bits: list[np.ndarray] = []
    poisons: list[int | None] = []
    for run in (0, 1):
        own = (run == 0 and dest == "new") or not kernel.takes_out
        arguments: dict[str, Any] = dict(launch or {})
        output = None
        if not own:
            output = OutputArena(shape, dtype, run, run == 0 and dest == "strided", device)
            arguments["out"] = output.tensor
        try:
            with np.errstate(all="ignore"):  # the interpreter computes with NumPy
                result = kernel.function(embedded, dtype=dtype, **arguments)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
        except Unsupported as refusal:
            return Execution(unsupported=refusal.reason)
        except Exception as error:  # a kernel may raise anything; it becomes a CRASH verdict
            return Execution(crash=_crash_kind(error), error=one_line(error))
        breach = _contract_breach(result, shape, dtype, device)
        if breach is None and output is not None and result.data_ptr() != output.tensor.data_ptr():
            breach = "expected the given out to be returned, found another tensor"
        if breach:
            return Execution(contract=breach)
        bits.append(to_bits(result))
        poisons.append(None if output is None else output.payload)
        if output is not None:
            stray += output.stray_writes()
    mutated, fences = arena.changes()
    first, second = bits
    unwritten = None
    if poisons[1] is not None:
        unwritten = second == poisons[1]
        if poisons[0] is not None:
            unwritten = unwritten & (first == poisons[0])
    unstable = first != second
    if unwritten is not None:
        unstable = unstable & ~unwritten
    return Execution(
        bits=first,
        stray=tuple(dict.fromkeys(stray + fences)),
        mutated=tuple(mutated),
        unwritten=unwritten if unwritten is not None and unwritten.any() else None,
        unstable=unstable if unstable.any() else None,
    )
