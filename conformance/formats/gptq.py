"""Registration of gptq."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from conformance.axes import Labels, by_group
from conformance.case import Case
from conformance.faults import grouped, rounding
from conformance.formats import _grouped
from conformance.formats._gptq import DIMS, PACK_DIMS, codes_of_words
from conformance.formats._grouped import DTYPES
from conformance.patterns import Pattern
from conformance.randomness import raw_ints
from conformance.registry import Format, Packing
from kernels import gptq
from kernels.gptq import GPTQWeight
from oracles import autogptq, compressed_tensors, gptqmodel
from oracles.base import Declined, Oracle
from oracles.spec.gptq import decode_zeros, stored_zeros, unpack

# --- weights ----------------------------------------------------------------------------------


def _group_rows(case: Case, n_rows: int) -> tuple[int, int]:
    """Rows of a group, and the number of groups."""
    size = max(n_rows, 1) if case["g"] == -1 else max(case["g"], 1)
    return size, -(-n_rows // size)


def group_index(case: Case, n_rows: int) -> torch.Tensor | None:
    """g_idx int32 [K]: None, groups in order, in a permuted order, of unequal sizes, coming back
    again and again, or only half of them."""
    order, number = case["act"]
    size, n_groups = _group_rows(case, n_rows)
    sequential = np.arange(n_rows, dtype=np.int64) // size
    if order == "none":
        return None
    if order == "sequential":
        group = sequential
    elif order == "perm":
        group = sequential[np.argsort(raw_ints(f"perm/{number}", n_rows, 2**31), kind="stable")]
    elif order == "unequal":
        group = np.sort(raw_ints(f"unequal/{number}", n_rows, max(n_groups, 1)))
    elif order == "repeated":
        group = (np.arange(n_rows, dtype=np.int64) + number) % max(n_groups, 1)
    else:
        group = raw_ints(f"missing/{number}", n_rows, max(n_groups // 2, 1)) * 2 % max(n_groups, 1)
    return torch.from_numpy(group.astype(np.int32))


def _words(case: Case) -> GPTQWeight:
    bits, n_rows, n_cols = case["bits"], case["K"], case["N"]
    _, n_groups = _group_rows(case, n_rows)
    stored = _grouped.fields(case["zp"], n_groups, n_cols, bits)
    if case["zp"].name == "mid" and case["zeros"] != "v2":
        stored = stored - 1
    junk = f"{case['zp']}/{n_groups}x{n_cols}"
    qzeros = _grouped.pack_fields(stored, bits, -(-n_cols * bits // 32), junk)
    return GPTQWeight(
        qweight=_grouped.words(case["words"], (-(-n_rows * bits // 32), n_cols), bits=bits),
        qzeros=torch.from_numpy(qzeros),
        scales=_grouped.scales(case, (n_groups, n_cols), DTYPES[case["sdtype"]]),
        g_idx=group_index(case, n_rows),
        bits=bits,
        group_size=case["g"],
        zeros=case["zeros"],
        in_features=n_rows if n_rows % codes_of_words(bits) else None,
    )


def _through(
    case: Case,
    oracle: Oracle,
    floats: np.ndarray,
    scales: np.ndarray,
    zeros: np.ndarray,
    group: torch.Tensor | None,
) -> Packing:
    """Pack with the packer of the case; ``floats`` lie within the codes' reach."""
    assert oracle.pack is not None
    dtype = DTYPES[case["sdtype"]]
    options: dict[str, Any] = {"bits": case["bits"], "group_size": case["g"], "g_idx": group}
    if oracle.name == "gptqmodel":
        if dtype != torch.float16:
            raise Declined("GPTQModel packs scales as float16")
        options["convention"] = case["zeros"]
        weight = torch.from_numpy(floats).float()
    else:
        # The dtype of the weight becomes that of the scales.
        weight = _inside(torch.from_numpy(floats).to(dtype), case, scales, zeros, group)
    packed = oracle.pack(weight.clone(), torch.from_numpy(scales).float(), torch.from_numpy(zeros), **options)
    if packed.zeros != case["zeros"]:
        raise Declined(f"{oracle.name} writes {packed.zeros}, the case has {case['zeros']}")
    bound = unpack(packed).steps() * (0.5 + _grouped.slack(case["bits"]))
    return Packing(packed, weight.double().numpy(), bound, _grouped.WHY)


