"""CPU threads of a run's workers: together as many as there are cores.

torch starts one a core in every process, and the threads of one wait for those of the others. Two processes
that pack weights on two cores took two to seven times as long with two threads each as with one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

VARIABLE = "OMP_NUM_THREADS"


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def share(workers: int, environment: Mapping[str, str]) -> str | None:
    """What each of ``workers`` is to find in :data:`VARIABLE`; None where the user has said it."""
    if workers < 1 or environment.get(VARIABLE):
        return None
    return str(max(1, cores() // workers))
