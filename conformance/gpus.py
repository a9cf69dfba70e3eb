"""Which GPU each process of a run uses."""

from __future__ import annotations

import dataclasses

import torch

from conformance.runtime import Runtime, choose

# A case is mostly work of the CPU, so one GPU can serve several workers; each takes memory of it and,
# for torch and the upstream libraries, several gigabytes of the host.
WORKERS_A_GPU = 4


def shared(option: str, runtime: Runtime) -> int:
    """How many GPUs the workers of a run divide between them; 0: each uses the device of ``--device``."""
    if runtime.interpreter or option not in ("auto", "cuda"):
        return 0
    return torch.cuda.device_count()


def most_workers(default: int, gpus: int) -> int:
    """What ``-n auto`` starts where xdist would start ``default`` (one a core), on so many GPUs."""
    return min(default, WORKERS_A_GPU * gpus) if gpus else default


@dataclasses.dataclass
class Gpus:
    """Hands out ``count`` GPUs: to the first workers gw0, gw1, ... number K mod ``count``, to the
    replacement of a dead worker one that has the fewest, which is the dead one's."""

    count: int
    held: dict[str, int] = dataclasses.field(default_factory=dict)

    def take(self, worker: str) -> int:
        users = list(self.held.values())
        self.held[worker] = min(range(self.count), key=lambda gpu: (users.count(gpu), gpu))
        return self.held[worker]

    def give_back(self, worker: str) -> None:
        self.held.pop(worker, None)


def use(option: str, gpu: int | None) -> Runtime:
    """Runtime of this process: on the GPU that it was given, or as ``--device`` says.

    A given GPU becomes the current one as well: which worker runs a test must not decide whether a
    kernel that launches on the current device passes.
    """
    runtime = choose(option if gpu is None else f"cuda:{gpu}")
    if gpu is not None:
        torch.cuda.set_device(gpu)
    return runtime
