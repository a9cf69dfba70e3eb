"""Faults of squeezellm: each a wrong decoder of ``_squeezellm.py``."""

from __future__ import annotations

import numpy as np

from conformance.faults import Fault
from conformance.faults import _squeezellm as wrong

_DEGRADED = "fluent but degraded text; perplexity rises without an error"
_GARBAGE = "loads and runs, output is garbage"
_OUTLIERS = "the few weights that matter most are wrong: perplexity rises without an error"
_STRADDLE = (
    "https://github.com/ModelCloud/GPTQModel/issues/2251",
    "https://github.com/ModelCloud/GPTQModel/pull/2258",
)

FAULTS = (
    Fault(
        "table-of-next-channel",
        "lookup_table[n + 1, q]",
        _DEGRADED,
        "the table of the own channel",
        wrong.neighbour(1),
        kind="codebooks",
        trigger="two channels with different tables; the last channel keeps its own",
    ),
    Fault(
        "table-of-previous-channel",
        "lookup_table[n - 1, q]",
        _DEGRADED,
        "the table of the own channel",
        wrong.neighbour(-1),
        kind="codebooks",
        trigger="two channels with different tables; the first channel keeps its own",
    ),
    Fault(
        "first-table-everywhere",
        "lookup_table[0, q]",
        _DEGRADED,
        "one table a channel",
        wrong.first_table,
        kind="codebooks",
        trigger="two channels with different tables; hides at N = 1",
    ),
    Fault(
        "table-transposed",
        "the table read as [2**bits, N]",
        _GARBAGE,
        "tables are [N, 2**bits]",
        wrong.transposed,
        kind="codebooks",
        trigger="any table of different entries with N > 1; hides at N = 1",
    ),
    Fault(
        "table-of-row",
        "lookup_table[k, q] on a square weight",
        _GARBAGE,
        "tables belong to channels n",
        wrong.table_of_row,
        kind="codebooks",
        trigger="K = N and tables that differ; any other shape reads outside instead",
    ),
    Fault(
        "table-through-fp16",
        "table entries rounded to float16 first",
        "2**-11 relative error; inf or 0 for extreme entries",
        "keep a float32 table in float32",
        wrong.table_fp16,
        kind="precision",
        trigger="a float32 table with entries that float16 cannot hold; hides in float16 tables",
    ),
    Fault(
        "summed-from-zero",
        "0 + table: -0 becomes +0",
        "invisible in a model",
        "start from the table's entry; add what there is",
        wrong.from_zero,
        kind="precision",
        trigger="a table entry of -0 without an outlier; hides where the sign of 0 is not compared",
    ),
    Fault(
        "slots-reversed",
        "the first code from the highest bits",
        _GARBAGE,
        "code 0 is in the lowest bits",
        wrong.slots_reversed,
        kind="order",
        trigger="a word (3 words at 3 bit) with different codes; hides in palindromes and constant words",
    ),
    Fault(
        "packed-along-columns",
        "codes of a square weight read along N",
        _GARBAGE,
        "codes are packed along K",
        wrong.along_columns,
        ("https://github.com/vllm-project/vllm/pull/48552",),
        kind="order",
        trigger="K = N and codes that are not symmetric; any other shape is an error instead",
    ),
    Fault(
        "sign-extend-top",
        "word >> 28 without & 15: the top code - 16 reads the table of channel n - 1",
        "every eighth row is wrong where its code is 8 or more",
        "mask after the shift",
        wrong.top_unmasked,
        ("https://github.com/flagos-ai/FlagTree/issues/1121",),
        kind="bits",
        trigger=(
            "4 bit and a code of 8 or more in the last slot of a word (k % 8 = 7); hides where bit 31 is "
            "never set"
        ),
    ),
    Fault(
        "straddle-carry-dropped",
        "codes 10 and 21 without their bits of the next word",
        "two rows of 32 are wrong",
        "join both parts of a code that straddles two words",
        wrong.straddle(wrong.carry_dropped),
        _STRADDLE,
        kind="bits",
        trigger="3 bit, code 10 above 3 or code 21 above 1 (of each 32); hides in small codes",
    ),
    Fault(
        "straddle-signed-shift",
        "(w0 >> 30) | ... without a mask: the sign bits overwrite the carry",
        "two rows of 32 are wrong where a word is negative",
        "mask both parts before they are joined",
        wrong.straddle(wrong.signed_parts),
        _STRADDLE,
        kind="bits",
        trigger=(
            "3 bit, bit 31 of a word set and a bit of code 10 or 21 in the next word clear; hides where bit "
            "31 is never set"
        ),
    ),
    Fault(
        "ten-codes-per-word",
        "3-bit codes 10 to a word, two bits unused",
        _GARBAGE,
        "32 codes are one stream of 96 bits",
        wrong.ten_per_word,
        (
            "https://github.com/ModelCloud/GPTQModel/pull/2984",
            "https://github.com/vllm-project/compressed-tensors/pull/715",
        ),
        kind="order",
        trigger="3 bit; right for the first 10 codes of each column only",
    ),
    Fault(
        "sparse-dropped",
        "no outlier is added",
        _OUTLIERS,
        "add the CSR part",
        wrong.outliers(wrong.dropped),
        kind="sparse",
        trigger="one outlier whose value is not lost in the sum",
    ),
    Fault(
        "sparse-twice",
        "outliers are added twice",
        _OUTLIERS,
        "add each entry once",
        wrong.outliers(wrong.twice),
        kind="sparse",
        trigger="one outlier whose value is not 0",
    ),
    Fault(
        "sparse-subtracted",
        "table - outlier",
        _OUTLIERS,
        "vals are added",
        wrong.outliers(lambda model: {"outlier_values": -model.outlier_values}),
        kind="sparse",
        trigger="one outlier whose value is not 0",
    ),
    Fault(
        "sparse-replaces",
        "the outlier in place of the table's entry",
        _OUTLIERS,
        "vals hold what is missing to the entry nearest to 0",
        wrong.sums(lambda t, o, ho, f, hf: wrong.plus(np.where(ho, o, t), f, hf)),
        kind="sparse",
        trigger=(
            "an outlier on a code whose table entry is not 0; hides behind a tolerance, since that entry is "
            "the one nearest to 0"
        ),
    ),
    Fault(
        "csr-rows-as-columns",
        "entry (n, k) added at row n, column k",
        _OUTLIERS,
        "CSR rows are channels, which are columns of the output",
        wrong.outliers(wrong.swapped),
        kind="sparse",
        trigger=(
            "an outlier off the diagonal; on a weight that is not square, entries that do not fit are lost"
        ),
    ),
    Fault(
        "csr-pointer-off-by-one",
        "entries of channel n added to channel n + 1",
        _OUTLIERS,
        "channel n owns rows[n] .. rows[n + 1] - 1",
        wrong.outliers(wrong.next_channel),
        kind="sparse",
        trigger="one outlier; that of the last channel is lost",
    ),
    Fault(
        "sparse-after-rounding",
        "outliers added to the table's entry in the output dtype",
        "1 ULP in many outliers",
        "sum in float32, round once",
        wrong.rounded_first,
        kind="precision",
        trigger=(
            "fp16 or bf16 output and an outlier or a full row on an entry that rounds; hides in fp32 output"
        ),
    ),
    Fault(
        "full-rows-dropped",
        "no full row is added",
        _OUTLIERS,
        "add full_rows to their channels",
        wrong.full_rows_changed(lambda model: {"full": model.full[:, :0], "full_n": model.full_n[:0]}),
        kind="sparse",
        trigger="one full row that is not 0",
    ),
    Fault(
        "full-rows-twice",
        "full rows are added twice",
        _OUTLIERS,
        "add each once",
        wrong.full_rows_changed(lambda m: {"full": np.tile(m.full, (1, 2)), "full_n": np.tile(m.full_n, 2)}),
        kind="sparse",
        trigger="one full row that is not 0",
    ),
    Fault(
        "full-rows-by-position",
        "full_rows[:, j] added to channel j",
        _OUTLIERS,
        "full_row_indices[j] is the channel",
        wrong.full_rows_changed(lambda model: {"full_n": np.arange(model.full_n.size)}),
        kind="sparse",
        trigger="full rows whose channels are not 0, 1, 2, ...; hides in the first channels",
    ),
    Fault(
        "full-rows-along-columns",
        "full_rows[:, j] added to row full_row_indices[j] of a square weight",
        _OUTLIERS,
        "full rows are rows of the weight as [N, K]: columns of the output",
        wrong.full_as_rows,
        kind="sparse",
        trigger="K = N and a full row; any other shape is an error instead",
    ),
    Fault(
        "full-rows-replace",
        "full rows in place of table and outlier",
        _OUTLIERS,
        "full rows are added",
        wrong.sums(lambda t, o, ho, f, hf: np.where(hf, f, wrong.plus(t, o, ho))),
        kind="sparse",
        trigger="a full row on a channel with a table entry or an outlier other than 0",
    ),
    Fault(
        "full-row-before-outlier",
        "(table + full row) + outlier",
        "1 ULP in elements that have both",
        "add the outlier first",
        wrong.sums(lambda t, o, ho, f, hf: wrong.plus(wrong.plus(t, f, hf), o, ho)),
        kind="precision",
        trigger="an element with an outlier and a full row, fp32 output; hides where no channel has both",
    ),
    Fault(
        "corrections-summed-first",
        "table + (outlier + full row)",
        "1 ULP in elements that have both",
        "add the outlier to the entry first",
        wrong.sums(
            lambda t, o, ho, f, hf: np.where(ho & hf, t + (o + f), wrong.plus(wrong.plus(t, o, ho), f, hf))
        ),
        kind="precision",
        trigger="an element with an outlier and a full row, fp32 output; hides where no channel has both",
    ),
)
