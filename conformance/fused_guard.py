"""Call a fused function on given activations, with the weight between fences."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch

from conformance.arena import Arena
from conformance.calling import crash_kind, one_line
from conformance.execute import identity, left_alone
from conformance.execution import Breach
from conformance.fused import Gemm
from conformance.fused_calls import Caller
from conformance.verdict import Cause
from kernels import Unsupported
from kernels._packed import PackedWeight, map_tensors, named_tensors


class Stopped(Exception):
    """Raised for a call after which there is nothing to compare.

    Attributes:
        kind: of the verdict.
        summary: what the function did, in words.
        causes: where it has a name.
    """

    def __init__(self, kind: str, summary: str, causes: tuple[Cause, ...] = ()) -> None:
        super().__init__(summary)
        self.kind = kind
        self.summary = summary
        self.causes = causes


@dataclasses.dataclass
class Guarded:
    """One function and one weight (CPU tensors), which is embedded in a layout of the arena."""

    function: Gemm
    weight: PackedWeight
    dtype: torch.dtype
    device: torch.device
    layout: str
    shape: tuple[int, int]

    def __post_init__(self) -> None:
        self._arena = Arena(dict(named_tensors(self.weight)), self.layout, self.device)
        self._embedded: Any = map_tensors(self.weight, lambda name, _: self._arena.view(name))
        self._before = identity(named_tensors(self._embedded))
        self._callers: dict[int, Caller] = {}

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """y as bits [M, N] for x float64 [M, K], whose values the dtype holds.

        Raises:
            Unsupported: the function says so.
            Stopped: it raised, returned no such y, or wrote what it must not.
        """
        tokens = len(x)
        if tokens not in self._callers:
            self._callers[tokens] = Caller(self.function, self._embedded, self.dtype, tokens, *self.shape)
        caller = self._callers[tokens]
        try:
            bits = caller.on(x)
            caller.finish()
        except Unsupported:
            self._hold_weight(tokens)
            raise
        except Breach as breach:
            self._hold_weight(tokens)
            kind = "INPUT_MUTATED" if breach.mutated else "MISMATCH"
            raise Stopped(kind, f"wrong result: {breach}", breach.causes) from breach
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # as in execute: a kernel may raise anything
            kind = "CRASH_COMPILE" if crash_kind(error) == "compile" else "CRASH_LAUNCH"
            raise Stopped(kind, f"the kernel raised {one_line(error)} at {caller.where}") from error
        self._hold_weight(tokens)
        return bits

    def _hold_weight(self, tokens: int) -> None:
        """Raises :class:`Stopped` when the weight, or memory around it, is not what it was."""
        mutated, fences = self._arena.changes()
        if fences:
            raise Stopped("OOB_WRITE", f"{'; '.join(fences)} (M = {tokens})")
        if not left_alone(self._embedded, self._before):
            mutated.append("the weight's tensors were replaced by others")
        if mutated:
            raise Stopped("INPUT_MUTATED", f"{'; '.join(mutated)} (M = {tokens})")
