"""Call a fused function on one-hot or given activations and check what it does, apart from values."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from conformance.bits import show, to_bits, to_float
from conformance.calling import contract_breach
from conformance.execution import Breach
from conformance.faults.product import BIAS
from conformance.staying import Staying
from kernels._packed import describe

# Elements of NaN before x and tokens of NaN behind it: a read past x spoils the sum, a write is seen.
BEFORE = 64
BEHIND = 16


@dataclasses.dataclass
class Caller:
    """One function, one weight and one number of tokens.

    Attributes:
        where: the last call, in words.
    """

    function: Callable[[torch.Tensor, Any], torch.Tensor]
    weight: Any
    dtype: torch.dtype
    n_tokens: int
    n_inner: int
    n_outputs: int
    where: str = ""
    _first: tuple[torch.Tensor, np.ndarray] | None = None

    def __post_init__(self) -> None:
        device = self.weight.device
        size = BEFORE + (self.n_tokens + BEHIND) * max(1, self.n_inner) + BEFORE
        self._buffer = torch.full((size,), float("nan"), dtype=self.dtype, device=device)
        used = self._buffer[BEFORE : BEFORE + self.n_tokens * self.n_inner]
        self._x = used.view(self.n_tokens, self.n_inner)
        self._device = self._buffer.device

    def __call__(self, hot: Sequence[int | None]) -> np.ndarray:
        """y as bits [M, N] for x whose token i is one-hot at ``hot[i]``, or zero where that is None.

        Raises:
            Breach: y is no such tensor, x or memory around it was written, or y is not 0 for x = 0.
        """
        self._x.zero_()
        for token, k in enumerate(hot):
            if k is not None:
                self._x[token, k] = 1
        self.where = f"M = {self.n_tokens}, x one-hot at {hot[0]}" if hot[0] is not None else "x = 0"
        bits = self._run()
        for token, k in enumerate(hot):
            if k is None:
                self._expect_zero(bits[token])
        return bits

    def on(self, x: np.ndarray) -> np.ndarray:
        """y as bits [M, N] for x float64 [M, K], whose values the dtype holds. Raises as a call does."""
        self._x.copy_(torch.from_numpy(x).to(self.dtype))
        self.where = f"M = {self.n_tokens}"
        return self._run()

    def finish(self) -> None:
        """Raises :class:`Breach` when the first y is not what it was: all calls share a buffer."""
        if self._first is not None and (to_bits(self._first[0]) != self._first[1]).any():
            raise Breach("expected a y of its own from each call, found one that a later call overwrote")

    def _run(self) -> np.ndarray:
        before = self._buffer.clone()
        with np.errstate(all="ignore"), Staying():  # the interpreter computes with NumPy
            y = self.function(self._x, self.weight)
        shape = (self.n_tokens, self.n_outputs)
        wrong = contract_breach(y, shape, self.dtype, self._device)
        if wrong:
            raise Breach(f"y of x {describe(self.dtype)} {list(self._x.shape)}: {wrong}")
        bits = to_bits(y).copy()
        changed = np.flatnonzero(to_bits(self._buffer) != to_bits(before))
        if changed.size:
            at = int(changed[0]) - BEFORE
            inside = 0 <= at < self._x.numel()
            raise Breach(mutated=("x",)) if inside else Breach(mutated=("memory beside x",))
        if self._first is None:
            self._first = (y, bits)
        return bits

    def _expect_zero(self, bits: np.ndarray) -> None:
        wrong = np.flatnonzero(bits & (2 ** (8 * self.dtype.itemsize - 1) - 1))
        if not wrong.size:
            return
        values = to_float(bits, self.dtype)
        first = int(wrong[0])
        text = (
            f"expected y = 0 for x = 0 (M = {self.n_tokens}), found {show(int(bits[first]), self.dtype)} "
            f"at output {first}"
        )
        raise Breach(text, causes=(BIAS,) if np.isfinite(values).all() else ())
