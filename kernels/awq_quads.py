"""awq_quads: AWQ 4 bit, four outputs interleaved (AutoAWQ's GEMVFast layout, ``"version": "gemv_fast"``).

K = in features (the reduction axis), N = out features, G = K / group_size groups, P >= G
groups with padding. A row of int16 words holds four outputs, 64 of each at a time; eight
words hold 32 codes of one output, a word every eighth of them::

    words 64c .. 64c+63 of row n // 4:  16 for each output n % 4 = 0, 1, 2, 3, for k = 64c .. 64c+63
    word 64c + 16 (n % 4) + 8h + j      | 15..12 | 11..8  |  7..4  |  3..0  |    h = 0, 1   j = 0 .. 7
    k = 64c + 32h + j +                 |   24   |   16   |   8    |   0    |

    value[n, k] = round_out(code[n, k] * scale[g, n] + scaled_zero[g, n]),  g = k // group_size

======= ======== ====================================================
field   dtype    shape
======= ======== ====================================================
qweight int16    [N / 4, K], codes 0..15, in the order above
scales  float16  [P, N]
qzeros  float16  [P, N], scaled zeros: AutoAWQ stores -fp16(zero * scale)
======= ======== ====================================================

The output is [N, K], as ``torch.nn.Linear.weight`` has it. P as in ``awq_rows``; the padding
is never read.

**Rounding.** One rounding of the exact ``code * scale + scaled_zero``: AutoAWQ's CUDA kernels
compute the float16 fused multiply-add ``__hfma2(code, scale, scaled_zero)``. For bfloat16 and
float32 outputs, which AutoAWQ does not have, the same exact sum is rounded once.

The scaled zero was rounded when it was stored, so this is *not* ``(code - zero) * scale``:
code = zero gives the rounding error of ``zero * scale`` and not 0, and a product beyond
65504 was stored as -inf, which no code comes back from. That loss is in the checkpoint.

**Sizes.** K is a multiple of 64, N of 4 (AutoAWQ's layer asks for 8).

Source: AutoAWQ 0.2.9, ``modules/linear/gemv_fast.py`` (``pack_intweight``,
``WQLinear_GEMVFast.from_linear``); the value from its CUDA kernels ``gemv_cuda.cu`` and
``gemm_cuda.cu``, as GPTQModel 7.7.0 ships them (``quantization_new``);
https://arxiv.org/abs/2306.00978.
"""

from __future__ import annotations

import dataclasses

import torch
import triton
import triton.language as tl

from kernels._awq import (
    expect_matrix,
    expect_padded_group_size,
    expect_two_dimensions,
    padded_groups,
)
from kernels._lanes import side_by_side, spread
from kernels._launch import check_output, check_runnable, chosen, destination
from kernels._packed import PackedWeight, expect_finite, expect_one_device, expect_power_of_two

OUTPUTS_PER_ROW = 4
CHUNK = 64


