"""Exact model of squeezellm (the text is in ``kernels/squeezellm.py``)."""

from __future__ import annotations

import dataclasses

import numpy as np

from kernels.squeezellm import SqueezeLLMWeight
from oracles.spec.gptq import unpack_stream
from oracles.spec.rounding import numpy_bytes


@dataclasses.dataclass(frozen=True)
class SqueezeLLMModel:
    """A SqueezeLLM weight, unpacked.

    Attributes:
        codes: int64 [K, N], 0 .. 2**bits - 1.
        table: float32 [N, 2**bits].
        channel: int64 [N], the table that a column uses: its own, unless a diagnosis says else.
        outlier_k, outlier_n: int64 [nnz], the element of each outlier.
        outlier_values: float32 [nnz].
        full: float32 [K, topX], in the order of ``full_n``.
        full_n: int64 [topX], the column of each full row.
    """

    codes: np.ndarray
    table: np.ndarray
    channel: np.ndarray
    outlier_k: np.ndarray
    outlier_n: np.ndarray
    outlier_values: np.ndarray
    full: np.ndarray
    full_n: np.ndarray

    def dense(self) -> np.ndarray:
        """Values of the table alone: float32 [K, N]."""
        return self.table[self.channel[None, :], self.codes]

    def values(self) -> np.ndarray:
        values = self.dense()
        with np.errstate(all="ignore"):
            # Added in the order of the file; each addition is rounded to float32.
            for k, n, value in zip(self.outlier_k, self.outlier_n, self.outlier_values, strict=True):
                values[k, n] = values[k, n] + value
            for j, n in enumerate(self.full_n):
                values[:, n] = values[:, n] + self.full[:, j]
        return values

    def steps(self) -> np.ndarray:
        """The smallest gap between two different finite entries of the channel's table, or 0."""
        found = np.zeros(self.table.shape[0])
        for n, row in enumerate(self.table.astype(np.float64)):
            entries = np.unique(row[np.isfinite(row)])
            if entries.size > 1:
                found[n] = np.diff(entries).min()
        return np.broadcast_to(found[None, :], self.codes.shape)


def unpack(weight: SqueezeLLMWeight) -> SqueezeLLMModel:
    """Unpack a SqueezeLLM weight: each column of codes is one bit stream."""
    n_rows, n_cols = weight.output_shape
    words = weight.qweight.t()
    stream = numpy_bytes(words).reshape(n_cols, words.shape[1] * 4)
    codes = unpack_stream(stream, weight.bits, n_rows).T
    table = weight.lookup_table.detach().cpu().float().numpy()
    outlier_k, outlier_n = np.zeros(0, np.int64), np.zeros(0, np.int64)
    outlier_values = np.zeros(0, np.float32)
    if weight.rows is not None and weight.cols is not None and weight.vals is not None:
        pointers = weight.rows.cpu().numpy().astype(np.int64)
        outlier_n = np.repeat(np.arange(n_cols), pointers[1:] - pointers[:-1])
        outlier_k = weight.cols.cpu().numpy().astype(np.int64)
        outlier_values = weight.vals.cpu().numpy()
    full, full_n = np.zeros((n_rows, 0), np.float32), np.zeros(0, np.int64)
    if weight.full_rows is not None and weight.full_row_indices is not None:
        full = weight.full_rows.cpu().numpy()
        full_n = weight.full_row_indices.cpu().numpy().astype(np.int64)
    return SqueezeLLMModel(
        codes=codes,
        table=table,
        channel=np.arange(n_cols),
        outlier_k=outlier_k,
        outlier_n=outlier_n,
        outlier_values=outlier_values,
        full=full,
        full_n=full_n,
    )
