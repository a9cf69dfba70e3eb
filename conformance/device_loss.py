"""A GPU that a kernel broke: after an illegal access every later CUDA call of the process fails alike.

CUDA calls such an error sticky. Verdicts given after it would accuse kernels that did nothing, so
the process must give none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from conformance.harness import Checked


class DeviceLost(BaseException):
    """Ends a test at once. No Exception: Hypothesis would go on to shrink, and call it a failure.

    Attributes:
        reason: what the device answers now, on one line.
        checked: the verdict on the case that lost it, or None where it was not a launch that did.
    """

    def __init__(self, reason: str, checked: Checked | None = None) -> None:
        super().__init__(f"the CUDA context is lost: {reason}")
        self.reason = reason
        self.checked = checked


def why_lost(device: torch.device) -> str:
    """What a device answers to the smallest question, on one line; empty while it works."""
    if device.type == "cpu":
        return ""
    try:
        torch.cuda.synchronize(device)
        torch.zeros(1, device=device).item()
    except RuntimeError as error:
        text = str(error).strip().partition("\n")[0]
        # Full memory is an answer of a device that works.
        return "" if "out of memory" in text else text or type(error).__name__
    return ""