@dataclasses.dataclass(frozen=True)
class AWQQuadsWeight(PackedWeight):
    """A weight in AutoAWQ's GEMVFast layout. Tensors as in the module's table.

    Attributes:
        qweight: codes.
        scales: one a group and output, with padding.
        qzeros: scaled zeros (minus zero times scale), with padding.
        group_size: codes of an output that share a scale; -1 for one group over all of K.
    """

    qweight: torch.Tensor
    scales: torch.Tensor
    qzeros: torch.Tensor
    group_size: int

    @property
    def n_outputs(self) -> int:
        """N."""
        return int(self.qweight.shape[0]) * OUTPUTS_PER_ROW

    @property
    def n_rows(self) -> int:
        """K."""
        return int(self.qweight.shape[1])

    @property
    def group_rows(self) -> int:
        """Codes of an output that share a scale: never 0 or negative, whatever ``group_size`` says."""
        return max(self.n_rows, 1) if self.group_size == -1 else self.group_size

    @property
    def n_groups(self) -> int:
        """G, without padding."""
        return self.n_rows // self.group_rows

    @property
    def n_padded(self) -> int:
        """P."""
        return padded_groups(self.n_rows, self.group_rows)

    @property
    def output_shape(self) -> tuple[int, int]:
        return (self.n_outputs, self.n_rows)

    def validate(self, *, deep: bool = False) -> None:
        """Check the fields against each other.

        Raises:
            TypeError: a field of another type or dtype.
            ValueError: K no multiple of 64, a group size that does not divide K or for which
                the layout defines no padding, a wrong shape, tensors on different devices;
                with ``deep`` also a non-finite scale or scaled zero (padding aside).
        """
        expect_two_dimensions("qweight", self.qweight, dtype=torch.int16, names="[N / 4, K]")
        if self.n_rows % CHUNK:
            raise ValueError(f"qweight: expected K a multiple of {CHUNK}, found {self.n_rows}")
        expect_padded_group_size(self.group_size, self.n_rows)
        shape = (self.n_padded, self.n_outputs)
        expect_matrix("scales", self.scales, dtype=torch.float16, shape=shape)
        expect_matrix("qzeros", self.qzeros, dtype=torch.float16, shape=shape)
        expect_one_device(self)
        if deep:
            expect_finite(f"scales[:{self.n_groups}]", self.scales[: self.n_groups])
            expect_finite(f"qzeros[:{self.n_groups}]", self.qzeros[: self.n_groups])


@triton.jit
def _may_be_inexact(scale, zero):
    """1 where a code times ``scale`` plus ``zero``, both float16, may need more bits than float32 has.

    Let es and ez be the exponent fields, at least 1. Scale and zero are multiples of u = 2**(es - 25)
    and v = 2**(ez - 25), a product is below 2**15 u in magnitude, the zero below 2**11 v, and their
    sum is a multiple of the smaller of u and v. A multiple of a power of two is a float32 if it is at
    most 2**24 times that: for d = ez - es >= 0 it needs 2**15 + 2**(11 + d) <= 2**24, which is d <= 12;
    for d < 0, 2**(15 - d) + 2**11 <= 2**24, which is d >= -8. No sum is tiny: u, v >= 2**-24. If the
    zero is 0, the sum is the product. Values that are not finite round to no other number.
    """
    s = scale.to(tl.int16, bitcast=True).to(tl.int32)
    z = zero.to(tl.int16, bitcast=True).to(tl.int32)
    d = tl.maximum((z >> 10) & 31, 1) - tl.maximum((s >> 10) & 31, 1)
    return tl.where(((d < -8) | (d > 12)) & ((z & 0x7FFF) != 0), 1, 0)


@triton.jit
def _sum_to_odd(a, b):
    """float32 a + b rounded to odd: a later rounding to fewer bits is then correct.

    The nearest float32 may be a tie of the output dtype that the exact sum is not. The error
    of the sum is exact (Knuth's two-sum); NaN and inf have no error and stay as they are.
    """
    total = a + b
    other = total - a
    error = (a - (total - other)) + (b - other)
    bits = total.to(tl.int32, bitcast=True)
    # Toward zero first, which is one less in the bits where error and total differ in sign, then
    # odd. A total of zero has no error, since float32 sums are exact where they are tiny.
    odd = (bits + ((bits ^ error.to(tl.int32, bitcast=True)) >> 31)) | 1
    return tl.where(tl.abs(error) > 0, odd, bits).to(tl.float32, bitcast=True)


