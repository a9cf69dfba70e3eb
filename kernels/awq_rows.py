"""awq_rows: AWQ 4 bit, each output's row packed along K (AutoAWQ's GEMV layout, ``"version": "gemv"``).

K = in features (the reduction axis), N = out features, G = K / group_size groups, P >= G
groups with padding::

    word j of row n     | 31..28 | 27..24 |  ...  |  7..4 |  3..0 |
    k = 8j +            |   7    |   6    |  ...  |   1   |   0   |

    value[n, k] = round_out(fp32((code[n, k] - zero[n, g]) * scale[n, g])),  g = k // group_size

======== ============================ ============================================
field    dtype                        shape
======== ============================ ============================================
qweight  int32                        [N, K / 8], codes 0..15
qzeros   int32                        [N, P / 8], zeros 0..15, group g in slot g % 8
                                      of word g // 8
scales   float16, bfloat16, float32   [N, P]
======== ============================ ============================================

**Order.** Plain: nothing is interleaved, neither in the codes nor in the zeros. The output
is [N, K], as the codes lie and as ``torch.nn.Linear.weight`` has it.

**Padding.** The zeros of a row fill whole words, and a multiple of 4 words for groups of 32,
2 words for 64 and 1 word for 128 and more: ``P = 8 m ceil(ceil(G / 8) / m)``. Scales are
padded alike. The padding is never read. AutoAWQ defines no other group sizes below 128;
GPTQModel adds 16, with 8 words.

**Zeros** are used as stored. **Rounding** as in ``awq_cols``: exact for float16 and bfloat16
scales until the output is rounded (AutoAWQ's CUDA kernel multiplies in float32 too); the
product with a float32 scale is rounded to float32 first. AutoAWQ itself writes float16.

Source: AutoAWQ 0.2.9, ``modules/linear/gemv.py`` (``WQLinear_GEMV.from_linear``,
``calculate_zeros_width``); the value from its CUDA kernel ``gemv_cuda.cu``, as GPTQModel
7.7.0 ships it; https://arxiv.org/abs/2306.00978.
"""

from __future__ import annotations

import dataclasses

import torch
import triton
import triton.language as tl

from kernels._awq import (
    CODES_PER_WORD,
    SCALE_DTYPES,
    expect_matrix,
    expect_padded_group_size,
    expect_two_dimensions,
    padded_groups,
    row_codes,
)
from kernels._lanes import side_by_side, spread
from kernels._launch import check_output, check_runnable, chosen, destination
from kernels._packed import PackedWeight, expect_finite, expect_int, expect_one_device, expect_power_of_two


