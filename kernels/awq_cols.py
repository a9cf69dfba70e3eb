"""awq_cols: AWQ 4 bit packed along the columns (AutoAWQ's GEMM layout, ``"version": "gemm"``).

K = in features (the reduction axis), N = out features, G groups of ``group_size`` rows::

    word j of row k     | 31..28 | 27..24 | 23..20 | 19..16 | 15..12 | 11..8 |  7..4 |  3..0 |
    slot                |   7    |   6    |   5    |   4    |   3    |   2   |   1   |   0   |
    column, 8j +        |   7    |   5    |   3    |   1    |   6    |   4   |   2   |   0   |

    value[k, n] = round_out(fp32((code[k, n] - zero[g, n]) * scale[g, n])),  g = k // group_size

======== ============================ ==========================================
field    dtype                        shape
======== ============================ ==========================================
qweight  int32                        [K, N / 8], codes 0..15
qzeros   int32                        [G, N / 8], zeros 0..15 in the same order
scales   float16, bfloat16, float32   [G, N]
======== ============================ ==========================================

**Zeros** are used as stored: no 1 is added. They share the interleaved order of the codes;
reading only the codes in that order was a real fault
(https://github.com/pie-project/pie/pull/491).

**Rounding.** Codes and zeros are subtracted as integers. The product with a float16 or
bfloat16 scale is exact in float32, so those weights are rounded once, at the output. The
product with a float32 scale is itself rounded to float32 first, as PyTorch multiplies in
the dtype of the scales. ``code * scale - zero * scale`` is another number:
https://github.com/vllm-project/vllm/pull/55532.

**Sizes.** N is a multiple of 8. ``group_size`` divides K, is -1 (one group), or is K or
more (one group); AutoAWQ knows no short last group: its layer asserts that the group size
divides K, and its ``dequantize_gemm`` raises.

Source: AutoAWQ 0.2.9, ``modules/linear/gemm.py`` (``WQLinear_GEMM.from_linear``) and
``utils/packing_utils.py`` (``dequantize_gemm``); https://arxiv.org/abs/2306.00978.
"""

from __future__ import annotations

import dataclasses

import torch
import triton
import triton.language as tl

from kernels._awq import (
    CODES_PER_WORD,
    SCALE_DTYPES,
    column_codes,
    expect_group_size,
    expect_matrix,
    expect_two_dimensions,
)
from kernels._lanes import side_by_side
from kernels._launch import check_output, check_runnable, chosen, destination
from kernels._packed import PackedWeight, expect_finite, expect_int, expect_one_device, expect_power_of_two


@dataclasses.dataclass(frozen=True)
class AWQColsWeight(PackedWeight):
    """A weight in AutoAWQ's GEMM layout. Tensors as in the module's table.

    Attributes:
        qweight: codes.
        qzeros: zeros.
        scales: one a group and column.
        group_size: rows a group has; -1 for one group over all of K.
    """

    qweight: torch.Tensor
    qzeros: torch.Tensor
    scales: torch.Tensor
    group_size: int

    @property
    def n_rows(self) -> int:
        """K."""
        return int(self.qweight.shape[0])

    @property
    def n_cols(self) -> int:
        """N."""
        return int(self.qweight.shape[1]) * CODES_PER_WORD

    @property
    def group_rows(self) -> int:
        """Rows a group has: never 0 or negative, nor more than K, whatever ``group_size`` says."""
        rows = max(self.n_rows, 1)
        return rows if self.group_size == -1 else min(self.group_size, rows)

    @property
    def n_groups(self) -> int:
        """G."""
        return self.n_rows // self.group_rows

    @property
    def output_shape(self) -> tuple[int, int]:
        return (self.n_rows, self.n_cols)

    def validate(self, *, deep: bool = False) -> None:
        """Check the fields against each other.

        Raises:
            TypeError: a field of another type or dtype.
            ValueError: a group size that neither divides nor spans K, a wrong shape, tensors
                on different devices; with ``deep`` also a non-finite scale.
        """
        qweight = expect_two_dimensions("qweight", self.qweight, dtype=torch.int32, names="[K, N / 8]")
        expect_group_size(self.group_size)
        if self.n_rows % self.group_rows:
            raise ValueError(
                f"group_size: expected -1, a divisor of K = {self.n_rows}, or at least K, "
                f"found {self.group_size}"
            )
        groups = self.n_groups
        expect_matrix("qzeros", self.qzeros, dtype=torch.int32, shape=(groups, qweight.shape[1]))
        expect_matrix("scales", self.scales, dtype=SCALE_DTYPES, shape=(groups, self.n_cols))
        expect_one_device(self)
        if deep:
            expect_finite("scales", self.scales)


