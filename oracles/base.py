"""What an oracle is."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import torch

Kind = Literal["call", "identity probe", "recorded"]


class Declined(Exception):
    """Raised by an oracle when upstream does not accept the input; counted, not judged."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclasses.dataclass(frozen=True)
class Provenance:
    """Where an oracle's answer comes from.

    Attributes:
        package: distribution name on the package index.
        version: installed version, or None when it is not installed.
        tested: version this adapter was written against.
        callable: dotted name of the upstream function that answers.
        kind: ``call`` (dequantize function called directly), ``identity probe`` (a matrix
            product with the identity, where upstream can only multiply) or ``recorded``.
    """

    package: str
    version: str | None
    tested: str
    callable: str
    kind: Kind

    def __str__(self) -> str:
        version = self.version or "not installed"
        note = "" if self.version in (None, self.tested) else f", tested with {self.tested}"
        return f"{self.package} {version} ({self.kind} {self.callable}{note})"


@dataclasses.dataclass(frozen=True)
class Oracle:
    """One upstream answer to "what does this packed weight decode to?".

    Attributes:
        name: short id used in reports, options and the known-faults file.
        provenance: package, version, callable and kind.
        missing: reason why this oracle cannot answer on a device, or None when it can.
        dequantize: ``(weight, dtype) -> tensor`` of the weight's output shape, on the weight's
            device. Never writes its inputs. Raises :class:`Declined` where upstream does not
            accept the weight. None: upstream packs this format but does not decode it.
        pack: upstream's own packer, where it has one: float weights (and the format's
            parameters) to a packed weight.
    """

    name: str
    provenance: Callable[[], Provenance]
    missing: Callable[[torch.device], str | None]
    dequantize: Callable[[Any, torch.dtype], torch.Tensor] | None
    pack: Callable[..., Any] | None = None
