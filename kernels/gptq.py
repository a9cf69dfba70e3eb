"""gptq: GPTQ checkpoints, 2, 3, 4 and 8 bit, with or without activation order.

K = in features (the reduction axis), N = out features, G = ceil(K / group_size) groups.
Codes run along K and zeros along N, each as a dense little-endian bit stream::

    4 bit   word 0   | 31..28 | 27..24 |  ...  | 7..4 | 3..0 |       8 codes a word
                     | code 7 | code 6 |  ...  |  1   |  0   |
    3 bit   word 0   | 31..30      | 29..27 | ... | 2..0         |    32 codes in 3 words:
                     | 10, low two |   9    | ... |  0           |    codes 10 and 21 straddle
            word 1   | 31          | 30..28 | ... | 3..1 | 0     |
                     | 21, low one |   20   | ... |  11  | 10, high one |
            word 2   | 31..29      | 28..26 | ... | 4..2 | 1..0  |
                     | 31          |   30   | ... |  22  | 21, high two |

    value[k, n] = round_out(fp32((code[k, n] - zero[g, n]) * scale[g, n]))
    g = g_idx[k], or k // group_size without g_idx

======== ============================ ====================================================
field    dtype                        shape
======== ============================ ====================================================
qweight  int32                        [ceil(K * bits / 32), N]
qzeros   int32                        [G, ceil(N * bits / 32)]
scales   float16, bfloat16, float32   [G, N]
g_idx    int32, or None               [K]
======== ============================ ====================================================

**Zeros.** ``maxq = 2**bits - 1``. What a stored field means is a convention which the
tensors do not tell, so a weight names it. v1 files come from writers that store zero - 1,
and their readers disagree about the stored value maxq:

============= ========================= ===========================================
``zeros``     zero                      read like this by
============= ========================= ===========================================
``v1``        (stored + 1) & maxq       AutoGPTQ ``qlinear_cuda_old`` at 2, 4, 8 bit
``v1-nowrap`` stored + 1, up to maxq+1  AutoGPTQ ``qlinear_cuda``; ``_old`` at 3 bit
``v2``        stored                    GPTQModel
============= ========================= ===========================================

**Rounding.** Codes and zeros are subtracted as integers. A 9-bit integer times the 11 or
8 significant bits of a float16 or bfloat16 scale is exact in float32, so those weights are
rounded once, at the output. The product with a float32 scale is itself rounded to float32
first, because that is what PyTorch's ``scales * (code - zero)`` followed by a cast gives.

**Sizes.** 2, 4 and 8 bit allow any K and N: GPTQModel fills the last word of a column of
codes or a row of zeros with padding; ``in_features`` then says where K ends. AutoGPTQ
writes only multiples of 32. 3 bit needs K and N in multiples of 32 in both libraries.

Source: AutoGPTQ 0.7.1, ``nn_modules/qlinear/qlinear_cuda.py`` and ``qlinear_cuda_old.py``;
GPTQModel 7.7.0, ``nn_modules/qlinear/__init__.py`` (``pack_original``, ``dequantize_weight``);
https://arxiv.org/abs/2210.17323.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import torch
import triton

from kernels._gptq_kernel import GROUP_PER_ROW, GROUP_PER_TILE, GROUP_PER_WORD, gptq_kernel
from kernels._grid import grid_of, grouped_grid
from kernels._lanes import side_by_side
from kernels._launch import check_output, check_runnable, chosen, destination
from kernels._packed import (
    PackedWeight,
    expect_finite,
    expect_int,
    expect_one_device,
    expect_power_of_two,
    expect_tensor,
)

BITS = (2, 3, 4, 8)
SCALE_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
ZERO_CONVENTIONS = ("v1", "v1-nowrap", "v2")

Zeros = Literal["v1", "v1-nowrap", "v2"]


@dataclasses.dataclass(frozen=True)
class GPTQWeight(PackedWeight):
    """A weight as a GPTQ checkpoint stores it. Tensors as in the module's table.

    Attributes:
        qweight: codes.
        qzeros: stored zeros; ``zeros`` says what they mean.
        scales: one a group and column.
        g_idx: group of each row (activation order): any order, groups of any size, some
            perhaps unused; None where groups follow one another.
        bits: 2, 3, 4 or 8.
        group_size: rows a group has, or -1 for one group over all of K.
        zeros: convention of the stored zeros.
        in_features: K; None for as many codes as ``qweight`` has room for.
    """

    qweight: torch.Tensor
    qzeros: torch.Tensor
    scales: torch.Tensor
    g_idx: torch.Tensor | None
    bits: int
    group_size: int
    zeros: Zeros
    in_features: int | None = None

    @property
    def n_rows(self) -> int:
        """K."""
        return self.qweight.shape[0] * 32 // self.bits if self.in_features is None else self.in_features

    @property
    def group_rows(self) -> int:
        """Rows a sequential group has: never 0 or negative, whatever ``group_size`` says.

        -1 as a divisor was a real fault: https://github.com/vllm-project/vllm/pull/37329
        """
        return max(self.n_rows, 1) if self.group_size == -1 else self.group_size

    @property
    def n_groups(self) -> int:
        """G: the last group may be short (https://github.com/vllm-project/compressed-tensors/pull/308)."""
        return -(-self.n_rows // self.group_rows)

    @property
    def output_shape(self) -> tuple[int, ...]:
        return (self.n_rows, self.qweight.shape[1])

    def validate(self, *, deep: bool = False) -> None:
        """Check the fields against each other.

        Raises:
            TypeError: a field of another type or dtype.
            ValueError: unsupported ``bits``, ``group_size`` or ``zeros``, sizes that the
                layout does not allow, a wrong shape, tensors on different devices; with
                ``deep`` also a ``g_idx`` that names no group and a non-finite scale.
        """
        if expect_int("bits", self.bits) not in BITS:
            raise ValueError(f"bits: expected 2, 3, 4 or 8, found {self.bits}")
        if expect_int("group_size", self.group_size, minimum=-1) == 0:
            raise ValueError("group_size: expected -1 or at least 1, found 0")
        if self.zeros not in ZERO_CONVENTIONS:
            raise ValueError(f"zeros: expected one of {', '.join(ZERO_CONVENTIONS)}, found {self.zeros!r}")
        qweight = expect_tensor("qweight", self.qweight, dtype=torch.int32)
        if qweight.dim() != 2:
            raise ValueError(f"qweight: expected 2 dimensions, found shape {list(qweight.shape)}")
        n_words, n_cols = qweight.shape
        if self.in_features is None:
            if self.bits == 3 and n_words % 3:
                raise ValueError(f"qweight: expected rows in multiples of 3 at 3 bit, found {n_words}")
        else:
            expect_int("in_features", self.in_features)
        for field, size in (("in_features", self.n_rows), ("qweight", n_cols)):
            if self.bits == 3 and size % 32:
                what = "a multiple of 32" if field == "in_features" else "columns in multiples of 32"
                raise ValueError(f"{field}: expected {what} at 3 bit, found {size}")
        shape = (-(-self.n_rows * self.bits // 32), n_cols)
        expect_tensor("qweight", qweight, dtype=torch.int32, shape=shape)
        expect_tensor("scales", self.scales, dtype=SCALE_DTYPES, shape=(self.n_groups, n_cols))
        shape = (self.n_groups, -(-n_cols * self.bits // 32))
        expect_tensor("qzeros", self.qzeros, dtype=torch.int32, shape=shape)
        if self.g_idx is not None:
            expect_tensor("g_idx", self.g_idx, dtype=torch.int32, shape=(self.n_rows,))
        expect_one_device(self)
        if deep:
            self._check_groups()
            expect_finite("scales", self.scales)

    def _check_groups(self) -> None:
        # A g_idx out of a file was read unchecked: https://github.com/ModelCloud/GPTQModel/issues/2949
        if self.g_idx is None:
            return
        bad = (self.g_idx < 0) | (self.g_idx >= self.n_groups)
        if bool(bad.any()):
            row = int(bad.nonzero()[0].item())
            found = int(self.g_idx[row].item())
            raise ValueError(f"g_idx: expected 0 <= group < {self.n_groups}, found {found} at row {row}")


def launch(weight: GPTQWeight, dtype: torch.dtype) -> dict[str, int]:
    """Launch parameters that ``dequantize`` takes where none are given."""
    # Programs of one packed row, and of one warp, were fastest nearly throughout. In activation order every
    # row loads its own scales and zeros, for more columns at once; there two warps were, but for weights of
    # about 4096 x 4096. At 2 and 3 bit a packed row has 16 and 32 rows of outputs: fewer columns then, and in
    # the largest weights at 4 bit. Small weights like more columns, each width at a size of its own.
    n_rows, n_cols = weight.output_shape
    n_elements = n_rows * n_cols
    half = dtype is not torch.float32
    if weight.g_idx is not None and weight.n_groups > 1:
        one = not half or 2**22 < n_elements <= 2**24
        return {"packed_rows": 1, "cols": 64 * side_by_side(dtype), "num_warps": 1 if one else 2}
    if not half:
        return {"packed_rows": 1, "cols": 128, "num_warps": 1}
    narrow = weight.bits < 4 or (weight.bits == 4 and n_elements > 2**27)
    cols, warps = 128 if narrow else 256, 1
    if weight.bits == 8 and n_elements <= 2**25:
        cols = 512
    elif (weight.bits == 4 and n_elements <= 2**22) or (weight.bits == 2 and 2**22 < n_elements <= 2**24):
        cols, warps = 512, 2
    return {"packed_rows": 1, "cols": cols, "num_warps": warps}


def dequantize(
    weight: GPTQWeight,
    *,
    dtype: torch.dtype,
    out: torch.Tensor | None = None,
    packed_rows: int | None = None,
    cols: int | None = None,
    num_warps: int | None = None,
) -> torch.Tensor:
    """Dequantize ``weight`` to ``dtype``, exact to the bit.

    Args:
        weight: tensors on one GPU (or on the CPU under Triton's interpreter). Strided
            inputs are made contiguous first, which copies them.
        dtype: float16, bfloat16 or float32. Values beyond float16's range become inf.
        out: optional output [K, N]; may be strided.
        packed_rows: rows of words a program decodes, one after the other; at 3 bit, rows
            of three words. Scales and zeros are loaded once a program where all these
            rows are of one group.
        cols: columns a program decodes at once (a power of two; 8 and more, in float32 4 and more).
        num_warps: warps a program uses (a power of two).

        Those that are None are as :func:`launch` says.

    Returns:
        ``out``, or a new contiguous tensor [K, N]. A row whose ``g_idx`` names no group
        becomes NaN, and nothing outside the scales is read: the launch does not wait for
        the values of ``g_idx``; ``weight.validate(deep=True)`` does.

    Raises:
        TypeError, ValueError: a field, ``dtype`` or ``out`` does not fit; names it.

    Use a fused kernel (Marlin, ExLlama, GPTQModel's own) where the weight is multiplied at
    once: a standalone dequantize writes and re-reads the whole weight in ``dtype``, at 4 bit
    four times the packed bytes. In activation order each row reads its own scales and zeros, where there
    are several groups; sort the rows by group once, if the same weight is decoded often.
    """
    if not isinstance(weight, GPTQWeight):
        raise TypeError(f"weight: expected GPTQWeight, found {type(weight).__name__}")
    weight.validate()
    check_output(weight, dtype, out)
    check_runnable(gptq_kernel, weight.device)
    set_to = chosen(launch(weight, dtype), packed_rows=packed_rows, cols=cols, num_warps=num_warps)
    packed_rows = expect_int("packed_rows", set_to["packed_rows"], minimum=1)
    cols = expect_power_of_two("cols", set_to["cols"])
    warps = expect_power_of_two("num_warps", set_to["num_warps"])
    side = side_by_side(dtype)
    if cols < side:
        raise ValueError(f"cols: expected at least {side} for {dtype}, found {cols}")
    with destination(weight, dtype, out) as target:
        n_rows, n_cols = weight.output_shape
        if n_rows and n_cols:
            codes = 32 if weight.bits == 3 else 32 // weight.bits
            n_packed = triton.cdiv(n_rows, codes)
            packed_rows = min(packed_rows, n_packed)
            g_idx = None if weight.g_idx is None else weight.g_idx.contiguous()
            col_tiles, row_tiles = triton.cdiv(n_cols, cols), triton.cdiv(n_packed, packed_rows)
            group_per, grid = GROUP_PER_ROW, grid_of(col_tiles, row_tiles)
            # One group over all rows is what many checkpoints in activation order have; what is left of
            # g_idx then is which rows name it.
            if weight.n_groups == 1 or (g_idx is None and weight.group_rows % codes == 0):
                group_per = GROUP_PER_WORD if g_idx is None else GROUP_PER_ROW
                tiles, rest = divmod(weight.group_rows, codes * packed_rows)
                if weight.n_groups == 1:
                    tiles, rest = row_tiles, 0
                grouped = None if rest else grouped_grid(col_tiles, tiles, weight.n_groups)
                if grouped is not None:
                    group_per, grid = GROUP_PER_TILE, grouped
            gptq_kernel[grid](
                target.buffer,
                weight.qweight.contiguous(),
                weight.qzeros.contiguous(),
                weight.scales.contiguous(),
                # Without activation order the pointer is never read.
                weight.qweight if g_idx is None else g_idx,
                n_rows,
                n_cols,
                weight.qzeros.shape[1],
                weight.n_groups,
                min(weight.group_rows, n_rows),
                BITS=weight.bits,
                ZEROS=ZERO_CONVENTIONS.index(weight.zeros),
                ACT_ORDER=g_idx is not None,
                GROUP_PER=group_per.value,
                PACKED_ROWS=packed_rows,
                COLS=cols,
                SIDE=side,
                num_warps=warps,
                enable_fp_fusion=False,
            )
    return target.result
