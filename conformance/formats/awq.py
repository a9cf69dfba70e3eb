"""Registration of awq_cols, awq_rows and awq_quads."""

from __future__ import annotations

import numpy as np
import torch

from conformance.axes import Labels, by_group
from conformance.case import Case
from conformance.faults import grouped, rounding
from conformance.formats import _grouped
from conformance.formats._awq import COLS_DIMS, COLS_PACK, QUADS_DIMS, QUADS_PACK, ROWS_DIMS, ROWS_PACK
from conformance.formats._grouped import DTYPES
from conformance.patterns import Pattern, scale_values
from conformance.registry import Format, Packing
from kernels import awq_cols, awq_quads, awq_rows
from kernels._awq import padded_groups
from kernels.awq_cols import AWQColsWeight
from kernels.awq_quads import AWQQuadsWeight
from kernels.awq_rows import AWQRowsWeight
from oracles import autoawq, autoawq_triton, gptqmodel_awq
from oracles.base import Oracle
from oracles.spec import awq as spec

BITS = 4
SLOTS = list(spec.COLUMN_OF_SLOT)


# --- words route ------------------------------------------------------------------------------


def _group_rows(case: Case, n_rows: int) -> tuple[int, int]:
    """Rows of a group, and the number of groups."""
    rows = max(n_rows, 1)
    size = rows if case["g"] == -1 else case["g"]
    if case.format == "awq_cols":
        size = min(size, rows)
    return max(size, 1), n_rows // max(size, 1)


