"""squeezellm: SqueezeLLM's dense-and-sparse weights, 3 and 4 bit, a lookup table a channel.

K = in features (the reduction axis), N = out features (channels). Codes run along K in the
dense little-endian bit stream of ``kernels/gptq.py``, which has the diagram: 8 codes a word at
4 bit, 32 codes in 3 words at 3 bit, where codes 10 and 21 straddle two words. There is neither
scale nor zero; a code selects an entry of its channel's table::

    value[k, n] = round_out((fp32(lookup_table[n, code[k, n]]) + sparse[k, n]) + full[k, n])

================ ================= ==============================================================
field            dtype             shape
================ ================= ==============================================================
qweight          int32             [K * bits / 32, N]
lookup_table     float32, float16  [N, 2**bits], in any order, entries may repeat
rows             int32, or None    [N + 1]: the outliers of channel n are rows[n] .. rows[n + 1] - 1
cols             int32, or None    [nnz], the k of each outlier, ascending within a channel
vals             float32, or None  [nnz], added to the table's entry
full_rows        float32, or None  [K, topX], added to whole channels
full_row_indices int32, or None    [topX], the channel of each column of full_rows, each once
================ ================= ==============================================================

The names are the checkpoint's and speak of the weight as [N, K]: "rows" are channels n, "cols"
are k. So ``full_rows[:, j]`` belongs to output column ``full_row_indices[j]``.

**Sums** are float32, in the order written: table, outlier, full row (the recorded answers of
the original kernels have elements that only this order reproduces). What an element does not
have is not added, not even as 0: an entry of -0 without outlier stays -0. (The original only
multiplies, and a sum of products shows no -0.) One rounding to the output dtype follows; so an
outlier never meets a rounded table entry.

**Sizes.** 4 bit: K in multiples of 8; 3 bit: in multiples of 32. N is free.

Source: https://github.com/SqueezeAILab/SqueezeLLM, revision a5d71f3, ``squeezellm/quant.py``
(``QuantLinearLUT.pack2``) and ``quant_cuda_kernel.cu``; https://arxiv.org/abs/2306.07629. vLLM's
former port stored float16 tables and had no sparse part.
"""

from __future__ import annotations

import dataclasses

import torch
import triton

from kernels._gather import GATHERS
from kernels._grid import grid_of
from kernels._launch import check_output, check_runnable, chosen, destination
from kernels._packed import (
    PackedWeight,
    expect_finite,
    expect_int,
    expect_one_device,
    expect_power_of_two,
    expect_tensor,
)
from kernels._squeezellm_kernel import dense_kernel, gather_kernel, outlier_kernel

BITS = (3, 4)
TABLE_DTYPES = (torch.float32, torch.float16)


