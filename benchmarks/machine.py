"""Where a run happens: device, clock, and what the report says of them."""

from __future__ import annotations

import dataclasses
import datetime
import platform
from typing import Any

import torch

from benchmarks.timing import CudaTimer, Timer
from conformance.errors import UsageError
from conformance.runtime import choose

# Of an H200 and more than most have; where torch does not say.
_L2_BYTES = 60 * 2**20


@dataclasses.dataclass(frozen=True)
class Machine:
    """Attributes: device of the tensors; timer; l2_bytes of the device's last cache; about, for reports."""

    device: torch.device
    timer: Timer
    l2_bytes: int
    about: dict[str, Any]

    def usable(self) -> str:
        """Why nothing more can be run, or an empty string: a fault on a GPU ends its context."""
        if self.device.type == "cuda":
            try:
                torch.cuda.synchronize(self.device)
            except Exception as error:  # whatever is raised, the context is gone
                return " ".join(str(error).split())[:200]
        return ""

    def release(self) -> None:
        """Give cached memory back."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


def cuda_machine(option: str = "cuda") -> Machine:
    """The GPU that ``option`` names; sets Triton up for it.

    Raises:
        UsageError: there is none, or the kernels are imported for the interpreter already.
    """
    if not torch.cuda.is_available():
        raise UsageError(f"device: expected a CUDA GPU to measure on, found none (torch {torch.__version__})")
    runtime = choose(option)
    if runtime.device.type != "cuda":
        raise UsageError(f"device: expected a CUDA GPU to measure on, found {option!r}")
    torch.cuda.set_device(runtime.device)
    properties = torch.cuda.get_device_properties(runtime.device)
    l2_bytes = int(getattr(properties, "L2_cache_size", 0) or _L2_BYTES)
    about = {"device": properties.name, "l2_bytes": l2_bytes, "cuda": torch.version.cuda, **versions()}
    return Machine(runtime.device, CudaTimer(runtime.device), l2_bytes, about)


def versions() -> dict[str, str]:
    """Versions and the day, for reports."""
    import triton

    return {
        "torch": torch.__version__,
        "triton": triton.__version__,
        "python": platform.python_version(),
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
    }