@dataclasses.dataclass(frozen=True)
class AWQRowsWeight(PackedWeight):
    """A weight in AutoAWQ's GEMV layout. Tensors as in the module's table.

    Attributes:
        qweight: codes.
        qzeros: zeros, with padding.
        scales: one an output and group, with padding.
        group_size: codes of a row that share a scale; -1 for one group over all of K.
    """

    qweight: torch.Tensor
    qzeros: torch.Tensor
    scales: torch.Tensor
    group_size: int

    @property
    def n_outputs(self) -> int:
        """N."""
        return int(self.qweight.shape[0])

    @property
    def n_rows(self) -> int:
        """K."""
        return int(self.qweight.shape[1]) * CODES_PER_WORD

    @property
    def group_rows(self) -> int:
        """Codes of a row that share a scale: never 0 or negative, whatever ``group_size`` says."""
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
            ValueError: a group size that does not divide K or for which the layout defines no
                padding, a wrong shape, tensors on different devices; with ``deep`` also a
                non-finite scale (padding aside).
        """
        expect_two_dimensions("qweight", self.qweight, dtype=torch.int32, names="[N, K / 8]")
        expect_padded_group_size(self.group_size, self.n_rows)
        outputs, padded = self.n_outputs, self.n_padded
        expect_matrix("qzeros", self.qzeros, dtype=torch.int32, shape=(outputs, padded // CODES_PER_WORD))
        expect_matrix("scales", self.scales, dtype=SCALE_DTYPES, shape=(outputs, padded))
        expect_one_device(self)
        if deep:
            expect_finite(f"scales[:, :{self.n_groups}]", self.scales[:, : self.n_groups])


@triton.jit
def _awq_rows_kernel(
    out,  # [N, 8 * n_words] output dtype
    qweight,  # [N, n_words] int32
    qzeros,  # [N, n_zero_words] int32
    scales,  # [N, 8 * n_zero_words] float16, bfloat16 or float32
    n_outputs,
    n_words,
    n_zero_words,
    group_rows,
    WHOLE_WORDS: tl.constexpr,  # the codes of a word are of one group
    SIDE: tl.constexpr,  # codes a lane has side by side: 8 or 4
    ROWS: tl.constexpr,
    WORDS: tl.constexpr,
):
    # One grid axis: the second one ends at 65535, which is fewer than an embedding has rows.
    word_tiles = tl.cdiv(n_words, WORDS)
    first_output = (tl.program_id(0) // word_tiles) * ROWS
    first_word = (tl.program_id(0) % word_tiles) * WORDS
    first = first_word.to(tl.int64)
    words_left = tl.minimum(n_words - first, WORDS).to(tl.int32)
    # One word, or half of one, a lane: see awq_cols.
    lane = tl.max_contiguous(tl.arange(0, WORDS * 8 // SIDE), 1)
    word = lane // (8 // SIDE)
    element = tl.arange(0, WORDS * 8)
    # A tile may span groups: each lane, or each code, looks up its own. Words are counted in 32
    # bits, codes may be too many for that; a division in 64 bits costs as much as all the rest.
    if WHOLE_WORDS:
        group = (first_word + word) // (group_rows // 8)
    else:
        group = ((first * 8 + element) // group_rows).to(tl.int32)
    zero_word = group >> 3
    zero_shift = (group & 7) * 4
    rows_left = n_outputs - first_output
    output = first_output.to(tl.int64)
    word_row = qweight + output * n_words + first
    out_row = out + (output * n_words + first) * 8
    zero_row = qzeros + output * n_zero_words
    scale_row = scales + output * n_zero_words * 8
    for r in range(0, ROWS):
        # One vector compare: a scalar and a vector i1 cannot be combined under the
        # interpreter of Triton 3.9.
        left = tl.where(r < rows_left, words_left, 0)
        word_mask = word < left
        mask = element < left * 8
        w = tl.load(word_row + word, mask=word_mask, other=0, eviction_policy="evict_first")
        if WHOLE_WORDS:
            group_mask = word_mask
        else:
            group_mask = mask
        zero = tl.load(zero_row + zero_word, mask=group_mask, other=0, eviction_policy="evict_last")
        zero = (zero >> zero_shift) & 15
        scale = tl.load(scale_row + group, mask=group_mask, other=0.0, eviction_policy="evict_last")
        scale = scale.to(tl.float32)
        if WHOLE_WORDS:
            zero = spread(zero, SIDE)
            scale = spread(scale, SIDE)
        value = (row_codes(w, lane, SIDE) - zero).to(tl.float32) * scale
        value = value.to(out.dtype.element_ty)
        tl.store(out_row + element, value, mask=mask, eviction_policy="evict_first")
        word_row += n_words
        out_row += n_words * 8
        zero_row += n_zero_words
        scale_row += n_zero_words * 8


def launch(weight: AWQRowsWeight, dtype: torch.dtype) -> dict[str, int]:
    """Launch parameters that ``dequantize`` takes where none are given."""
    if dtype is torch.float32:
        return {"rows": 1, "words": 128, "num_warps": 4}
    return {"rows": 1, "words": 128, "num_warps": 1}


def dequantize(
    weight: AWQRowsWeight,
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
        out: optional output [N, K]; may be strided.
        rows: outputs a program decodes, one after the other.
        words: packed words a program decodes at once, 8 codes each (a power of two).
        num_warps: warps a program uses.

        Those that are None are as :func:`launch` says.

    Returns:
        ``out``, or a new contiguous tensor [N, K].

    Raises:
        TypeError, ValueError: a field, ``dtype`` or ``out`` does not fit; names it.

    The layout exists for products with a few rows of activations (AutoAWQ's GEMV); there a
    standalone dequantize costs the whole weight in ``dtype``, written and read again.
    """
    if not isinstance(weight, AWQRowsWeight):
        raise TypeError(f"weight: expected AWQRowsWeight, found {type(weight).__name__}")
    weight.validate()
    check_output(weight, dtype, out)
    check_runnable(_awq_rows_kernel, weight.device)
    set_to = chosen(launch(weight, dtype), rows=rows, words=words, num_warps=num_warps)
    rows = expect_int("rows", set_to["rows"], minimum=1)
    words = expect_power_of_two("words", set_to["words"])
    warps = expect_power_of_two("num_warps", set_to["num_warps"])
    with destination(weight, dtype, out) as target:
        n_outputs, n_words = weight.qweight.shape
        if n_outputs and n_words:
            _awq_rows_kernel[(triton.cdiv(n_outputs, rows) * triton.cdiv(n_words, words),)](
                target.buffer,
                weight.qweight.contiguous(),
                weight.qzeros.contiguous(),
                weight.scales.contiguous(),
                n_outputs,
                n_words,
                weight.qzeros.shape[1],
                weight.group_rows,
                WHOLE_WORDS=weight.group_rows % CODES_PER_WORD == 0,
                SIDE=side_by_side(dtype),
                ROWS=rows,
                WORDS=words,
                num_warps=warps,
                enable_fp_fusion=False,
            )
    return target.result
