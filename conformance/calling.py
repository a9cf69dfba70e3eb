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

# Of the class: an exception's own attribute may be one that raises.
_CAUSE: Any = BaseException.__dict__["__cause__"]
_CONTEXT: Any = BaseException.__dict__["__context__"]


def _chain(error: BaseException) -> list[BaseException]:
    """An exception and what it came from, the innermost last; each once, though they may go round."""
    found: list[BaseException] = []
    seen: BaseException | None = error
    while seen is not None and not any(seen is one for one in found):
        found.append(seen)
        cause = _CAUSE.__get__(seen)
        seen = cause or _CONTEXT.__get__(seen)
    return found


def crash_kind(error: BaseException) -> str:
    kinds = ("CompilationError", "CompileTimeAssertionFailure", "PTXASError")
    return "compile" if any(type(one).__name__ in kinds for one in _chain(error)) else "launch"


def _text(value: object) -> str:
    """``str(value)`` on one line; its ``__str__`` may raise anything, ``pytest.skip`` too."""
    try:
        return " ".join(str(value).split())
    except KeyboardInterrupt:
        raise
    except BaseException as second:
        return f"(without a text: {type(second).__name__} in its __str__)"


def one_line(error: BaseException, limit: int = 300) -> str:
    """Type and text of an exception on one line. Triton wraps the cause: take the innermost."""
    caused = [error]
    for one in _chain(error)[1:]:
        if _CAUSE.__get__(caused[-1]) is not one:
            break
        caused.append(one)
    return f"{type(caused[-1]).__name__}: {_text(caused[-1])}"[:limit]


def raised_in(error: BaseException, kernel: Kernel) -> str:
    """`` at file.py:12`` of the last line of the kernel's own file that the exception passed, or empty.

    Of the innermost one that did: the interpreter wraps what a ``@triton.jit`` function raises.
    """
    code = getattr(inspect.unwrap(kernel.function), "__code__", None)
    if code is None:
        return ""
    for one in reversed(_chain(error)):
        frames = [f for f in traceback.extract_tb(one.__traceback__) if f.filename == code.co_filename]
        if frames:
            return f" (at {Path(frames[-1].filename).name}:{frames[-1].lineno})"
    return ""


# Address and strides.
Place = tuple[int, tuple[int, ...]]


def contract_breach(
    result: Any,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    place: Place | None = None,
) -> str | None:
    """What a result should have been, or None; ``place``: where it must lie."""
    try:
        breach = _breach(result, shape, dtype, device)
        if breach is None and place is not None and not _is_given(result, place):
            breach = "expected the given out to be returned, found another tensor"
    except Exception as error:  # a tensor of another kind may raise when it is asked
        return not_plain(error)
    return breach


def not_plain(error: Exception) -> str:
    """What is wrong with a tensor that raises when it is looked at."""
    return f"expected a plain strided tensor, found one that raises {one_line(error)}"


def _breach(result: Any, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> str | None:
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


def _is_given(result: torch.Tensor, place: Place) -> bool:
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
    place = None
    if output is not None:
        arguments["out"] = output.tensor
        place = (output.tensor.data_ptr(), output.tensor.stride())
    try:
        with np.errstate(all="ignore"), Staying():  # the interpreter computes with NumPy
            result = kernel.function(weight, dtype=dtype, **arguments)
        wait(device)
    except Unsupported as refusal:
        return Execution(unsupported=_text(getattr(refusal, "reason", "")))
    except Breach as found:
        return Execution(contract=found.contract, mutated=found.mutated, causes=found.causes)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a kernel may raise anything, pytest.skip too: a CRASH verdict
        lost = device_loss.why_lost(device)
        return Execution(crash=crash_kind(error), error=one_line(error) + raised_in(error, kernel), lost=lost)
    breach = contract_breach(result, shape, dtype, device, place)
    if breach:
        return Execution(contract=breach)
    checked: torch.Tensor = result
    return checked