def _inside(
    weight: torch.Tensor, case: Case, scales: np.ndarray, zeros: np.ndarray, group: torch.Tensor | None
) -> torch.Tensor:
    """Weights that rounding to their dtype took beyond the codes' reach, one ULP back: half a step
    at 8 bit in bfloat16, and AutoGPTQ's packers spill a code of 256 into the next one."""
    size, _ = _group_rows(case, weight.shape[0])
    of_row = np.arange(weight.shape[0]) // size if group is None else group.numpy()
    code = weight.double().numpy() / scales[of_row] + zeros[of_row]
    # Reach ends at zero or beyond it on either side, so that back is always toward zero.
    outside = torch.from_numpy((code < 0) | (code > 2 ** case["bits"] - 1))
    bits = weight.view(torch.int32 if weight.dtype == torch.float32 else torch.int16)
    return (bits - outside.to(bits.dtype)).view(weight.dtype)


def _least_zero(case: Case) -> int:
    """v1 packers borrow or smear where a zero is 0 (``python -m conformance disagreements``)."""
    return 0 if case["zeros"] == "v2" else 1


def _pack(case: Case, oracle: Oracle) -> Packing:
    bits, shape = case["bits"], (case["K"], case["N"])
    size, n_groups = _group_rows(case, shape[0])
    stored = _grouped.fields(case["zp"], n_groups, shape[1], bits)
    zeros = np.maximum(decode_zeros(stored, bits, case["zeros"]), _least_zero(case))
    scales = _grouped.scales(case, (n_groups, shape[1]), DTYPES[case["sdtype"]]).double().numpy()
    index = group_index(case, shape[0])
    group = np.arange(shape[0]) // size if index is None else index.numpy()
    above = _grouped.steps_above_zero(case["words"], shape, bits)
    return _through(case, oracle, (above - zeros[group]) * scales[group], scales, zeros, index)


def _pack_real(case: Case, values: torch.Tensor, oracle: Oracle) -> Packing:
    weight = values.double().numpy().T  # [K, N]
    size, n_groups = _group_rows(case, weight.shape[0])
    index = group_index(case, weight.shape[0])
    group = np.arange(weight.shape[0]) // size if index is None else index.numpy()
    rounded = _grouped.round_to_nearest(
        weight,
        group,
        n_groups,
        case["bits"],
        symmetric=case["zp"].name == "mid",
        least_zero=_least_zero(case),
    )
    return _through(case, oracle, rounded.floats, rounded.scales, rounded.zeros, index)


# --- reports ----------------------------------------------------------------------------------


def _locate(weight: GPTQWeight, index: tuple[int, ...]) -> str:
    k, n = index
    model = unpack(weight)
    group = int(model.group[k])
    bit = k * weight.bits
    last = bit + weight.bits - 1
    at = f"word {bit // 32} of column {n}"
    if last // 32 != bit // 32:
        at = f"words {bit // 32} and {last // 32} of column {n}"
    slot = k % codes_of_words(weight.bits)
    stored, zero = int(model.stored[group, n]), int(model.zeros[group, n])
    return (
        f"row {k}, column {n}, group {group}, {at}, bits {bit % 32}..{last % 32} "
        f"(slot {slot}), code {int(model.codes[k, n])}, zero {zero} (stored {stored}, {weight.zeros}), "
        f"scale {model.scales[group, n]:.6g}"
    )