@dataclasses.dataclass(frozen=True)
class SqueezeLLMWeight(PackedWeight):
    """A weight as a SqueezeLLM checkpoint stores it. Tensors as in the module's table.

    Attributes:
        qweight: codes.
        lookup_table: values of the codes, one table a channel.
        bits: 3 or 4.
        rows, cols, vals: outliers in CSR over channels; all three, or none.
        full_rows, full_row_indices: values added to whole channels; both, or neither.
    """

    qweight: torch.Tensor
    lookup_table: torch.Tensor
    bits: int
    rows: torch.Tensor | None = None
    cols: torch.Tensor | None = None
    vals: torch.Tensor | None = None
    full_rows: torch.Tensor | None = None
    full_row_indices: torch.Tensor | None = None

    @property
    def n_rows(self) -> int:
        """K."""
        return self.qweight.shape[0] * 32 // self.bits

    @property
    def output_shape(self) -> tuple[int, ...]:
        return (self.n_rows, self.qweight.shape[1])

    def validate(self, *, deep: bool = False) -> None:
        """Check the fields against each other.

        Raises:
            TypeError: a field of another type or dtype, or one of a group of optional fields
                without the others.
            ValueError: unsupported ``bits``, a wrong shape, tensors on different devices; with
                ``deep`` also row pointers that do not ascend from 0 to nnz, columns out of range,
                out of order or twice in one channel, full rows of no channel or of one twice,
                and a value that is not finite.
        """
        if expect_int("bits", self.bits) not in BITS:
            raise ValueError(f"bits: expected 3 or 4, found {self.bits}")
        qweight = expect_tensor("qweight", self.qweight, dtype=torch.int32)
        if qweight.dim() != 2:
            raise ValueError(f"qweight: expected 2 dimensions, found shape {list(qweight.shape)}")
        n_words, n_cols = qweight.shape
        if self.bits == 3 and n_words % 3:
            raise ValueError(f"qweight: expected rows in multiples of 3 at 3 bit, found {n_words}")
        table = (n_cols, 2**self.bits)
        expect_tensor("lookup_table", self.lookup_table, dtype=TABLE_DTYPES, shape=table)
        self._together("rows", "cols", "vals")
        self._together("full_rows", "full_row_indices")
        if self.rows is not None:
            expect_tensor("rows", self.rows, dtype=torch.int32, shape=(n_cols + 1,))
            cols = expect_tensor("cols", self.cols, dtype=torch.int32)
            if cols.dim() != 1:
                raise ValueError(f"cols: expected 1 dimension, found shape {list(cols.shape)}")
            expect_tensor("vals", self.vals, dtype=torch.float32, shape=tuple(cols.shape))
        if self.full_row_indices is not None:
            indices = expect_tensor("full_row_indices", self.full_row_indices, dtype=torch.int32)
            if indices.dim() != 1:
                raise ValueError(f"full_row_indices: expected 1 dimension, found shape {list(indices.shape)}")
            shape = (self.n_rows, indices.shape[0])
            expect_tensor("full_rows", self.full_rows, dtype=torch.float32, shape=shape)
        expect_one_device(self)
        if deep:
            self._validate_values()

    def _together(self, *names: str) -> None:
        given = [name for name in names if getattr(self, name) is not None]
        if given and len(given) < len(names):
            missing = next(name for name in names if name not in given)
            raise TypeError(f"{missing}: expected a tensor (there is {given[0]}), found NoneType")

    def _validate_values(self) -> None:
        expect_finite("lookup_table", self.lookup_table)
        if self.rows is not None and self.cols is not None and self.vals is not None:
            self._validate_csr(self.rows.long(), self.cols.long())
            expect_finite("vals", self.vals)
        if self.full_rows is not None and self.full_row_indices is not None:
            n_cols = self.qweight.shape[1]
            _expect_index("full_row_indices", self.full_row_indices, n_cols, "channel")
            ascending, order = self.full_row_indices.sort(stable=True)
            twice = ascending[1:] == ascending[:-1]
            if bool(twice.any()):
                at = int(twice.nonzero()[0].item()) + 1
                raise ValueError(
                    f"full_row_indices: expected each channel once, found {int(ascending[at])} "
                    f"again at position {int(order[at])}"
                )
            expect_finite("full_rows", self.full_rows)

    def _validate_csr(self, rows: torch.Tensor, cols: torch.Tensor) -> None:
        if int(rows[0]) != 0:
            raise ValueError(f"rows: expected 0 at the start, found {int(rows[0])}")
        falls = rows[1:] < rows[:-1]
        if bool(falls.any()):
            at = int(falls.nonzero()[0].item())
            raise ValueError(
                f"rows: expected pointers that do not descend, found {int(rows[at + 1])} after "
                f"{int(rows[at])} at channel {at}"
            )
        if int(rows[-1]) != cols.numel():
            raise ValueError(f"rows: expected {cols.numel()} (nnz) at the end, found {int(rows[-1])}")
        _expect_index("cols", cols, self.n_rows, "row")
        entry = torch.arange(cols.numel(), device=cols.device)
        channel = torch.searchsorted(rows, entry, right=True) - 1
        wrong = (channel[1:] == channel[:-1]) & (cols[1:] <= cols[:-1])
        if bool(wrong.any()):
            at = int(wrong.nonzero()[0].item()) + 1
            found, before = int(cols[at]), int(cols[at - 1])
            words = f"{found} twice" if found == before else f"{found} after {before}"
            raise ValueError(
                f"cols: expected ascending rows within a channel, found {words} at entry {at} "
                f"(channel {int(channel[at])})"
            )


