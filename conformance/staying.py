"""What a kernel does to the whole process: ending it would take the verdicts along, and new defaults of torch
would be everyone's, the harness's and upstream's too."""

from __future__ import annotations

import os
from types import TracebackType
from typing import Any, NamedTuple

import torch

from conformance.execution import Breach


class Defaults(NamedTuple):
    """What torch makes tensors as where nothing is said."""

    dtype: torch.dtype
    device: torch.device

    @classmethod
    def now(cls) -> Defaults:
        # torch.get_default_device takes four times as long.
        found = torch.empty(0)
        return cls(found.dtype, found.device)

    def restore(self) -> str | None:
        """Set them again; what had been changed, with what it was, or None."""
        found = Defaults.now()
        if found == self:
            return None
        torch.set_default_dtype(self.dtype)
        # None: a device that is set makes each call of torch look at it.
        torch.set_default_device(None if self.device.type == "cpu" else self.device)
        name = "dtype" if found.dtype != self.dtype else "device"
        was, became = (str(getattr(one, name)).removeprefix("torch.") for one in (self, found))
        return f"torch's default {name} as {was}, found it set to {became}"


class Left(Exception):
    """A kernel called ``os._exit``."""


class Staying:
    """Within the block, raise :class:`Left` where it calls ``os._exit``: a run that ends with code 0 in the
    middle would look like one that passed. Processes that the block forks may still leave.

    Raises :class:`Breach` at its end where torch's defaults are others than before; they are set again, also
    where the block raised."""

    # Not contextlib's: three times as long, in each call of a kernel.
    __slots__ = ("_defaults", "_here", "_leave")

    def __enter__(self) -> None:
        self._defaults = Defaults.now()
        self._here, self._leave = os.getpid(), os._exit
        os._exit = self._refuse  # type: ignore[assignment]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os._exit = self._leave
        changed = self._defaults.restore()
        if changed is not None and error is None:
            raise Breach(f"expected the call to leave {changed}")

    def _refuse(self, status: int) -> Any:
        if os.getpid() != self._here:
            self._leave(status)
        raise Left(f"the kernel called os._exit({status}), which would have ended the run")
