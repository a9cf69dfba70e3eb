"""gemm_accumulate: the integer step of an int8 matrix product.

::

    acc[m, n] = wrap32(sum over k of a[m, k] * b[n, k]),    wrap32(x) = (x + 2**31) mod 2**32 - 2**31

======== ============ ==========================================================
field    dtype        shape
======== ============ ==========================================================
a        int8, uint8  [M, K]; the dtype alone says signed or unsigned
b        int8         [N, K] with ``b_layout`` "NK", as a linear layer's weight;
                      [K, N] with "KN"
======== ============ ==========================================================

Sums of integers have no rounding and no order: every right kernel gives the same bits, whatever its
tiles. A product is at most 2**14 (int8) or 255 * 128 (uint8), so a sum can leave int32 only from
K = 131072 or K = 65794 on; there it wraps, as the hardware's adders do, and ``validate(deep=True)``
names the first accumulator that does. Split K before that and add the parts in int64 or float64.

**As a harness output** an accumulator is its four bytes, lowest first, as numbers 0..255: shape
[M, N, 4], exact in every output dtype. (The 32 bits seen as a float32 would make every NaN pattern
equal, and float32 holds integers only to 2**24.)

Source: ``torch._int_mm``; NVIDIA PTX ISA, ``mma`` with ``.s32`` accumulators without ``.satfinite``.
"""

from __future__ import annotations

import dataclasses

import torch
import triton

from kernels._gemm import Layout, expect_operands, expect_tiles, unsafe_depth
from kernels._gemm_kernel import _gemm_kernel
from kernels._launch import check_output, check_runnable, destination, on_device
from kernels._packed import PackedWeight, expect_one_device


@dataclasses.dataclass(frozen=True)
class Int8Operands(PackedWeight):
    """Operands of an integer matrix product, as in the module's table.

    Attributes:
        a: activations [M, K].
        b: weights.
        b_layout: ``NK`` or ``KN``, the order of ``b``'s axes; on a square weight no shape tells.
    """

    a: torch.Tensor
    b: torch.Tensor
    b_layout: Layout = "NK"

    @property
    def output_shape(self) -> tuple[int, ...]:
        return (self.a.shape[0], self.b.shape[0 if self.b_layout == "NK" else 1], 4)

    def validate(self, *, deep: bool = False) -> None:
        """Check the fields against each other.

        Raises:
            TypeError: a field of another type or dtype.
            ValueError: another number of dimensions, K that differs, an unknown layout, tensors on
                different devices; with ``deep`` also a sum that leaves int32.
        """
        expect_operands(self.a, self.b, self.b_layout)
        expect_one_device(self)
        if deep:
            expect_no_overflow(self.a, self.b, self.b_layout)


def expect_no_overflow(a: torch.Tensor, b: torch.Tensor, b_layout: Layout) -> None:
    """Raise ``ValueError`` at the first sum of products that int32 does not hold (reads the tensors)."""
    if a.shape[1] < unsafe_depth(a.dtype is torch.uint8):
        return
    # float64 is exact to 2**53, which 2**15 a product cannot reach.
    right = b.double() if b_layout == "KN" else b.double().t()
    sums = a.double() @ right
    bad = (sums < -(2**31)) | (sums >= 2**31)
    if bool(bad.any()):
        m, n = (int(i) for i in bad.nonzero()[0])
        raise ValueError(f"a: expected sums of products within int32, found {int(sums[m, n])} at [{m}, {n}]")


def accumulate(
    operands: Int8Operands,
    *,
    out: torch.Tensor | None = None,
    block_m: int = 64,
    block_n: int = 64,
    block_k: int = 64,
    num_warps: int = 4,
) -> torch.Tensor:
    """Sums of products, exact modulo 2**32.

    Args:
        operands: on one GPU (or on the CPU under Triton's interpreter). Strided inputs are made
            contiguous first, which copies them.
        out: optional contiguous int32 [M, N].
        block_m, block_n, block_k: tile sizes, powers of two of at least 16, 16 and 32.
        num_warps: warps a program uses.

    Returns:
        ``out``, or a new tensor int32 [M, N].

    Raises:
        TypeError, ValueError: a field or ``out`` does not fit; names it.
    """
    if not isinstance(operands, Int8Operands):
        raise TypeError(f"weight: expected Int8Operands, found {type(operands).__name__}")
    expect_tiles(block_m, block_n, block_k, num_warps)
    operands.validate()
    check_runnable(_gemm_kernel, operands.device)
    n_rows, n_cols, _ = operands.output_shape
    with on_device(operands.device):
        if out is None:
            out = torch.empty((n_rows, n_cols), dtype=torch.int32, device=operands.device)
        expect_accumulators(out, n_rows, n_cols)
        if n_rows and n_cols:
            a = operands.a.contiguous().view(torch.int8)
            _gemm_kernel[(triton.cdiv(n_rows, block_m) * triton.cdiv(n_cols, block_n),)](
                out,  # not written: there is nothing to scale
                out,
                a,
                operands.b.contiguous(),
                *(a, a, a, a),  # never read
                n_rows,
                n_cols,
                operands.a.shape[1],
                UNSIGNED=operands.a.dtype is torch.uint8,
                INNER_FIRST=operands.b_layout == "KN",
                KEEP=True,
                SCALED=False,
                ZERO=False,
                ZERO_PER_TOKEN=False,
                PER_TOKEN=False,
                PER_CHANNEL=False,
                BIAS=False,
                ORDER=0,
                BLOCK_M=block_m,
                BLOCK_N=block_n,
                BLOCK_K=block_k,
                num_warps=num_warps,
            )
    return out


def expect_accumulators(out: torch.Tensor, n_rows: int, n_cols: int) -> None:
    """Raise unless ``out`` is a contiguous int32 [n_rows, n_cols]."""
    if out.dtype != torch.int32:
        raise TypeError(f"accumulators: expected int32, found {out.dtype}")
    if tuple(out.shape) != (n_rows, n_cols) or not out.is_contiguous():
        raise ValueError(
            f"accumulators: expected contiguous [{n_rows}, {n_cols}], found {list(out.shape)} "
            f"with strides {list(out.stride())}"
        )


def as_bytes(accumulators: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """int32 [M, N] as its bytes, lowest first: [M, N, 4] of ``dtype``, numbers 0..255."""
    shifts = torch.tensor([0, 8, 16, 24], dtype=torch.int32, device=accumulators.device)
    return ((accumulators[..., None] >> shifts) & 255).to(dtype)


def accumulate_bytes(
    weight: Int8Operands,
    *,
    dtype: torch.dtype,
    out: torch.Tensor | None = None,
    block_m: int = 64,
    block_n: int = 64,
    block_k: int = 64,
    num_warps: int = 4,
) -> torch.Tensor:
    """:func:`accumulate` as the harness compares it: bytes [M, N, 4] of ``dtype``.

    Raises:
        TypeError, ValueError: a field, ``dtype`` or ``out`` does not fit; names it.
    """
    if not isinstance(weight, Int8Operands):
        raise TypeError(f"weight: expected Int8Operands, found {type(weight).__name__}")
    weight.validate()
    check_output(weight, dtype, out)
    sums = accumulate(weight, block_m=block_m, block_n=block_n, block_k=block_k, num_warps=num_warps)
    with destination(weight, dtype, out) as target:
        target.buffer.copy_(as_bytes(sums, dtype))
    return target.result