def _expect_index(field: str, index: torch.Tensor, size: int, what: str) -> None:
    bad = (index < 0) | (index >= size)
    if bool(bad.any()):
        at = int(bad.nonzero()[0].item())
        raise ValueError(f"{field}: expected 0 <= {what} < {size}, found {int(index[at])} at position {at}")


def _full_of(weight: SqueezeLLMWeight) -> torch.Tensor:
    """int32 [N]: the column of ``full_rows`` that belongs to a channel, or -1.

    An index out of range goes to one place behind the last channel, without asking the device.
    """
    assert weight.full_row_indices is not None
    n_cols = weight.qweight.shape[1]
    index = weight.full_row_indices.long()
    index = torch.where((index >= 0) & (index < n_cols), index, n_cols)
    found = torch.full((n_cols + 1,), -1, dtype=torch.int32, device=index.device)
    found[index] = torch.arange(index.numel(), dtype=torch.int32, device=index.device)
    return found[:n_cols]


def _has_full_rows(weight: SqueezeLLMWeight) -> bool:
    return weight.full_rows is not None and weight.full_rows.shape[1] > 0


def launch(weight: SqueezeLLMWeight, dtype: torch.dtype) -> dict[str, int]:
    """Launch parameters that ``dequantize`` takes where none are given."""
    if GATHERS and not _has_full_rows(weight):
        # Many rows, for which the tables are loaded once, of few columns: else small weights have too few
        # programs. The largest have enough of them with twice the columns.
        n_rows, n_cols = weight.output_shape
        if dtype is torch.float32:
            packed_rows, cols, warps = (2, 64, 4) if weight.bits == 3 else (4, 64, 4)
        elif weight.bits == 3:
            packed_rows, cols, warps = (4, 32, 2) if n_rows * n_cols <= 2**25 else (2, 64, 2)
        else:
            packed_rows, cols, warps = (16, 32, 2) if n_rows * n_cols <= 2**27 else (8, 64, 2)
        return {"gather": 1, "packed_rows": packed_rows, "down": 0, "cols": cols, "num_warps": warps}
    packed_rows = 2 if weight.bits == 3 else 8
    # Every output is a lookup in its column's table. A thread has few columns, so that the tables a
    # warp reads at once lie in few cache lines, and a program many rows, for which they stay there.
    return {"gather": 0, "packed_rows": packed_rows, "down": 0, "cols": 64, "num_warps": 2}


