"""Launches of the built-in kernels, captured on a machine without a GPU.

They are captured, not described: the launcher runs on CPU tensors with Triton's ``run`` replaced,
so that argument types, divisibility by 16, constexprs and grid are those of a real launch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from triton.runtime import jit

from conformance.bits import DTYPES
from conformance.case import Case
from conformance.errors import UsageError
from conformance.materialize import materialize
from conformance.registry import Format
from kernels._packed import PackedWeight


@dataclasses.dataclass(frozen=True)
class Launch:
    """One captured launch.

    Attributes:
        function: the ``@triton.jit`` function.
        signature: parameter to type, ``constexpr`` for constants, in the order of the parameters.
        constants: values of the constexprs, of None and of integers that are 1.
        divisible: indices of the arguments that are specialized as multiples of 16.
        integers: values of the run-time integers.
        options: ``num_warps`` and the like.
        grid: programs along each axis.
    """

    function: Any
    signature: dict[str, str]
    constants: dict[str, Any]
    divisible: tuple[int, ...]
    integers: dict[str, int]
    options: dict[str, Any]
    grid: tuple[int, ...] = (1,)

    @property
    def kernel(self) -> str:
        """Name of the function, without leading underscores."""
        return str(self.function.fn.__name__).lstrip("_")

    @property
    def runtime(self) -> tuple[str, ...]:
        """Parameters that the compiled function still has, in order."""
        return tuple(name for name, kind in self.signature.items() if kind != "constexpr")

    @property
    def pointers(self) -> tuple[str | None, ...]:
        """:attr:`runtime`, with None for what is no pointer."""
        return tuple(name if self.signature[name].startswith("*") else None for name in self.runtime)

    @property
    def variant(self) -> str:
        """What decides the machine code: types (``+`` where a multiple of 16), constexprs, options.

        The same text in every version of Triton, so that results can be compared.
        """
        parts = []
        for index, (name, kind) in enumerate(self.signature.items()):
            if kind != "constexpr":
                parts.append(f"{name}:{kind}{'+' if index in self.divisible else ''}")
            else:
                parts.append(f"{name}={self.constants[name]}")
        parts += [f"{name}={value}" for name, value in sorted(self.options.items())]
        return " ".join(parts)


def specialize(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Launch:
    """What Triton's launcher would specialize a call on."""
    parameters = {parameter.name: parameter for parameter in function.params}
    named = {name: value for name, value in kwargs.items() if name in parameters}
    bound = inspect.signature(function.fn).bind(*args, **named)
    bound.apply_defaults()
    signature: dict[str, str] = {}
    constants: dict[str, Any] = {}
    integers: dict[str, int] = {}
    divisible = []
    for index, (name, value) in enumerate(bound.arguments.items()):
        parameter = parameters[name]
        plain = parameter.do_not_specialize
        one = isinstance(value, int) and value == 1 and not plain
        if parameter.is_constexpr or value is None or one:
            signature[name], constants[name] = "constexpr", value
            continue
        signature[name] = jit.mangle_type(value)
        if isinstance(value, int):
            integers[name] = value
        number = value.data_ptr() if isinstance(value, torch.Tensor) else value
        plain = plain or getattr(parameter, "do_not_specialize_on_alignment", False)
        if isinstance(number, int) and number % 16 == 0 and not plain:
            divisible.append(index)
    taken = {*parameters, "grid", "warmup"}
    options = {name: value for name, value in kwargs.items() if name not in taken}
    grid = kwargs.get("grid", (1,))
    if callable(grid):
        grid = grid(dict(bound.arguments))
    return Launch(
        function, signature, constants, tuple(divisible), integers, options, tuple(int(n) for n in grid)
    )


@contextlib.contextmanager
def captured() -> Iterator[list[Launch]]:
    """Record launches instead of running them; CPU tensors are let through."""
    found: list[Launch] = []

    def run(self: Any, *args: Any, **kwargs: Any) -> None:
        found.append(specialize(self, args, kwargs))

    with (
        mock.patch.object(jit.JITFunction, "run", run),
        mock.patch("kernels._launch.is_interpreted", return_value=True),
    ):
        yield found


def launches_of(fmt: Format, weight: PackedWeight, dtype: torch.dtype) -> list[Launch]:
    """Launches that the built-in kernel makes for a weight, with its default launch parameters.

    Raises:
        UsageError: kernels are set up for the interpreter in this process.
    """
    with captured() as found:
        fmt.kernel(weight, dtype=dtype)
    if not found:
        raise UsageError(
            f"compile: expected a compiled launch of {fmt.name}, found none: is TRITON_INTERPRET set?"
        )
    return found


def launches(fmt: Format, case: Case) -> list[Launch]:
    """:func:`launches_of` of a case's weight."""
    weight, _ = materialize(fmt, case)
    return launches_of(fmt, weight, DTYPES[case["out"]])
