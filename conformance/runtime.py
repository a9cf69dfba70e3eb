"""Choose the device before any kernel is imported: ``@triton.jit`` reads the choice once."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import platform
import sys

import torch

from conformance.errors import UsageError


@dataclasses.dataclass(frozen=True)
class Runtime:
    """Where kernels run.

    Attributes:
        device: device of the tensors.
        interpreter: Triton's interpreter on the CPU instead of compiled code.
    """

    device: torch.device
    interpreter: bool

    def __str__(self) -> str:
        if self.interpreter:
            return "cpu (Triton interpreter: no GPU code is tested)"
        return f"{self.device} ({torch.cuda.get_device_name(self.device)})"


def _interpreted_already() -> bool | None:
    """Whether kernels are already imported, and if so for the interpreter."""
    module = sys.modules.get("kernels._blockwise")
    if module is None:
        return None
    return type(module._blockwise_kernel).__name__ == "InterpretedFunction"


def choose(option: str = "auto") -> Runtime:
    """Set up Triton for ``option``: auto, cpu, cuda or cuda:N.

    ``auto`` takes the GPU if there is one, unless TRITON_INTERPRET=1 is set.

    Raises:
        UsageError: unknown device, no such GPU, or kernels already imported for another one.
    """
    available = torch.cuda.is_available()
    if option == "auto":
        asked = os.environ.get("TRITON_INTERPRET", "0") in ("1", "true", "True", "on")
        option = "cuda" if available and not asked else "cpu"
    if option == "cpu":
        runtime = Runtime(torch.device("cpu"), True)
    else:
        try:
            device = torch.device(option)
        except RuntimeError:
            device = None
        if device is None or device.type != "cuda":
            raise UsageError(f"device: expected auto, cpu, cuda or cuda:N, found {option!r}")
        if not available:
            raise UsageError(
                f"device: expected a usable GPU for {option!r}, found none (torch {torch.__version__})"
            )
        index = torch.cuda.current_device() if device.index is None else device.index
        if index >= torch.cuda.device_count():
            raise UsageError(
                f"device: expected cuda:0 to cuda:{torch.cuda.device_count() - 1}, found {option!r}"
            )
        runtime = Runtime(torch.device("cuda", index), False)
    before = _interpreted_already()
    if before is not None and before != runtime.interpreter:
        raise UsageError(
            "device: expected kernels not to be imported yet, found them set up for another device"
        )
    os.environ["TRITON_INTERPRET"] = "1" if runtime.interpreter else "0"
    return runtime


def environment(runtime: Runtime) -> dict[str, str]:
    """Versions and device, for headers, results and bundles."""
    import numpy
    import triton

    try:
        hypothesis = importlib.metadata.version("hypothesis")
    except importlib.metadata.PackageNotFoundError:  # replay does without
        hypothesis = "not installed"
    return {
        "device": str(runtime),
        "torch": str(torch.__version__),  # a plain string: execnet sends no subclass
        "triton": triton.__version__,
        "numpy": numpy.__version__,
        "hypothesis": hypothesis,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
    }
