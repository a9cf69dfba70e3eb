"""Registration of squeezellm."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from conformance.axes import Labels, spread
from conformance.bits import DTYPES
from conformance.case import Case
from conformance.dims import Choice, Patterned
from conformance.faults import rounding
from conformance.faults import squeezellm as faults
from conformance.formats._grouped import WORDS, Size, words
from conformance.patterns import FINITE_SCALES, SCALE_PATTERNS, Pattern, scale_values
from conformance.randomness import raw_ints
from conformance.registry import Format, Packing, Relaxation
from kernels import squeezellm
from kernels.squeezellm import SqueezeLLMWeight
from oracles import squeezellm as oracles
from oracles.base import Oracle
from oracles.spec.squeezellm import unpack

TABLE_DTYPES = {"fp32": torch.float32, "fp16": torch.float16}
# As scales, and tables of few different entries: codes that mean the same.
TABLES = {**SCALE_PATTERNS, "dup": True}
# Which elements are outliers: none, one, one in 16, all of every third channel, every element.
SPARSE = {"none": False, "one": True, "few": True, "channels": True, "all": False}

WHY = (
    "the nearest entry of the table, exactly; outliers and full rows hold the float32 difference to their "
    "entry, and difference and sum are each rounded by 2**-24 of numbers no larger than both together"
)
SIGN_OF_ZERO = (
    "the recorded answers are sums of products with an identity matrix, which show an entry of -0 as +0; "
    "no other difference"
)


def _rows(drawn: Mapping[str, Any]) -> tuple[int, ...]:
    """K: around words and tiles; whole words only."""
    return (32, 64, 96) if drawn["bits"] == 3 else (32, 8, 16, 24, 40, 64, 72, 128)


def _cols(drawn: Mapping[str, Any]) -> tuple[int, ...]:
    """N: around tiles, primes, and K and the size of a table, where wrong axes fit."""
    return (16, 32, 1, 2, 3, 7, 8, 9, 15, 17, 31, 33, 61, 64, 65, 96, drawn["K"], 2 ** drawn["bits"])


PACKER = Choice(
    "packer",
    "compressed-tensors",
    choices=("compressed-tensors", "autogptq"),
    generated=("compressed-tensors",),
)
TABLE = Patterned("table", Pattern("negative", 0), known=TABLES, generated=(*FINITE_SCALES, "dup"))
VALS = Patterned("vals", Pattern("negative", 1), known=SCALE_PATTERNS, generated=FINITE_SCALES)
DIMS = (
    PACKER,
    Choice("bits", 4, choices=(4, 3)),
    Size("K", 32, _rows),
    Size("N", 16, _cols),
    Choice("tdtype", "fp32", choices=tuple(TABLE_DTYPES)),
    WORDS,
    TABLE,
    # Half of the weights have a table alone, which is what other libraries can decode.
    Patterned("sparse", Pattern("none"), known=SPARSE, generated=(*["none"] * 6, *SPARSE)),
    Choice("full", 0, choices=(0, 1, 3), generated=(0, 0, 0, 0, 1, 3)),
    VALS,
    Choice("recorded", "none", choices=("none", *oracles.recorded_names()), generated=("none",)),
)
PACK_DIMS = (
    dataclasses.replace(PACKER, generated=None),
    Size("K", 32, lambda drawn: (32, 64, 96) if drawn["packer"] == "autogptq" else _rows(drawn)),
    Size("N", 16, lambda drawn: (32, 64, 96) if drawn["packer"] == "autogptq" else _cols(drawn)),
    # Magnitudes of the floats, which a float16 table must hold too.
    dataclasses.replace(TABLE, generated=("one", "ordinary", "negative", "small")),
)


# --- weights ----------------------------------------------------------------------------------


def _outliers(pattern: Pattern, n_rows: int, n_cols: int) -> np.ndarray | None:
    """Mask [N, K] of the elements that are outliers, or None for a weight without a sparse part."""
    label = f"sparse/{pattern.name}/{pattern.number}"
    mask = np.zeros((n_cols, n_rows), bool)
    if pattern.name == "none":
        return None
    if pattern.name == "one" and mask.size:
        mask.reshape(-1)[(pattern.number or 0) % mask.size] = True
    if pattern.name == "few":
        mask = raw_ints(label, mask.size, 16).reshape(mask.shape) == 0
    if pattern.name == "channels":
        mask[(pattern.number or 0) % 3 :: 3] = True
    if pattern.name == "all":
        mask[:] = True
    return mask


def _csr(mask: np.ndarray | None, values: np.ndarray | None = None) -> dict[str, torch.Tensor | None]:
    """CSR of a mask [N, K]; ``values`` float32 [N, K], or to be given later."""
    if mask is None:
        return {}
    rows = np.concatenate([[0], np.cumsum(mask.sum(axis=1))]).astype(np.int32)
    found: dict[str, torch.Tensor | None] = {
        "rows": torch.from_numpy(rows),
        "cols": torch.from_numpy(np.nonzero(mask)[1].astype(np.int32)),
    }
    if values is not None:
        found["vals"] = torch.from_numpy(values[mask])
    return found


def _full_channels(case: Case, n_cols: int) -> np.ndarray:
    """Channels of the full rows, int32, in no order."""
    order = np.argsort(raw_ints("full", n_cols, 2**31), kind="stable")
    return order[: min(case["full"], n_cols)].astype(np.int32)


def _seeded(pattern: Pattern, by: int) -> Pattern:
    return pattern if pattern.number is None else pattern._replace(number=pattern.number + by)


def _table(case: Case, n_cols: int) -> torch.Tensor:
    shape, dtype = (n_cols, 2 ** case["bits"]), TABLE_DTYPES[case["tdtype"]]
    pattern = case["table"]
    if pattern.name != "dup":
        return scale_values(pattern, shape[0] * shape[1], dtype).reshape(shape)
    # Each entry one of five of its channel, a zero of either sign among them.
    five = scale_values(Pattern("negative", pattern.number), n_cols * 5, dtype).reshape(n_cols, 5)
    five[:, 1], five[:, 3] = 0.0, -0.0
    chosen = raw_ints(f"dup/{pattern.number}", shape[0] * shape[1], 5).reshape(shape)
    return five.gather(1, torch.from_numpy(chosen))


def _words(case: Case) -> SqueezeLLMWeight:
    if case["recorded"] != "none":
        return oracles.recorded_case(case["recorded"]).weight
    bits, n_rows, n_cols = case["bits"], case["K"], case["N"]
    per_word = 32 if bits == 3 else 8
    if n_rows % per_word:
        raise ValueError(f"K: expected a multiple of {per_word} at {bits} bit, found {n_rows}")
    mask = _outliers(case["sparse"], n_rows, n_cols)
    optional = _csr(mask)
    if mask is not None:
        optional["vals"] = scale_values(_seeded(case["vals"], 1000), int(mask.sum()))
    if case["full"]:
        channels = _full_channels(case, n_cols)
        full = scale_values(_seeded(case["vals"], 2000), n_rows * channels.size)
        optional["full_rows"] = full.reshape(n_rows, channels.size)
        optional["full_row_indices"] = torch.from_numpy(channels)
    shape = (n_rows * bits // 32, n_cols)
    return SqueezeLLMWeight(
        qweight=words(case["words"], shape, bits=bits) if 0 not in shape else torch.zeros(shape).int(),
        lookup_table=_table(case, n_cols),
        bits=bits,
        **optional,
    )


def _through(
    case: Case, oracle: Oracle, floats: np.ndarray, mask: np.ndarray | None, channels: np.ndarray
) -> Packing:
    """Codes of the nearest entries of ``floats`` float32 [K, N], packed by the packer of the case.

    Tables hold evenly ranked values of their channel. The sparse part and the full rows hold the
    difference to the entry, as the original packer has it; the code there is that of the entry
    nearest to 0.
    """
    assert oracle.pack is not None
    bits, (n_rows, n_cols) = case["bits"], floats.shape
    size = 2**bits
    ranks = (2 * np.arange(size) + 1) * n_rows // (2 * size)
    tables = torch.from_numpy(np.sort(floats, axis=0)[ranks].T.copy()).to(TABLE_DTYPES[case["tdtype"]])
    exact, wide = tables.double().numpy(), floats.astype(np.float64)
    codes = np.zeros(floats.shape, np.int64)
    for n in range(n_cols):
        codes[:, n] = np.abs(wide[:, n, None] - exact[n]).argmin(axis=1)
    if mask is not None:
        codes = np.where(mask.T, np.abs(exact).argmin(axis=1)[None, :], codes)
    entries = exact[np.arange(n_cols)[None, :], codes]
    bound = np.abs(entries - wide)
    rest = (floats - entries.astype(np.float32)).astype(np.float32)  # one float32 rounding
    optional = _csr(mask, rest.T)
    corrected = np.zeros(floats.shape, bool) if mask is None else mask.T.copy()
    if case["full"]:
        left = rest[:, channels].copy()
        left[corrected[:, channels]] = 0.0
        optional["full_rows"] = torch.from_numpy(left)
        optional["full_row_indices"] = torch.from_numpy(channels)
        corrected[:, channels] = True
    bound[corrected] = 2.0**-22 * (np.abs(wide) + np.abs(entries))[corrected]
    packed = SqueezeLLMWeight(
        qweight=oracle.pack(torch.from_numpy(codes), bits), lookup_table=tables, bits=bits, **optional
    )
    packed.validate(deep=True)
    return Packing(packed, wide, bound, WHY)


def _pack(case: Case, oracle: Oracle) -> Packing:
    n_rows, n_cols = case["K"], case["N"]
    numbers = raw_ints(f"floats/{case['words']}", n_rows * n_cols, 2**24) - 2**23
    unit = (numbers / 2**23).astype(np.float32).reshape(n_rows, n_cols)
    # ``dup`` has no magnitude of its own.
    pattern = case["table"] if case["table"].name in SCALE_PATTERNS else Pattern("one")
    floats = unit * scale_values(pattern, n_cols).numpy()[None, :]
    mask = _outliers(case["sparse"], n_rows, n_cols)
    return _through(case, oracle, floats, mask, _full_channels(case, n_cols))


def _pack_real(case: Case, values: torch.Tensor, oracle: Oracle) -> Packing:
    """The largest 0.45 % are outliers, as in the paper; full rows are the channels with most of them."""
    floats = values.numpy().T.astype(np.float32)  # [K, N]
    size = np.abs(floats.T)
    mask = None
    if case["sparse"].name != "none":
        mask = size > np.sort(size.reshape(-1))[-max(1, round(size.size * 0.0045))]
    most = np.argsort(-(size.max(axis=1)), kind="stable")[: case["full"]].astype(np.int32)
    return _through(case, oracle, floats, mask, most)


# --- reports ----------------------------------------------------------------------------------


def _locate(weight: SqueezeLLMWeight, index: tuple[int, ...]) -> str:
    k, n = index
    model = unpack(weight)
    bit, code = k * weight.bits, int(model.codes[k, n])
    last = bit + weight.bits - 1
    at = f"word {bit // 32}"
    if last // 32 != bit // 32:
        at = f"words {bit // 32} and {last // 32}"
    slot = k % (32 if weight.bits == 3 else 8)
    entry = np.nonzero((model.outlier_k == k) & (model.outlier_n == n))[0]
    full = np.nonzero(model.full_n == n)[0]
    parts = [
        f"row {k}, column {n}, {at} of the column, slot {slot}, code {code}, "
        f"table entry {model.table[n, code]:.6g}"
    ]
    if entry.size:
        parts.append(f"outlier {model.outlier_values[entry[0]]:.6g} (entry {entry[0]})")
    if full.size:
        parts.append(f"full row {model.full[k, full[0]]:.6g} (position {full[0]})")
    if not entry.size and not full.size:
        parts.append("no outlier")
    return ", ".join(parts)


def _axes(weight: SqueezeLLMWeight) -> Labels:
    """Part (0 the table alone, 1 an outlier, 2 a full row), and the place in a run of whole words.

    A table is a column's, so that the column says which.
    """
    model, (n_rows, n_cols) = unpack(weight), weight.output_shape
    part = np.zeros((n_rows, n_cols), np.int64)
    part[:, model.full_n] = 2
    part[model.outlier_k, model.outlier_n] = 1
    per_word = 32 if weight.bits == 3 else 8
    k, n = np.arange(n_rows, dtype=np.int64)[:, None], np.arange(n_cols, dtype=np.int64)
    return spread(
        (n_rows, n_cols), column=n, part=part, slot=k % per_word, scale=n, word=k // per_word * n_cols + n
    )


FORMATS = (
    Format(
        name="squeezellm",
        summary="SqueezeLLM 3 and 4 bit, a table a channel, with outliers and full rows",
        weight_type=SqueezeLLMWeight,
        kernel=squeezellm.dequantize,
        oracles=(
            oracles.SQUEEZELLM,
            oracles.TORCHAO,
            oracles.COMPRESSED_TENSORS,
            oracles.AUTOGPTQ,
        ),
        unpack=unpack,
        dims=DIMS,
        words=_words,
        pack=_pack,
        pack_real=_pack_real,
        locate=_locate,
        axes=_axes,
        tiles={
            "case": {"packed_rows": 16, "cols": 512, "entries": 1024},
            "small": {"packed_rows": 2, "cols": 64, "entries": 16, "down": 1},
            "default": {},
        },
        faults=faults.FAULTS + rounding.FAULTS,
        inner=0,
        relaxations=tuple(Relaxation("squeezellm", dtype, 0, SIGN_OF_ZERO) for dtype in DTYPES.values()),
        real_variants=(
            {"tile": "default"},
            {"tile": "default", "bits": 3, "sparse": Pattern("few", 0)},
            {"tile": "default", "sparse": Pattern("few", 0), "full": 3, "packer": "autogptq"},
        ),
        real_step=9,
        pack_dims=PACK_DIMS,
        tile_cases=(
            "K=24,N=65",
            "K=32,N=63,sparse=few(1),full=3",
            "bits=3,K=64,N=67,sparse=few(2)",
            "bits=3,K=32,N=129,sparse=channels(1),full=1,table=dup(1)",
            "K=16,N=1,sparse=all",
            # Explicit zeros on entries of -0: -0 + 0 is +0.
            "table=dup(3),vals=zero,sparse=few(1),full=3",
            "K=8,N=3,table=mixed(1),vals=mixed(2),sparse=few(3)",
            *(f"recorded={name}" for name in oracles.recorded_names()),
        ),
        large=(
            "K=416,N=40,sparse=few(2),full=3",
            "bits=3,K=416,N=96,sparse=all",
            # More columns in a tile than a byte counts, with full rows and without.
            "K=16,N=200,sparse=few(1),full=3",
            "K=16,N=200",
        ),
        zero_size=("K=0", "N=0", "K=0,bits=3,sparse=all,full=3", "N=0,bits=3,K=32,sparse=all,full=3"),
        nonfinite=(
            "K=32,N=17,table=inf(1)",
            "K=32,N=17,table=nan(1),tdtype=fp16",
            "K=32,N=17,table=inf(2),vals=inf(3),sparse=few(1),full=3",
            "bits=3,K=32,N=17,table=nan(2),vals=nan(3),sparse=channels(1)",
            "bits=3,K=32,N=17,table=inf(3),words=zeros",
            # Infinity of the sum, not of a part.
            "K=32,N=17,table=over(1),vals=over(1),sparse=all,tdtype=fp32",
        ),
    ),
)
