"""One call of a kernel, and how it ended. Looks at no memory and compares no values."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from conformance import device_loss
from conformance.arena import OutputArena
from conformance.execution import Breach, Execution
from conformance.registry import Kernel
from conformance.staying import Staying
from conformance.waiting import wait
from kernels import Unsupported
from kernels._packed import PackedWeight, describe


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


def _is_given(result: torch.Tensor, place: tuple[int, tuple[int, ...]]) -> bool:
    """Whether a result lies where the output that was given did: address and strides."""
    address, strides = place
    if (result.data_ptr(), result.stride()) == place:
        return True
    # A view may have another stride along a dimension of one element.
    steps = zip(result.shape, result.stride(), strides, strict=True)
    return result.data_ptr() == address and all(size < 2 or step == given for size, step, given in steps)


def call(
    kernel: Kernel,
    weight: PackedWeight,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    output: OutputArena | None,
    launch: Mapping[str, int] | None,
) -> torch.Tensor | Execution:
    """Call the kernel once, for an output [shape]; an :class:`Execution` says why there is no result."""
    arguments: dict[str, Any] = dict(launch or {})
    if output is not None:
        arguments["out"] = output.tensor
        place = (output.tensor.data_ptr(), output.tensor.stride())
    try:
        with np.errstate(all="ignore"), Staying():  # the interpreter computes with NumPy
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
    breach = contract_breach(result, shape, dtype, device)
    if breach is None and output is not None and not _is_given(result, place):
        breach = "expected the given out to be returned, found another tensor"
    if breach:
        return Execution(contract=breach)
    checked: torch.Tensor = result
    return checked
