"""Three GPUs that can break, for runs on machines without one: a plugin, ``-p tests.fake_gpus``.

A kernel breaks the GPU of its process with :func:`lose`; from then on the device answers as CUDA does
after an illegal access. Each process says which GPU it took in ``$FAKE_GPUS_LOG``.
"""

from __future__ import annotations

import os
from typing import Any

import torch

from conformance import device_loss, gpus
from conformance.runtime import Runtime, choose

COUNT = 3
ERROR = "CUDA error: an illegal memory access was encountered"
_lost: list[str] = []


def lose() -> None:
    _lost.append(ERROR)


def lost() -> bool:
    return bool(_lost)


def _use(option: str, gpu: int | None) -> Runtime:
    if gpu is not None:
        with open(os.environ["FAKE_GPUS_LOG"], "a", encoding="utf-8") as file:
            file.write(f"{os.environ['PYTEST_XDIST_WORKER']} {gpu}\n")
    return choose(option)


def _why_lost(device: torch.device) -> str:
    return ERROR if _lost else ""


def _shared(option: str, runtime: Any) -> int:
    return COUNT


def pytest_addoption(parser: Any) -> None:
    """The first that a plugin is asked; importing this module alone changes nothing."""
    gpus.use = _use
    gpus.shared = _shared
    device_loss.why_lost = _why_lost