@triton.jit
def _decode_again(
    out, qweight, scales, qzeros, n_outputs, n_rows, first_output, first, left_in_tile,
    element, word, shift, group, ROWS: tl.constexpr,
):  # fmt: skip
    """A tile once more, with sums rounded to odd: row by row, for fewer registers."""
    for r in range(0, ROWS):
        # One vector compare: a scalar and a vector i1 cannot be combined under the
        # interpreter of Triton 3.9.
        mask = element < tl.where(r < n_outputs - first_output, left_in_tile, 0) * 8
        output = first_output.to(tl.int64) + r
        word_row = qweight + (output >> 2) * n_rows + (output & 3) * 16 + first // 8 * 64
        w = tl.load(word_row + word, mask=mask, other=0)
        code = (w.to(tl.int32) >> shift) & 15
        near = output + group.to(tl.int64) * n_outputs
        scale = tl.load(scales + near, mask=mask, other=0.0).to(tl.float32)
        zero = tl.load(qzeros + near, mask=mask, other=0.0).to(tl.float32)
        value = _sum_to_odd(code.to(tl.float32) * scale, zero)
        at = out + output * n_rows + first * 8 + element
        tl.store(at, value.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _awq_quads_kernel(
    out,  # [N, K] output dtype
    qweight,  # [N / 4, K] int16
    scales,  # [P, N] float16
    qzeros,  # [P, N] float16
    n_outputs,
    n_eighths,  # K / 8
    group_rows,
    WHOLE_EIGHTHS: tl.constexpr,  # eight codes in a row are of one group
    NARROW: tl.constexpr,  # the output has fewer bits than float32
    SIDE: tl.constexpr,  # codes a lane has side by side: 8 or 4
    ROWS: tl.constexpr,
    EIGHTHS: tl.constexpr,
):
    # One grid axis: the second one ends at 65535, which is fewer than an embedding has rows.
    tiles = tl.cdiv(n_eighths, EIGHTHS)
    first_output = (tl.program_id(0) // tiles) * ROWS
    first_eighth = (tl.program_id(0) % tiles) * EIGHTHS
    first = first_eighth.to(tl.int64)
    left_in_tile = tl.minimum(n_eighths - first, EIGHTHS).to(tl.int32)
    element = tl.arange(0, EIGHTHS * 8)
    # Eight consecutive k are one nibble of eight consecutive words: a lane loads as many words as it
    # stores values, and the words' other nibbles are the neighbour lanes', out of the cache.
    inside = (first % 8).to(tl.int32) * 8 + element
    word = inside // 64 * 64 + inside % 64 // 32 * 8 + element % 8
    word = tl.max_contiguous(tl.multiple_of(word, SIDE), SIDE)  # the compiler does not see it itself
    shift = inside // 8 % 4 * 4
    # A tile may span groups: each lane, or each code, looks up its own. Eighths are counted in 32
    # bits, codes may be too many for that; a division in 64 bits costs as much as all the rest.
    if WHOLE_EIGHTHS:
        eighth = tl.arange(0, EIGHTHS * 8 // SIDE) // (8 // SIDE)
        group = (first_eighth + eighth) // (group_rows // 8)
        known = eighth < left_in_tile
    else:
        group = (first * 8 + element) // group_rows
        known = element < left_in_tile * 8
    n_rows = n_eighths.to(tl.int64) * 8
    row = tl.arange(0, ROWS)
    output = first_output.to(tl.int64) + row
    inside_rows = row < n_outputs - first_output
    near = output[:, None] + group.to(tl.int64)[None, :] * n_outputs
    mask = inside_rows[:, None] & known[None, :]
    scale = tl.load(scales + near, mask=mask, other=0.0, eviction_policy="evict_last")
    zero = tl.load(qzeros + near, mask=mask, other=0.0, eviction_policy="evict_last")
    word_row = (output >> 2) * n_rows + (output & 3) * 16 + first // 8 * 64
    mask = inside_rows[:, None] & (element < left_in_tile * 8)[None, :]
    w = tl.load(
        qweight + word_row[:, None] + word[None, :], mask=mask, other=0, eviction_policy="evict_first"
    )
    code = (w.to(tl.int32) >> shift[None, :]) & 15
    if WHOLE_EIGHTHS:
        wide_scale = tl.reshape(spread(scale.to(tl.float32), SIDE), [ROWS, EIGHTHS * 8])
        wide_zero = tl.reshape(spread(zero.to(tl.float32), SIDE), [ROWS, EIGHTHS * 8])
    else:
        wide_scale = scale.to(tl.float32)
        wide_zero = zero.to(tl.float32)
    value = code.to(tl.float32) * wide_scale + wide_zero  # the product is exact: 4 and 11 bits
    at = out + output[:, None] * n_rows + first * 8 + element[None, :]
    tl.store(at, value.to(out.dtype.element_ty), mask=mask, eviction_policy="evict_first")
    if NARROW:
        # Hardly a weight needs rounding to odd, and it costs more than all the rest, as a branch before
        # the store does: so a tile that needs it is decoded again.
        inexact = _may_be_inexact(scale, zero)
        if tl.max(tl.reshape(inexact, [inexact.numel]), axis=0) > 0:
            if WHOLE_EIGHTHS:
                group_of = (first_eighth + element // 8) // (group_rows // 8)
            else:
                group_of = group
            _decode_again(
                out, qweight, scales, qzeros, n_outputs, n_rows, first_output, first, left_in_tile,
                element, word, shift, group_of, ROWS,
            )  # fmt: skip


def launch(weight: AWQQuadsWeight, dtype: torch.dtype) -> dict[str, int]:
    """Launch parameters that ``dequantize`` takes where none are given."""
    return {
        # Where each code looks up its own group, four rows of them take too many registers.
        "rows": 4 if weight.group_rows % 8 == 0 and dtype is not torch.float32 else 1,
        "eighths": 128,
        "num_warps": 1 if dtype is torch.float32 else 2,
    }


def dequantize(
    weight: AWQQuadsWeight,
    *,
    dtype: torch.dtype,
    out: torch.Tensor | None = None,
    rows: int | None = None,
    eighths: int | None = None,
    num_warps: int | None = None,
) -> torch.Tensor:
    """Dequantize ``weight`` to ``dtype``, exact to the bit.

    Args:
        weight: tensors on one GPU (or on the CPU under Triton's interpreter). Strided
            inputs are made contiguous first, which copies them.
        dtype: float16, bfloat16 or float32. Values beyond float16's range become inf.
        out: optional output [N, K]; may be strided.
        rows: outputs that a program decodes at once (a power of two).
        eighths: runs of 8 codes of each that it decodes (a power of two).
        num_warps: warps a program uses.

        Those that are None are as :func:`launch` says.

    Returns:
        ``out``, or a new contiguous tensor [N, K].

    Raises:
        TypeError, ValueError: a field, ``dtype`` or ``out`` does not fit; names it.

    The layout exists for products (AutoAWQ's GEMVFast and its prefill GEMM); there a
    standalone dequantize costs the whole weight in ``dtype``, written and read again.
    """
    if not isinstance(weight, AWQQuadsWeight):
        raise TypeError(f"weight: expected AWQQuadsWeight, found {type(weight).__name__}")
    weight.validate()
    check_output(weight, dtype, out)
    check_runnable(_awq_quads_kernel, weight.device)
    set_to = chosen(launch(weight, dtype), rows=rows, eighths=eighths, num_warps=num_warps)
    rows = expect_power_of_two("rows", set_to["rows"])
    eighths = expect_power_of_two("eighths", set_to["eighths"])
    warps = expect_power_of_two("num_warps", set_to["num_warps"])
    with destination(weight, dtype, out) as target:
        n_eighths = weight.n_rows // 8
        if weight.n_outputs and n_eighths:
            _awq_quads_kernel[(triton.cdiv(weight.n_outputs, rows) * triton.cdiv(n_eighths, eighths),)](
                target.buffer,
                weight.qweight.contiguous(),
                weight.scales.contiguous(),
                weight.qzeros.contiguous(),
                weight.n_outputs,
                n_eighths,
                weight.group_rows,
                WHOLE_EIGHTHS=weight.group_rows % 8 == 0,
                NARROW=dtype != torch.float32,
                SIDE=side_by_side(dtype),
                ROWS=rows,
                EIGHTHS=eighths,
                num_warps=warps,
                # The two-sum must not be fused, nor simplified away.
                enable_fp_fusion=False,
            )
    return target.result
