"""Wait for a device: what was launched on any of its streams is done, or its error is raised."""

from __future__ import annotations

import torch

# Older releases of torch have none.
_ACCELERATOR = getattr(torch, "accelerator", None)


def wait(device: torch.device) -> None:
    """Until ``device`` is idle; at once for the CPU. Raises RuntimeError for what a kernel did to it."""
    if device.type != "cuda":
        return
    if _ACCELERATOR is not None and device.index is not None:
        # torch.cuda's own makes the device current first, in Python: twice the time of the wait itself.
        _ACCELERATOR.synchronize(device.index)
    else:
        torch.cuda.synchronize(device)
