"""Exact model of gemm_fp8 (the text is in ``kernels/gemm_fp8.py``).

Sums of codes' products are exact in float64: a product has 8 bits between 2**-18 and 2**18. They are
rounded to float32 once, then every operation of the text is.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from kernels.gemm_fp8 import Fp8GemmInput
from oracles.spec.fp8 import decode
from oracles.spec.gemm import scale_by

BLOCK = 128


@dataclasses.dataclass(frozen=True)
class Fp8GemmModel:
    """Operands and what their product is scaled with.

    Attributes:
        a: float64 [M, K].
        b: float64 [N, K].
        a_scale: float32 [KB, M], each block's; [1, M] where it is not by block.
        w_scale: float32 [KB, N], spread over channels; [1, N] where it is not by block.
        a_blocked, w_blocked: whether they are by block.
        bias: float32 [N], or None.
        order: as in the packed type.
        sums: float64 [KB, M, N] that a diagnosis puts in the place of :meth:`parts`, or None.
    """

    a: np.ndarray
    b: np.ndarray
    a_scale: np.ndarray
    w_scale: np.ndarray
    a_blocked: bool
    w_blocked: bool
    bias: np.ndarray | None
    order: str
    sums: np.ndarray | None = None

    @property
    def blocked(self) -> bool:
        return self.a_blocked or self.w_blocked

    def spans(self) -> list[slice]:
        """What of K is summed before a scale: its blocks, or all of it."""
        n_inner = self.a.shape[1]
        width = BLOCK if self.blocked else max(n_inner, 1)
        return [slice(first, min(first + width, n_inner)) for first in range(0, n_inner, width)]

    def parts(self) -> np.ndarray:
        """Sums of products, exact: float64 [KB, M, N], or [1, M, N] without blocks."""
        if self.sums is not None:
            return self.sums
        found = [products(self.a[:, span], self.b[:, span]) for span in self.spans()]
        shape = (self.a.shape[0], self.b.shape[0])
        return np.stack(found) if found else np.zeros((0, *shape))

    def scales_at(self, block: int) -> tuple[np.ndarray, np.ndarray]:
        """Scales of both sides in a block: float32 [M, 1] and [1, N]."""
        a = self.a_scale[block if self.a_blocked else 0]
        w = self.w_scale[block if self.w_blocked else 0]
        return a[:, None], w[None, :]

    def scaled(self) -> np.ndarray:
        """float32 [M, N] before the bias."""
        total: np.ndarray = np.zeros((self.a.shape[0], self.b.shape[0]), np.float32)
        with np.errstate(all="ignore"):
            for block, part in enumerate(self.parts()):
                total = total + self.inside(part.astype(np.float32), block)
            return self.outside(total)

    def inside(self, part: np.ndarray, block: int) -> np.ndarray:
        """The sum of one block times the scales that are by block."""
        a, w = self.scales_at(block)
        return self._times(part, a if self.a_blocked else None, w if self.w_blocked else None)

    def outside(self, total: np.ndarray) -> np.ndarray:
        """The sum of all blocks times the scales that are not by block."""
        a, w = None, None
        if not self.a_blocked:
            a = self.a_scale[0][:, None]
        if not self.w_blocked:
            w = self.w_scale[0][None, :]
        return self._times(total, a, w)

    def _times(self, value: np.ndarray, a: np.ndarray | None, w: np.ndarray | None) -> np.ndarray:
        if a is not None and w is not None:
            return scale_by(value, a, w, self.order)
        one = a if w is None else w
        return value if one is None else value * one

    def values(self) -> np.ndarray:
        value = self.scaled()
        with np.errstate(all="ignore"):
            return value if self.bias is None else value + self.bias[None, :]

    def steps(self) -> np.ndarray:
        """What a unit of the sum is worth: the largest |a_scale * w_scale| of the blocks."""
        if not self.a_scale.size or not self.w_scale.size:
            return np.zeros((self.a.shape[0], self.b.shape[0]))
        with np.errstate(all="ignore"):
            both = self.a_scale.astype(np.float64)[:, :, None] * self.w_scale.astype(np.float64)[:, None, :]
            return np.abs(both).max(axis=0)


def products(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a [M, k] times b [N, k], float64: [M, N]; a sum of nothing but -0 is +0."""
    with np.errstate(invalid="ignore"):
        return a @ b.T + 0.0


def _codes(tensor: torch.Tensor) -> np.ndarray:
    return tensor.cpu().contiguous().view(torch.uint8).numpy()


def codes_of(weight: Fp8GemmInput) -> tuple[np.ndarray, np.ndarray]:
    """Codes uint8 of a [M, K] and b [N, K]."""
    return _codes(weight.a), _codes(weight.b)


def spread_scales(weight: Fp8GemmInput) -> tuple[np.ndarray, np.ndarray]:
    """a_scale [KB, M] (or [1, M]) and w_scale [KB, N] (or [1, N]), float32."""
    (n_rows, n_cols), (a_per, w_per) = weight.output_shape, weight.per
    a, w = weight.a_scale.cpu().numpy(), weight.w_scale.cpu().numpy()
    a = a.T if a_per == "block" else np.broadcast_to(a, (n_rows,))[None, :]
    w = w[np.arange(n_cols) // BLOCK].T if w_per == "block" else np.broadcast_to(w, (n_cols,))[None, :]
    return np.ascontiguousarray(a), np.ascontiguousarray(w)


def unpack_fp8(weight: Fp8GemmInput) -> Fp8GemmModel:
    a, b = codes_of(weight)
    a_scale, w_scale = spread_scales(weight)
    a_per, w_per = weight.per
    return Fp8GemmModel(
        a=decode(a),
        b=decode(b),
        a_scale=a_scale,
        w_scale=w_scale,
        a_blocked=a_per == "block",
        w_blocked=w_per == "block",
        bias=None if weight.bias is None else weight.bias.cpu().float().numpy(),
        order=weight.order,
    )
