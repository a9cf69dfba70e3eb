"""Compile the kernels for a GPU that is not there: what the interpreter accepts, the compiler may not.

The launches are captured, not described: the launcher runs on CPU tensors with Triton's
``run`` replaced, so that argument types, divisibility by 16 and constexprs are those of a
real launch. Runs in a process of its own (``python -m conformance compile``), because the
interpreter and the compiler cannot share one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime import jit

from conformance.bits import DTYPES
from conformance.case import Case
from conformance.errors import UsageError
from conformance.materialize import materialize
from conformance.registry import Format

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_89": GPUTarget("cuda", 89, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "sm_120": GPUTarget("cuda", 120, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}


@dataclasses.dataclass(frozen=True)
class Launch:
    """One captured launch: the function, its specialized signature and its options."""

    function: Any
    signature: dict[str, str]
    constants: dict[str, Any]
    divisible: tuple[int, ...]
    options: dict[str, Any]

    @property
    def key(self) -> str:
        shown = {name: value for name, value in self.constants.items() if not isinstance(value, torch.dtype)}
        types = ",".join(kind for kind in self.signature.values() if kind != "constexpr")
        return f"{self.function.fn.__name__}({types}) {shown} {self.divisible}"


def _specialize(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Launch:
    parameters = {parameter.name: parameter for parameter in function.params}
    named = {name: value for name, value in kwargs.items() if name in parameters}
    bound = inspect.signature(function.fn).bind(*args, **named)
    bound.apply_defaults()
    signature, constants, divisible = {}, {}, []
    for index, (name, value) in enumerate(bound.arguments.items()):
        parameter = parameters[name]
        plain = parameter.do_not_specialize
        one = isinstance(value, int) and value == 1 and not plain
        if parameter.is_constexpr or value is None or one:
            signature[name], constants[name] = "constexpr", value
            continue
        signature[name] = jit.mangle_type(value)
        number = value.data_ptr() if isinstance(value, torch.Tensor) else value
        plain = plain or getattr(parameter, "do_not_specialize_on_alignment", False)
        if isinstance(number, int) and number % 16 == 0 and not plain:
            divisible.append(index)
    taken = {*parameters, "grid", "warmup"}
    options = {name: value for name, value in kwargs.items() if name not in taken}
    return Launch(function, signature, constants, tuple(divisible), options)


@contextlib.contextmanager
def captured() -> Iterator[list[Launch]]:
    """Record launches instead of running them; CPU tensors are let through."""
    found: list[Launch] = []

    def run(self: Any, *args: Any, **kwargs: Any) -> None:
        found.append(_specialize(self, args, kwargs))

    with (
        mock.patch.object(jit.JITFunction, "run", run),
        mock.patch("kernels._launch.is_interpreted", return_value=True),
    ):
        yield found


def launches(fmt: Format, case: Case) -> list[Launch]:
    """Launches that the built-in kernel makes for a case.

    Raises:
        UsageError: kernels are set up for the interpreter in this process.
    """
    weight, _ = materialize(fmt, case)
    with captured() as found:
        fmt.kernel(weight, dtype=DTYPES[case["out"]])
    if not found:
        raise UsageError(
            f"compile: expected a compiled launch of {fmt.name}, found none: is TRITON_INTERPRET set?"
        )
    return found


@dataclasses.dataclass(frozen=True)
class Compiled:
    """What the compiler made of a launch, or why it refused (``error``)."""

    format: str
    case: str
    target: str
    error: str = ""
    shared: int = 0
    wide_stores: int = 0
    stores: int = 0
    fused: int = 0


def cases_to_compile(fmt: Format) -> list[Case]:
    """Cases that between them reach the format's compiled variants: output dtypes and tile cases."""
    texts = dict.fromkeys(("", *fmt.tile_cases))
    return [fmt.parse(text).replace(out=out) for out in DTYPES for text in texts]


def compile_formats(formats: list[Format], targets: list[str]) -> Iterator[Compiled]:
    """Compile every distinct launch of every format for every target."""
    for fmt in formats:
        seen: set[str] = set()
        for case in cases_to_compile(fmt):
            for launch in launches(fmt, case):
                if launch.key in seen:
                    continue
                seen.add(launch.key)
                for target in targets:
                    yield compile_launch(launch, fmt.name, case.id, target)


def compile_launch(launch: Launch, fmt: str, case: str, target: str) -> Compiled:
    """Compile one launch ahead of time and count what matters in its PTX (or AMD assembly)."""
    attributes: dict[tuple[int, ...], list[list[Any]]] = {
        (index,): [["tt.divisibility", 16]] for index in launch.divisible
    }
    try:
        source = ASTSource(launch.function, launch.signature, constexprs=launch.constants, attrs=attributes)
        built = triton.compile(source, target=TARGETS[target], options=dict(launch.options))
    except Exception as error:  # any refusal is the result
        text = " ".join(str(error.__cause__ or error).split())
        return Compiled(fmt, case, target, f"{type(error).__name__}: {text}"[:400])
    text = str(built.asm.get("ptx") or built.asm.get("amdgcn") or "")
    return Compiled(
        fmt,
        case,
        target,
        shared=built.metadata.shared,
        wide_stores=text.count("st.global.v4") + text.count("global_store_dwordx4"),
        stores=text.count("st.global") + text.count("global_store_"),
        fused=text.count("fma."),
    )