def _axes(weight: GPTQWeight) -> Labels:
    n_rows, n_cols = weight.output_shape
    k = np.arange(n_rows, dtype=np.int64)
    group = k // weight.group_rows if weight.g_idx is None else weight.g_idx.cpu().numpy()
    run = codes_of_words(weight.bits)
    word = (k // run)[:, None] * n_cols + np.arange(n_cols)
    return by_group(group, (k % run)[:, None], word)


def _facts(weight: GPTQWeight) -> dict[str, Any]:
    """``maxq_stored``: some stored zero is maxq. ``maxq_carries``: one that is not in the last
    field of its word or row, so that a word-wise addition changes the next one."""
    top = stored_zeros(weight) == 2**weight.bits - 1
    per_word = max(1, 32 // weight.bits)
    inner = np.arange(top.shape[1]) % per_word != per_word - 1
    inner[-1:] = False
    return {"maxq_stored": bool(top.any()), "maxq_carries": weight.bits != 3 and bool(top[:, inner].any())}


def _variant(**fields: Any) -> dict[str, Any]:
    return {"g": 128, "tile": "default", **fields}


FORMATS = (
    Format(
        name="gptq",
        summary="GPTQ 2, 3, 4, 8 bit, with or without activation order, three zero conventions",
        weight_type=GPTQWeight,
        kernel=gptq.dequantize,
        oracles=(
            gptqmodel.GPTQMODEL,
            gptqmodel.GPTQMODEL_FILE,
            autogptq.AUTOGPTQ,
            autogptq.AUTOGPTQ_OLD,
            compressed_tensors.COMPRESSED_TENSORS,
        ),
        unpack=unpack,
        dims=DIMS,
        words=_words,
        pack=_pack,
        pack_real=_pack_real,
        locate=_locate,
        axes=_axes,
        facts=_facts,
        tiles={
            "case": {"packed_rows": 2, "cols": 256},
            "small": {"packed_rows": 1, "cols": 16},
            "default": {},
        },
        faults=grouped.GPTQ + rounding.FAULTS,
        inner=0,
        real_variants=(
            _variant(packer="autogptq", zeros="v1-nowrap"),
            _variant(zeros="v2", act=Pattern("perm", 1)),
            _variant(packer="autogptq", zeros="v1-nowrap", act=Pattern("perm", 2), bits=8),
            _variant(packer="autogptq-old", zeros="v1", zp=Pattern("mid")),
            _variant(zeros="v1", bits=3),
            _variant(packer="autogptq", zeros="v1-nowrap", act=Pattern("perm", 3), zp=Pattern("mid"), bits=3),
            _variant(zeros="v2", g=-1, bits=2),
        ),
        # Steps of ten layers, which are of six kinds, and of one variant: each of both is met.
        real_step=71,
        pack_dims=PACK_DIMS,
        tile_cases=(
            "g=8,K=24,N=17",
            "g=16,K=33,N=15,zeros=v2",
            "g=20,K=41,N=33,zeros=v1-nowrap",
            # As many groups as columns: transposed tables fit.
            "g=8,K=32,N=4,zeros=v2",
            "bits=3,g=-1,K=64,N=64",
            "bits=3,g=8,K=32,N=32,zeros=v2",
            "bits=8,g=-1,K=9,N=31",
            # Several tiles of columns; the last lane has five of eight zeros.
            "bits=8,g=16,K=16,N=133",
            # A lane whose zeros are one word, where others have two.
            "bits=8,g=2,K=8,N=4,act=perm(1)",
            "bits=2,g=16,K=33,N=16,act=perm(1)",
            # An order of rows of one group.
            "g=-1,K=41,N=33,act=perm(1)",
            "bits=3,g=-1,K=64,N=64,act=perm(1)",
        ),
        large=(
            "g=40,K=424,N=24,zeros=v2",
            "g=64,K=448,N=32,act=perm(2)",
            # More groups than columns.
            "g=8,K=40,N=3,zeros=v2",
            # Words of several groups in a program, whose scales are no numbers of 16 bits.
            "g=8,K=64,N=24,sdtype=fp32",
        ),
        zero_size=("K=0", "N=0", "K=0,act=perm(1)", "K=0,g=-1,bits=3", "N=0,bits=8,zeros=v2"),
        nonfinite=(
            "K=33,N=17,scales=inf(1)",
            "K=32,N=32,g=16,scales=nan(1),zeros=v2",
            "K=32,N=32,scales=inf(2),words=zeros,zeros=v2,act=perm(1),g=16",
            "K=32,N=32,scales=nan(2),sdtype=bf16,zeros=v1-nowrap",
            "K=32,N=32,scales=inf(3),sdtype=fp32,bits=8,zeros=v2",
            # Zero times scale is beyond float16; their difference is 0.
            "K=32,N=32,words=ones,zp=maxq,zeros=v2,scales=huge(1)",
        ),
    ),
)