@triton.jit
def _awq_cols_kernel(
    out,  # [K, 8 * n_words] output dtype
    qweight,  # [K, n_words] int32
    qzeros,  # [G, n_words] int32
    scales,  # [G, 8 * n_words] float16, bfloat16 or float32
    n_words,
    group_rows,
    SIDE: tl.constexpr,  # columns a lane has side by side: 8 or 4
    ROWS: tl.constexpr,
    WORDS: tl.constexpr,
):
    # One grid axis: the second one ends at 65535. Neighbouring programs write neighbouring
    # columns. A program's rows are all of one group (the last program of a group has fewer),
    # so that its scales and zeros are loaded once, whatever ROWS and the group size are.
    word_tiles = tl.cdiv(n_words, WORDS)
    tiles_per_group = tl.cdiv(group_rows, ROWS)
    row_tile = tl.program_id(0) // word_tiles
    group = (row_tile // tiles_per_group).to(tl.int64)
    start = (row_tile % tiles_per_group) * ROWS
    rows_left = group_rows - start
    first = (tl.program_id(0) % word_tiles).to(tl.int64) * WORDS
    words_left = tl.minimum(n_words - first, WORDS).to(tl.int32)

    # One word a lane: without the hint, wider loads force a round trip through shared
    # memory before the 8-outputs-a-word stores.
    lane = tl.max_contiguous(tl.arange(0, WORDS * 8 // SIDE), 1)
    word = lane // (8 // SIDE)
    col = tl.arange(0, WORDS * 8)
    at = group * n_words + first
    zero = tl.load(qzeros + at + word, mask=word < words_left, other=0, eviction_policy="evict_last")
    zero = column_codes(zero, lane, SIDE)
    # Scales are narrower than float32 outputs: without the hint a lane loads more of them than it stores.
    near = tl.max_contiguous(col, SIDE)
    scale = tl.load(
        scales + at * 8 + near, mask=col < words_left * 8, other=0.0, eviction_policy="evict_last"
    ).to(tl.float32)
    at = (group * group_rows + start) * n_words + first
    word_row = qweight + at
    out_row = out + at * 8
    for r in range(0, ROWS):
        # One vector compare: a scalar and a vector i1 cannot be combined under the
        # interpreter of Triton 3.9.
        left = tl.where(r < rows_left, words_left, 0)
        w = tl.load(word_row + word, mask=word < left, other=0, eviction_policy="evict_first")
        value = (column_codes(w, lane, SIDE) - zero).to(tl.float32) * scale
        value = value.to(out.dtype.element_ty)
        tl.store(out_row + col, value, mask=col < left * 8, eviction_policy="evict_first")
        word_row += n_words
        out_row += n_words * 8


def launch(weight: AWQColsWeight, dtype: torch.dtype) -> dict[str, int]:
    """Launch parameters that ``dequantize`` takes where none are given."""
    if dtype is torch.float32:
        return {"rows": 1, "words": 128, "num_warps": 4}
    return {"rows": 1, "words": 128, "num_warps": 1}


def dequantize(
    weight: AWQColsWeight,
    *,
    dtype: torch.dtype,
    out: torch.Tensor | None = None,
    rows: int | None = None,
    words: int | None = None,
    num_warps: int | None = None,
) -> torch.Tensor:
    """Dequantize ``weight`` to ``dtype``, exact to the bit.

    Args:
        weight: tensors on one GPU (or on the CPU under Triton's interpreter). Strided
            inputs are made contiguous first, which copies them.
        dtype: float16, bfloat16 or float32. Values beyond float16's range become inf.
        out: optional output [K, N]; may be strided.
        rows: rows of one group that a program decodes, one after the other.
        words: packed words a program decodes at once, 8 columns each (a power of two).
        num_warps: warps a program uses.

        Those that are None are as :func:`launch` says.

    Returns:
        ``out``, or a new contiguous tensor [K, N].

    Raises:
        TypeError, ValueError: a field, ``dtype`` or ``out`` does not fit; names it.

    Use a fused product (AWQ GEMM, Marlin, ExLlama) where few rows of activations are
    multiplied: a standalone dequantize writes and re-reads the whole weight in ``dtype``,
    four times the packed bytes and more.
    """
    if not isinstance(weight, AWQColsWeight):
        raise TypeError(f"weight: expected AWQColsWeight, found {type(weight).__name__}")
    weight.validate()
    check_output(weight, dtype, out)
    check_runnable(_awq_cols_kernel, weight.device)
    set_to = chosen(launch(weight, dtype), rows=rows, words=words, num_warps=num_warps)
    rows = expect_int("rows", set_to["rows"], minimum=1)
    words = expect_power_of_two("words", set_to["words"])
    warps = expect_power_of_two("num_warps", set_to["num_warps"])
    with destination(weight, dtype, out) as target:
        n_words = weight.qweight.shape[1]
        if weight.n_rows and n_words:
            tiles = weight.n_groups * triton.cdiv(weight.group_rows, rows)
            _awq_cols_kernel[(tiles * triton.cdiv(n_words, words),)](
                target.buffer,
                weight.qweight.contiguous(),
                weight.qzeros.contiguous(),
                weight.scales.contiguous(),
                n_words,
                weight.group_rows,
                SIDE=side_by_side(dtype),
                ROWS=rows,
                WORDS=words,
                num_warps=warps,
                enable_fp_fusion=False,
            )
    return target.result
