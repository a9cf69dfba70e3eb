"""Upstream's fused products, each ``(x, weight) -> y`` for ``--fused FORMAT=oracles.fused.MODULE:FUNCTION``.

x [M, K] in float16, bfloat16 or float32 on the weight's device, y [M, N] of the same dtype. An adapter calls
upstream and computes nothing; where upstream does not accept the input it raises ``kernels.Unsupported``.
They are kernels to be judged here, not oracles: nothing votes with them.
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Callable

import torch

from oracles.base import Provenance


@dataclasses.dataclass(frozen=True)
class FusedAdapter:
    """An upstream product.

    Attributes:
        path: what ``--fused`` takes after the equals sign.
        formats: names of the formats it multiplies.
        provenance: package, version and callable.
        missing: reason why it cannot run on a device, or None when it can.
        accumulate: what it sums in, where that is not float32: options for the run.
    """

    path: str
    formats: tuple[str, ...]
    provenance: Callable[[], Provenance]
    missing: Callable[[torch.device], str | None]
    accumulate: str = ""


def adapters() -> tuple[FusedAdapter, ...]:
    """All of them. Imports this package's modules, and upstream only when they are asked."""
    found: list[FusedAdapter] = []
    for info in sorted(pkgutil.iter_modules(__path__), key=lambda info: info.name):
        found += importlib.import_module(f"{__name__}.{info.name}").ADAPTERS
    return tuple(found)
