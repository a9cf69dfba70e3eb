"""Compile a captured launch for a GPU that need not be there; where Triton's interface differs by version."""

from __future__ import annotations

import inspect
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from conformance.ahead.launches import Launch

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_89": GPUTarget("cuda", 89, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "sm_120": GPUTarget("cuda", 120, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
VERSION = tuple(int(part) for part in triton.__version__.split(".")[:2])
# First Triton that compiles for a target with what its wheel holds: 3.2's ptxas knows no Blackwell, and
# up to 3.4 the linker for AMD has to come from an installation of ROCm.
SINCE = {"sm_100": (3, 3), "sm_120": (3, 3), "gfx942": (3, 5)}


def unsupported(target: str) -> str:
    """Why this Triton does not compile for a target; empty if it does."""
    since = SINCE.get(target, (0, 0))
    if since <= VERSION:
        return ""
    return f"{target} needs Triton {since[0]}.{since[1]}, this is {triton.__version__}"


def _source(launch: Launch) -> Any:
    if "constexprs" in inspect.signature(ASTSource.__init__).parameters:
        attributes = {(index,): [["tt.divisibility", 16]] for index in launch.divisible}
        return ASTSource(launch.function, launch.signature, constexprs=launch.constants, attrs=attributes)
    # Triton 3.2: the signature has run-time arguments alone, and hints are an object.
    from triton.backends.compiler import AttrsDescriptor

    signature = {name: launch.signature[name] for name in launch.runtime}
    hints = AttrsDescriptor.from_hints(dict.fromkeys(launch.divisible, 16))
    return ASTSource(launch.function, signature, constants=launch.constants, attrs=hints)


def build(launch: Launch, target: str) -> Any:
    """Triton's compiled kernel: ``asm`` and ``metadata``. Raises whatever the compiler raises."""
    return triton.compile(_source(launch), target=TARGETS[target], options=dict(launch.options))