def dequantize(
    weight: SqueezeLLMWeight,
    *,
    dtype: torch.dtype,
    out: torch.Tensor | None = None,
    gather: int | None = None,
    packed_rows: int | None = None,
    cols: int | None = None,
    down: int | None = None,
    entries: int = 256,
    num_warps: int | None = None,
) -> torch.Tensor:
    """Dequantize ``weight`` to ``dtype``, exact to the bit.

    Args:
        weight: tensors on one GPU (or on the CPU under Triton's interpreter). Strided
            inputs are made contiguous first, which copies them.
        dtype: float16, bfloat16 or float32. Values beyond float16's range become inf.
        out: optional output [K, N]; may be strided.
        gather: 1: a program looks entries up in shared memory (``tl.gather``), unless there are full
            rows, or Triton is older than 3.4, which has none that compiles. 0: it loads each entry,
            out of the cache.
        packed_rows: rows of words (at 3 bit, of three words) a program decodes: with ``gather`` at
            once (a power of two), else one by one.
        cols: columns a program decodes at once (a power of two).
        down: without ``gather``, 1: neighbouring programs decode neighbouring rows of the same
            columns; 0: neighbouring columns.
        entries: outliers a program of the second launch adds (a power of two).
        num_warps: warps a program uses.

        Those that are None are as :func:`launch` says.

    Returns:
        ``out``, or a new contiguous tensor [K, N]. Outliers and full rows that name no element
        are left out, and nothing outside the tensors is touched: the launch does not wait for
        their values; ``weight.validate(deep=True)`` does. Of two outliers of one element,
        which deep validation refuses, either may count.

    Raises:
        TypeError, ValueError: a field, ``dtype`` or ``out`` does not fit; names it.

    Use a fused product where few rows of activations are multiplied (SqueezeLLM's kernels do it
    for one): a standalone dequantize writes and re-reads the whole weight in ``dtype``. Each
    output also reads its table, 64 bytes a channel at 4 bit, which caches hold.
    """
    if not isinstance(weight, SqueezeLLMWeight):
        raise TypeError(f"weight: expected SqueezeLLMWeight, found {type(weight).__name__}")
    weight.validate()
    check_output(weight, dtype, out)
    set_to = chosen(
        launch(weight, dtype),
        gather=gather, packed_rows=packed_rows, cols=cols, down=down, num_warps=num_warps,
    )  # fmt: skip
    full = _has_full_rows(weight)
    gathers = bool(set_to["gather"]) and GATHERS and not full
    if gathers:
        packed_rows = expect_power_of_two("packed_rows", set_to["packed_rows"])
    else:
        packed_rows = expect_int("packed_rows", set_to["packed_rows"], minimum=1)
    cols = expect_power_of_two("cols", set_to["cols"])
    expect_power_of_two("entries", entries)
    warps = expect_power_of_two("num_warps", set_to["num_warps"])
    check_runnable(gather_kernel if gathers else dense_kernel, weight.device)
    with destination(weight, dtype, out) as target:
        n_rows, n_cols = weight.output_shape
        if not n_rows or not n_cols:
            return target.result
        qweight = weight.qweight.contiguous()
        table = weight.lookup_table.contiguous()
        # Without full rows the two pointers are never read.
        full_of = _full_of(weight) if full else qweight
        full_rows = weight.full_rows.contiguous() if full and weight.full_rows is not None else table
        n_full = weight.full_rows.shape[1] if full and weight.full_rows is not None else 0
        n_packed = n_rows // (32 if weight.bits == 3 else 8)
        if not gathers:
            packed_rows = min(packed_rows, n_packed)
        # Without full rows the first launch only rounds entries. Where each is loaded for each output, that
        # is done once for all: half the cache lines. The second launch sums, with the entries as they are.
        smaller = not full and not gathers and table.element_size() > dtype.itemsize
        entries_of = table.to(dtype) if smaller else table
        col_tiles, row_tiles = triton.cdiv(n_cols, cols), triton.cdiv(n_packed, packed_rows)
        tiles = {"PACKED_ROWS": packed_rows, "COLS": cols, "num_warps": warps, "enable_fp_fusion": False}
        if gathers:
            gather_kernel[grid_of(col_tiles, row_tiles)](
                target.buffer, qweight, table, n_packed, n_cols, BITS=weight.bits, **tiles
            )
        else:
            dense_kernel[(col_tiles * row_tiles,)](
                target.buffer,
                qweight,
                entries_of,
                full_of,
                full_rows,
                n_packed,
                n_cols,
                n_full,
                BITS=weight.bits,
                FULL=full,
                DOWN=bool(set_to["down"]),
                **tiles,
            )
        if weight.rows is not None and weight.cols is not None and weight.vals is not None:
            nnz = weight.cols.shape[0]
            if nnz:
                outlier_kernel[(triton.cdiv(nnz, entries),)](
                    target.buffer,
                    qweight,
                    table,
                    weight.rows.contiguous(),
                    weight.cols.contiguous(),
                    weight.vals.contiguous(),
                    full_of,
                    full_rows,
                    n_rows,
                    n_cols,
                    nnz,
                    n_full,
                    BITS=weight.bits,
                    FULL=full,
                    STEPS=(n_cols + 1).bit_length(),
                    ENTRIES=entries,
                    num_warps=warps,
                    enable_fp_fusion=False,
                )
    return target.result