def _cols(case: Case) -> AWQColsWeight:
    n_rows, n_cols = case["K"], case["N"]
    _, n_groups = _group_rows(case, n_rows)
    stored = _grouped.fields(case["zp"], n_groups, n_cols, BITS)
    # A word's slots are consecutive in the stream, so the columns are put into slot order first.
    slots = (
        stored[:, : n_cols // 8 * 8]
        .reshape(n_groups, n_cols // 8, 8)[..., SLOTS]
        .reshape(n_groups, n_cols // 8 * 8)
    )
    return AWQColsWeight(
        _grouped.words(case["words"], (n_rows, n_cols // 8)),
        torch.from_numpy(_grouped.pack_fields(slots, BITS, n_cols // 8, "")),
        _grouped.scales(case, (n_groups, n_cols), DTYPES[case["sdtype"]]),
        case["g"],
    )


def _padding(n_rows: int, size: int) -> int:
    """Padded groups; none for a size that the packed type's own check refuses."""
    return padded_groups(n_rows, size) if size >= 1 else 0


def _rows_words(case: Case) -> AWQRowsWeight:
    n_rows, n_outputs = case["K"], case["N"]
    size, n_groups = _group_rows(case, n_rows)
    padded = _padding(n_rows, size)
    stored = _grouped.fields(case["zp"], n_outputs, n_groups, BITS)
    dtype = DTYPES[case["sdtype"]]
    scales = torch.full((n_outputs, padded), float("nan"), dtype=dtype)  # the padding must not be read
    scales[:, :n_groups] = _grouped.scales(case, (n_outputs, n_groups), dtype)
    return AWQRowsWeight(
        _grouped.words(case["words"], (n_outputs, n_rows // 8)),
        torch.from_numpy(_grouped.pack_fields(stored, BITS, padded // 8, str(case["zp"]))),
        scales,
        case["g"],
    )


def _quads_words(case: Case) -> AWQQuadsWeight:
    n_rows, n_outputs = case["K"], case["N"]
    size, n_groups = _group_rows(case, n_rows)
    shape = (_padding(n_rows, size), n_outputs)
    scales, qzeros = (torch.full(shape, float("nan"), dtype=torch.float16) for _ in range(2))
    scales[:n_groups] = _grouped.scales(case, (n_groups, n_outputs), torch.float16)
    if case["zp"].name == "free":
        any_sign = Pattern("mixed", case["zp"].number)
        qzeros[:n_groups] = scale_values(any_sign, n_groups * n_outputs, torch.float16).reshape(
            n_groups, n_outputs
        )
    elif case["zp"].name == "least":
        sign = (torch.arange(n_groups * n_outputs) % 2 * 2 - 1).reshape(n_groups, n_outputs)
        qzeros[:n_groups] = (sign * 2.0**-24).to(torch.float16)
    else:
        zeros = torch.from_numpy(integer_zeros(case))
        qzeros[:n_groups] = -(zeros.double() * scales[:n_groups].double()).to(torch.float16)
    qweight = _grouped.words(case["words"], (n_outputs // 4, n_rows), torch.int16)
    return AWQQuadsWeight(qweight, scales, qzeros, case["g"])


def integer_zeros(case: Case) -> np.ndarray:
    """Zeros int64 [G, N] whose products with the scales a case of awq_quads stores."""
    _, n_groups = _group_rows(case, case["K"])
    return _grouped.fields(case["zp"], n_groups, case["N"], BITS)


# --- through AutoAWQ's packers ----------------------------------------------------------------

WHY_QUADS = _grouped.WHY + "; and the rounding of zero * scale to float16, in which this layout stores it"


def _through(case: Case, oracle: Oracle, rounded: _grouped.Rounded) -> Packing:
    """Pack float weights that lie within the codes' reach; AutoAWQ takes and we give [N, K] floats."""
    assert oracle.pack is not None
    weight = torch.from_numpy(rounded.floats.T.copy()).float()
    packed = oracle.pack(
        weight, torch.from_numpy(rounded.scales).float(), torch.from_numpy(rounded.zeros), case["g"]
    )
    floats = weight.double().numpy()
    model = spec.unpack_quads(packed) if case.format == "awq_quads" else None
    if model is not None:
        lost = np.abs(model.scaled_zeros + rounded.zeros * rounded.scales)[model.group].T
        return Packing(packed, floats, model.steps() * (0.5 + _grouped.slack(BITS)) + lost, WHY_QUADS)
    unpack = spec.unpack_cols if case.format == "awq_cols" else spec.unpack_rows
    steps = unpack(packed).steps()
    return Packing(
        packed,
        floats.T if case.format == "awq_cols" else floats,
        steps * (0.5 + _grouped.slack(BITS)),
        _grouped.WHY,
    )


def _pack(case: Case, oracle: Oracle) -> Packing:
    shape = (case["K"], case["N"])
    size, n_groups = _group_rows(case, shape[0])
    zeros = _grouped.fields(case["zp"], n_groups, shape[1], BITS)
    scales = _grouped.scales(case, (n_groups, shape[1]), torch.float16).double().numpy()
    group = np.arange(shape[0]) // size
    above = _grouped.steps_above_zero(case["words"], shape, BITS)
    return _through(case, oracle, _grouped.Rounded((above - zeros[group]) * scales[group], scales, zeros))


def _pack_real(case: Case, values: torch.Tensor, oracle: Oracle) -> Packing:
    weight = values.double().numpy().T
    size, n_groups = _group_rows(case, weight.shape[0])
    group = np.arange(weight.shape[0]) // size
    symmetric = case["zp"].name == "mid"
    rounded = _grouped.round_to_nearest(weight, group, n_groups, BITS, symmetric=symmetric, least_zero=0)
    return _through(case, oracle, rounded)


# --- reports ----------------------------------------------------------------------------------


def _locate_cols(weight: AWQColsWeight, index: tuple[int, ...]) -> str:
    k, n = index
    model = spec.unpack_cols(weight)
    group = int(model.group[k])
    return (
        f"row {k}, column {n}, group {group}, word {n // 8} of the row, slot {SLOTS.index(n % 8)}, code "
        f"{int(model.codes[k, n])}, zero {int(model.zeros[group, n])}, "
        f"scale {float(model.scales[group, n]):.6g}"
    )


def _locate_rows(weight: AWQRowsWeight, index: tuple[int, ...]) -> str:
    n, k = index
    model = spec.unpack_rows(weight)
    group = int(model.group[k])
    return (
        f"output {n}, k {k}, group {group}, word {k // 8} of the output, slot {k % 8}, code "
        f"{int(model.codes[k, n])}, zero {int(model.zeros[group, n])}, "
        f"scale {float(model.scales[group, n]):.6g}"
    )


def _locate_quads(weight: AWQQuadsWeight, index: tuple[int, ...]) -> str:
    n, k = index
    model = spec.unpack_quads(weight)
    group, inside = int(model.group[k]), k % 64
    word = k // 64 * 64 + n % 4 * 16 + inside // 32 * 8 + inside % 8
    return (
        f"output {n}, k {k}, group {group}, word {word} of row {n // 4}, slot {inside % 32 // 8}, code "
        f"{int(model.codes[k, n])}, scaled zero {model.scaled_zeros[group, n]:.6g}, "
        f"scale {model.scales[group, n]:.6g}"
    )


def _axes_cols(weight: AWQColsWeight) -> Labels:
    n_rows, n_cols = weight.output_shape
    k, n = np.arange(n_rows, dtype=np.int64), np.arange(n_cols, dtype=np.int64)
    slot = np.argsort(SLOTS)[n % 8]
    return by_group(k // weight.group_rows, slot, k[:, None] * (n_cols // 8) + n // 8)


def _axes_rows(weight: AWQRowsWeight) -> Labels:
    n_outputs, n_rows = weight.output_shape
    k, n = np.arange(n_rows, dtype=np.int64), np.arange(n_outputs, dtype=np.int64)
    word = (k // 8)[:, None] + n * (n_rows // 8)
    return by_group(k // weight.group_rows, (k % 8)[:, None], word, outputs_first=True)


def _axes_quads(weight: AWQQuadsWeight) -> Labels:
    n_outputs, n_rows = weight.output_shape
    k, n = np.arange(n_rows, dtype=np.int64), np.arange(n_outputs, dtype=np.int64)
    inside = k % 64
    word = (k // 64 * 64 + inside // 32 * 8 + inside % 8)[:, None] + n % 4 * 16 + n // 4 * n_rows
    return by_group(k // weight.group_rows, (inside % 32 // 8)[:, None], word, outputs_first=True)


REAL = tuple(
    {"g": size, "zp": Pattern(zeros, None if zeros == "mid" else 0), "tile": "default"}
    for size, zeros in ((128, "random"), (64, "mid"), (32, "random"))
)
REAL_STEP = 74
_EXTREME = "words=ones,zp=maxq,scales=huge(1)"  # zero times scale is beyond float16, their difference is 0

FORMATS = (
    Format(
        name="awq_cols",
        summary="AWQ 4 bit packed along the columns (AutoAWQ's GEMM layout)",
        weight_type=AWQColsWeight,
        kernel=awq_cols.dequantize,
        oracles=(autoawq.COLS, autoawq_triton.COLS, gptqmodel_awq.COLS),
        unpack=spec.unpack_cols,
        dims=COLS_DIMS,
        words=_cols,
        pack=_pack,
        pack_real=_pack_real,
        locate=_locate_cols,
        axes=_axes_cols,
        tiles={"case": {"rows": 8, "words": 32}, "small": {"rows": 2, "words": 2}, "default": {}},
        faults=grouped.AWQ_COLS + rounding.FAULTS,
        inner=0,
        real_variants=REAL,
        real_step=REAL_STEP,
        pack_dims=COLS_PACK,
        # The last one has as many groups as columns: transposed tables fit.
        large=("g=40,K=440,N=24", "g=64,K=448,N=8,sdtype=bf16"),
        tile_cases=("K=5,N=24,g=-1", "K=9,N=16,g=3", "K=6,N=40,g=2", "K=16,N=24,g=8", "K=16,N=8,g=2"),
        zero_size=("K=0", "N=0", "K=0,g=-1"),
        nonfinite=(
            "K=32,N=24,scales=inf(1)",
            "K=33,N=16,g=11,scales=nan(1),sdtype=bf16",
            "K=32,N=16,scales=inf(2),words=zeros,sdtype=fp32",
            f"K=32,{_EXTREME}",
        ),
    ),
    Format(
        name="awq_rows",
        summary="AWQ 4 bit packed along K, padded groups (AutoAWQ's GEMV layout)",
        weight_type=AWQRowsWeight,
        kernel=awq_rows.dequantize,
        oracles=(autoawq.ROWS, gptqmodel_awq.ROWS),
        unpack=spec.unpack_rows,
        dims=ROWS_DIMS,
        words=_rows_words,
        pack=_pack,
        pack_real=_pack_real,
        locate=_locate_rows,
        axes=_axes_rows,
        tiles={"case": {"rows": 8, "words": 64}, "small": {"rows": 2, "words": 2}, "default": {}},
        faults=grouped.AWQ_ROWS + rounding.FAULTS,
        inner=1,
        real_variants=REAL,
        real_step=REAL_STEP,
        pack_dims=ROWS_PACK,
        # More than 128 groups: a group's number is no int8.
        large=("g=32,K=448,N=8", "K=2304,N=1,g=16"),
        tile_cases=("K=32,N=3,g=16", "K=48,N=5,g=16", "K=136,N=2,g=-1", "K=264,N=1,g=132", "K=64,N=8"),
        zero_size=("K=0", "N=0", "K=0,g=-1"),
        nonfinite=(
            "K=64,N=5,scales=inf(1)",
            "K=264,N=3,g=132,scales=nan(1),sdtype=bf16",
            "K=64,scales=inf(2),words=zeros,sdtype=fp32",
            _EXTREME,
        ),
    ),
    Format(
        name="awq_quads",
        summary="AWQ 4 bit, four outputs interleaved, scaled zeros (AutoAWQ's GEMVFast layout)",
        weight_type=AWQQuadsWeight,
        kernel=awq_quads.dequantize,
        oracles=(autoawq.QUADS,),
        unpack=spec.unpack_quads,
        dims=QUADS_DIMS,
        words=_quads_words,
        pack=_pack,
        pack_real=_pack_real,
        locate=_locate_quads,
        axes=_axes_quads,
        tiles={"case": {"rows": 8, "eighths": 64}, "small": {"rows": 2, "eighths": 2}, "default": {}},
        faults=grouped.QUADS + rounding.FAULTS,
        inner=1,
        real_variants=REAL,
        real_step=REAL_STEP,
        pack_dims=QUADS_PACK,
        large=(
            "g=32,K=448,N=8",
            # Sums that are ties once they are rounded to float32, with an error of either sign that comes
            # from the smaller of either summand.
            "g=16,zp=free(1),words=random(1),scales=over(1),K=128,N=32",
            # Rows that are no whole number of tiles (K is whole 64s, and so of small tiles), with no padding
            # behind the last group; and groups that split eights.
            "g=136,K=1088,N=4",
            "g=132,K=2112,N=4",
            # The same with sums that need rounding to odd.
            "g=136,zp=least,words=random(1),scales=mixed(1),K=1088,N=4",
            "g=132,zp=least,words=random(1),scales=mixed(1),K=2112,N=4",
            # Products that are ties of the output, and a zero that only float32's last bits show.
            "g=64,K=320,N=20,zp=least",
        ),
        tile_cases=(
            "K=64,N=4,g=16",
            "K=128,N=12",
            "K=192,N=8,g=-1",
            # Sums that are ties of bfloat16 once they are rounded to float32: rare otherwise.
            "g=16,zp=free(14),words=random(14),scales=small(14)",
            # Tiles of sums that need rounding to odd, by exponents and signs of scale and zero that only an
            # exact look at both finds: found by a search for what wrong looks at them miss.
            "g=16,zp=least,words=random(1),scales=mixed(1),K=128,N=8",
            "g=16,zp=free(105),words=random(105),scales=subnormal(105),K=128,N=8",
            "g=16,zp=free(30),words=random(30),scales=negative(30),K=128,N=8",
        ),
        zero_size=("K=0", "N=0", "K=0,g=-1"),
        nonfinite=(
            "scales=inf(1),N=12",
            "scales=nan(1),K=128",
            "scales=inf(2),words=zeros",
            # Zero times scale is beyond float16: stored as -inf, which no code comes back from.
            _EXTREME,
        ),
    ),
)
