"""What a kernel does to the whole process: ending it would take the verdicts along; new defaults of torch, a
mode left on its stacks or another working directory would be everyone's, the harness's and upstream's too."""

from __future__ import annotations

import os
from types import TracebackType
from typing import Any, NamedTuple

import torch
from torch import overrides
from torch.utils import _python_dispatch

from conformance.execution import Breach

_functions, _dispatches = torch._C._len_torch_function_stack, torch._C._len_torch_dispatch_stack


class Shared(NamedTuple):
    """What a process has once.

    Attributes:
        functions, dispatches: how many modes, which see or replace each call of torch, are on its two stacks.
        dtype, device: what tensors are made as where nothing is said.
        directory: the working directory, on which relative paths of results hang; None if it is deleted.
    """

    functions: int
    dispatches: int
    dtype: torch.dtype
    device: torch.device
    directory: str | None

    @classmethod
    def now(cls) -> Shared:
        functions, dispatches = _functions(), _dispatches()
        # torch.get_default_device takes four times as long.
        made = torch.empty(0)
        return cls(functions, dispatches, made.dtype, made.device, _directory())

    def put_back(self) -> str:
        """Set again what is another; what that is, or empty."""
        # Modes first: torch is asked for the rest.
        modes = self._leave_modes() if (_functions(), _dispatches()) != self[:2] else []
        found = Shared.now()
        if found == self and not modes:
            return ""
        changes = []
        if modes:
            changes.append(f"torch's modes as they were, found {', '.join(modes)} entered and not left")
        for name in ("dtype", "device"):
            was, became = (str(getattr(one, name)).removeprefix("torch.") for one in (self, found))
            if was != became:
                changes.append(f"torch's default {name} as {was}, found it set to {became}")
        torch.set_default_dtype(self.dtype)
        # None: a device that is set makes each call of torch look at it.
        torch.set_default_device(None if self.device.type == "cpu" else self.device)
        if self.directory is not None and found.directory != self.directory:
            changes.append(f"the working directory as {self.directory}, found {found.directory}")
            os.chdir(self.directory)
        return "; ".join(changes)

    def _leave_modes(self) -> list[str]:
        """Take off what was put on since: names of their classes, each once."""
        found: list[object] = []
        while _dispatches() > self.dispatches:
            found.append(_python_dispatch._pop_mode())
        # The default device is one of these.
        default = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
        kept = False
        while _functions() > self.functions:
            mode = overrides._pop_mode()
            if mode is default:
                kept = True
            else:
                found.append(mode)
        if kept:
            overrides._push_mode(default)
        return list(dict.fromkeys(type(mode).__name__ for mode in found))


def _directory() -> str | None:
    try:
        return os.getcwd()
    except OSError:
        return None


class Left(Exception):
    """A kernel called ``os._exit``."""


class Staying:
    """Within the block, raise :class:`Left` where it calls ``os._exit``: a run that ends with code 0 in the
    middle would look like one that passed. Processes that the block forks may still leave.

    Raises :class:`Breach` at its end where something of :class:`Shared` is another than before; it is put
    back, also where the block raised."""

    # Not contextlib's: three times as long, in each call of a kernel.
    __slots__ = ("_here", "_leave", "_shared")

    def __enter__(self) -> None:
        self._shared = Shared.now()
        self._here, self._leave = os.getpid(), os._exit
        os._exit = self._refuse  # type: ignore[assignment]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os._exit = self._leave
        changed = self._shared.put_back()
        if changed and error is None:
            raise Breach(f"expected the call to leave {changed}")

    def _refuse(self, status: int) -> Any:
        if os.getpid() != self._here:
            self._leave(status)
        raise Left(f"the kernel called os._exit({status}), which would have ended the run")
