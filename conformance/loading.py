"""Kernels from outside: a path as it is given on the command line, and the function that it names."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from conformance.errors import UsageError
from conformance.registry import FUSED, Format, Kernel, builtin_kernel
from conformance.staying import Shared


def load_kernel(path: str) -> Callable[..., torch.Tensor]:
    """Function named ``package.module:function`` or ``path/to/file.py:function``.

    Raises:
        UsageError: not of that form, not importable, not callable, or its import changes what tensors are
            made as for the whole process.
    """
    module_name, colon, attribute = path.rpartition(":")
    if not colon or not module_name or not attribute:
        raise UsageError(f"kernel: expected module:function or file.py:function, found {path!r}")
    before, here = Shared.now(), Path.cwd()
    try:
        if module_name.endswith(".py"):
            file = Path(module_name)
            if not file.is_file():
                raise UsageError(f"kernel: expected a file, found nothing at {module_name!r}")
            alias = f"_kernel_under_test_{file.stem}"
            spec = importlib.util.spec_from_file_location(alias, file)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[alias] = module  # @triton.jit looks its source up here
            spec.loader.exec_module(module)
        else:
            if "" not in sys.path and str(Path.cwd()) not in sys.path:
                sys.path.append(str(Path.cwd()))
            module = importlib.import_module(module_name)
    except UsageError:
        raise
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # sys.exit and pytest.skip at its top level too
        raise UsageError(
            f"kernel: expected {module_name!r} to import, found {type(error).__name__}: "
            + " ".join(str(error).split())
        ) from error
    finally:
        os.chdir(here)  # results go where the run was begun
        changed = before.put_back()
    if changed:
        raise UsageError(f"kernel: expected the import of {module_name!r} to leave {changed}")
    function = getattr(module, attribute, None)
    if not callable(function):
        raise UsageError(f"kernel: expected a function {attribute!r} in {module_name!r}, found {function!r}")
    return function


def user_kernel(fmt: Format, path: str) -> Kernel:
    """Kernel given on the command line. The built-in one keeps its launch arguments; a path that begins
    with ``fused:`` names a fused kernel."""
    if path.startswith(FUSED):
        from conformance.fused import fused_kernel

        return fused_kernel(fmt, path.removeprefix(FUSED))
    function = load_kernel(path)
    if function is fmt.kernel:
        return builtin_kernel(fmt)
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError) as error:
        raise UsageError(f"kernel: expected {path!r} to be a Python function, found {function!r}") from error
    variadic = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    if "dtype" not in parameters and not variadic:
        raise UsageError(f"kernel: expected {path!r} to take (weight, *, dtype, out=None), found no dtype")
    return Kernel(path, function, builtin=False, takes_out="out" in parameters or variadic)
