"""Exact models of the int8 matrix product and of its steps (texts in ``kernels/gemm_*.py``).

Integers are int64 and wrapped to int32 where the text wraps; floats are NumPy float32, every operation of
which is rounded once.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from kernels.gemm_accumulate import Int8Operands
from kernels.gemm_dynamic import DynamicGemmInput
from kernels.gemm_epilogue import EpilogueInput
from kernels.gemm_int8 import Int8GemmInput
from oracles.spec.gemm_quantize import quantized

INV_127_SQUARED = np.float32(1 / 127**2)


def wrap32(numbers: np.ndarray) -> np.ndarray:
    """Integers modulo 2**32, in -2**31 .. 2**31 - 1."""
    return (numbers + 2**31) % 2**32 - 2**31


def products(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a [M, K] times b [N, K], both int64: [M, N], exact."""
    # float64 is exact below 2**53, hence for all K that memory holds, and far faster.
    return (a.astype(np.float64) @ b.astype(np.float64).T).astype(np.int64)


@dataclasses.dataclass(frozen=True)
class AccumulateModel:
    """Operands, widened.

    Attributes:
        a: int64 [M, K].
        b: int64 [N, K], whatever its layout.
        acc: int64 [M, N] sums that a diagnosis puts in the place of the right ones, or None.
    """

    a: np.ndarray
    b: np.ndarray
    acc: np.ndarray | None = None

    def sums(self) -> np.ndarray:
        """Accumulators int64 [M, N], within int32."""
        return wrap32(products(self.a, self.b) if self.acc is None else self.acc)

    def values(self) -> np.ndarray:
        return bytes_of(self.sums())

    def steps(self) -> np.ndarray:
        return np.ones((self.a.shape[0], self.b.shape[0], 4))


def bytes_of(sums: np.ndarray) -> np.ndarray:
    """Accumulators [M, N] as bytes, lowest first: float32 [M, N, 4]."""
    return ((sums[..., None] >> np.array([0, 8, 16, 24])) & 255).astype(np.float32)


@dataclasses.dataclass(frozen=True)
class EpilogueModel:
    """Accumulators and what they are scaled with, each spread over its axis.

    Attributes:
        acc: int64 [M, N].
        a_scale: float32 [M].
        w_scale: float32 [N].
        a_zero: int64 [M]; 0 without zero points.
        sums: int64 [N]; 0 without zero points.
        bias: float32 [N], or None.
        order: as in the packed type.
    """

    acc: np.ndarray
    a_scale: np.ndarray
    w_scale: np.ndarray
    a_zero: np.ndarray
    sums: np.ndarray
    bias: np.ndarray | None
    order: str

    def corrected(self) -> np.ndarray:
        """int64 [M, N] within int32: accumulators without the activations' zero point."""
        return wrap32(self.acc - self.a_zero[:, None] * self.sums[None, :])

    def scaled(self) -> np.ndarray:
        """float32 [M, N] before the bias."""
        return scale_by(
            self.corrected().astype(np.float32), self.a_scale[:, None], self.w_scale[None, :], self.order
        )

    def values(self) -> np.ndarray:
        value = self.scaled()
        with np.errstate(all="ignore"):
            return value if self.bias is None else value + self.bias[None, :]

    def steps(self) -> np.ndarray:
        with np.errstate(all="ignore"):
            step = np.abs(self.a_scale.astype(np.float64)[:, None] * self.w_scale.astype(np.float64)[None, :])
            return step * float(INV_127_SQUARED) if self.order == "absmax" else step


def scale_by(value: np.ndarray, a_scale: np.ndarray, w_scale: np.ndarray, order: str) -> np.ndarray:
    """float32 ``value`` times both scales in an order, each product rounded."""
    with np.errstate(all="ignore"):
        if order == "a-w":
            return value * a_scale * w_scale
        if order == "w-a":
            return value * w_scale * a_scale
        both = value * (a_scale * w_scale)
        return both * INV_127_SQUARED if order == "absmax" else both


@dataclasses.dataclass(frozen=True)
class Int8GemmModel:
    """Quantized operands and what their product is scaled with.

    Attributes:
        a: int64 [M, K].
        b: int64 [N, K].
        a_scale, w_scale, a_zero, bias, order: as in :class:`EpilogueModel`.
        acc: as in :class:`AccumulateModel`.
    """

    a: np.ndarray
    b: np.ndarray
    a_scale: np.ndarray
    w_scale: np.ndarray
    a_zero: np.ndarray
    bias: np.ndarray | None
    order: str
    acc: np.ndarray | None = None

    def epilogue(self) -> EpilogueModel:
        """The model of the second step, on the sums of the first."""
        return EpilogueModel(
            acc=AccumulateModel(self.a, self.b, self.acc).sums(),
            a_scale=self.a_scale,
            w_scale=self.w_scale,
            a_zero=self.a_zero,
            sums=wrap32(self.b.sum(axis=1)),
            bias=self.bias,
            order=self.order,
        )

    def values(self) -> np.ndarray:
        return self.epilogue().values()

    def steps(self) -> np.ndarray:
        return self.epilogue().steps()


# --- from packed types ------------------------------------------------------------------------


def _integers(tensor: torch.Tensor) -> np.ndarray:
    return tensor.cpu().numpy().astype(np.int64)


def _spread(tensor: torch.Tensor | None, count: int, dtype: type) -> np.ndarray:
    """One number or ``count`` of them as ``count``; 0 where there are none."""
    if tensor is None:
        return np.zeros(count, dtype)
    return np.broadcast_to(tensor.cpu().numpy().astype(dtype), (count,)).copy()


def _bias(tensor: torch.Tensor | None) -> np.ndarray | None:
    return None if tensor is None else tensor.cpu().float().numpy()


def _right(b: torch.Tensor, layout: str) -> np.ndarray:
    found = _integers(b)
    return found.T if layout == "KN" else found


def unpack_operands(weight: Int8Operands) -> AccumulateModel:
    return AccumulateModel(_integers(weight.a), _right(weight.b, weight.b_layout))


def unpack_epilogue(weight: EpilogueInput) -> EpilogueModel:
    n_rows, n_cols = weight.acc.shape
    return EpilogueModel(
        acc=_integers(weight.acc),
        a_scale=_spread(weight.a_scale, n_rows, np.float32),
        w_scale=_spread(weight.w_scale, n_cols, np.float32),
        a_zero=_spread(weight.a_zero, n_rows, np.int64),
        sums=_spread(weight.sums, n_cols, np.int64),
        bias=_bias(weight.bias),
        order=weight.order,
    )


def unpack_gemm(weight: Int8GemmInput) -> Int8GemmModel:
    n_rows, n_cols = weight.output_shape
    return Int8GemmModel(
        a=_integers(weight.a),
        b=_right(weight.b, weight.b_layout),
        a_scale=_spread(weight.a_scale, n_rows, np.float32),
        w_scale=_spread(weight.w_scale, n_cols, np.float32),
        a_zero=_spread(weight.a_zero, n_rows, np.int64),
        bias=_bias(weight.bias),
        order=weight.order,
    )


def unpack_dynamic(weight: DynamicGemmInput) -> Int8GemmModel:
    """The product that exact quantization leaves."""
    made = quantized(weight.activations)
    return Int8GemmModel(
        a=made.codes,
        b=_right(weight.b, weight.b_layout),
        a_scale=made.scale,
        w_scale=_spread(weight.w_scale, weight.output_shape[1], np.float32),
        a_zero=made.zero,
        bias=_bias(weight.bias),
        order=weight.order,
    )
