"""Wrong decoders of groups: which row uses which scale and zero."""

from __future__ import annotations

import dataclasses

import numpy as np

from conformance.faults import Context, Fault
from conformance.faults._grouped import DEGRADED, GARBAGE, Decode, changed, model_of, oriented, regrouped
from oracles.spec.awq import ScaledZeroModel
from oracles.spec.rounding import round_to


def _rows(ctx: Context) -> np.ndarray:
    return np.arange(model_of(ctx).codes.shape[0], dtype=np.int64)


def _tile(size: int) -> Decode:
    """Every row of a tile uses the group of the tile's first row."""
    return lambda ctx: regrouped(ctx, model_of(ctx).group[_rows(ctx) // size * size])


def _fixed(size: int) -> Decode:
    """Groups of ``size`` rows, whatever the group size."""

    def decode(ctx: Context) -> np.ndarray | None:
        if getattr(ctx.weight, "g_idx", None) is not None:
            return None
        return regrouped(ctx, _rows(ctx) // size)

    return decode


def _first_group_codes(ctx: Context) -> np.ndarray | None:
    """The code's row is taken inside of its group, so that every group has the codes of the first."""
    size = ctx.weight.group_rows
    rows = _rows(ctx)
    return None if size >= rows.size else changed(ctx, codes=model_of(ctx).codes[rows % size])


def _shifted(by: int) -> Decode:
    return lambda ctx: regrouped(ctx, model_of(ctx).group + by)


def _first(ctx: Context) -> np.ndarray | None:
    return regrouped(ctx, model_of(ctx).group * 0)


def _minus_one(tile: int) -> Decode:
    """k // -1: rows behind the first tile read in front of the scales, which is poison here."""

    def decode(ctx: Context) -> np.ndarray | None:
        weight = ctx.weight
        rows = _rows(ctx)
        if weight.group_size != -1 or rows.size <= tile or getattr(weight, "g_idx", None) is not None:
            return None
        values = ctx.model.values().copy()
        outside = np.broadcast_to((rows >= tile)[:, None], model_of(ctx).codes.shape)
        values[oriented(ctx, outside)] = np.nan
        return round_to(values, ctx.dtype)

    return decode


def _transposed(scales: bool, zeros: bool) -> Decode:
    """As many groups as columns: the table is read along the other axis."""

    def decode(ctx: Context) -> np.ndarray | None:
        model = model_of(ctx)
        if model.scales.shape[0] != model.scales.shape[1] or model.scales.shape[0] < 2:
            return None
        name = "scaled_zeros" if isinstance(model, ScaledZeroModel) else "zeros"
        fields = {"scales": model.scales.T} if scales else {}
        if zeros:
            fields[name] = getattr(model, name).T
        return ctx.bits(dataclasses.replace(model, **fields))

    return decode


def _next_column(name: str) -> Decode:
    """The scale or the zero of the next column (the last one keeps its own)."""

    def decode(ctx: Context) -> np.ndarray | None:
        model = model_of(ctx)
        field = "scaled_zeros" if name == "zeros" and isinstance(model, ScaledZeroModel) else name
        table = getattr(model, field)
        if table.shape[1] < 2:
            return None
        return changed(ctx, **{field: np.concatenate([table[:, 1:], table[:, -1:]], axis=1)})

    return decode


_PER_ROW = "group = k // group_size for each row, whatever the tile"
_TILE = (
    "https://github.com/vllm-project/vllm/pull/39705",
    "https://github.com/vllm-project/vllm/issues/52576",
)
_FIXED = ("https://github.com/mit-han-lab/llm-awq/issues/21",)
_MINUS = (
    "https://github.com/vllm-project/vllm/pull/37329",
    "https://github.com/vllm-project/vllm/pull/37331",
)
_SQUARE = (
    "https://github.com/unslothai/unsloth-zoo/pull/272",
    "https://github.com/vllm-project/vllm/pull/34824",
)

GROUPS = (
    *(
        Fault(
            f"group-per-tile-{size}",
            f"all rows of a tile of {size} use the group of its first row",
            DEGRADED,
            _PER_ROW,
            _tile(size),
            _TILE,
            kind="groups",
            trigger=(
                f"K > group_size, a group edge inside of {size} rows, scales or zeros that differ between "
                f"groups; hides where the group size is a multiple of {size}"
            ),
        )
        for size in (32, 64, 128)
    ),
    *(
        Fault(
            f"group-size-fixed-{size}",
            f"group = k // {size} whatever the group size",
            DEGRADED,
            "read the group size from the weight",
            _fixed(size),
            _FIXED,
            kind="groups",
            trigger=f"another group size than {size}, K > group_size, groups that differ; no g_idx",
        )
        for size in (128, 64, 32)
    ),
    Fault(
        "group-plus-one",
        "group + 1 (the last one keeps its own)",
        DEGRADED,
        "group = k // group_size",
        _shifted(1),
        kind="groups",
        trigger="two groups with different scales or zeros; the last group keeps its own",
    ),
    Fault(
        "group-minus-one",
        "group - 1 (the first one keeps its own)",
        DEGRADED,
        "group = k // group_size",
        _shifted(-1),
        kind="groups",
        trigger="two groups with different scales or zeros; the first group keeps its own",
    ),
    Fault(
        "first-group-everywhere",
        "every row uses group 0",
        GARBAGE,
        "advance the group with the row",
        _first,
        kind="groups",
        trigger="two groups with different scales or zeros; hides at group_size = -1",
    ),
    Fault(
        "codes-of-first-group",
        "code of row k % group_size",
        GARBAGE,
        "the row of a code is that of the weight, not that inside of its group",
        _first_group_codes,
        ("https://github.com/1bit-MONSTER/1bit-MONSTER/issues/153",),
        kind="groups",
        trigger="K > group_size and codes that differ between groups; hides at group_size = -1",
    ),
    Fault(
        "group-size-minus-one-per-row",
        "group = k // -1: every row but the first reads in front of the scales",
        "NaN, or whatever is there",
        "-1 means one group over all of K",
        _minus_one(1),
        _MINUS,
        kind="groups",
        trigger="group_size = -1 and K > 1, no g_idx; hides at every other group size",
    ),
    Fault(
        "group-size-minus-one-per-tile",
        "group = (first row of the tile of 32) // -1",
        "right in the first tile only",
        "-1 means one group over all of K",
        _minus_one(32),
        _MINUS,
        kind="groups",
        trigger="group_size = -1 and K > 32, no g_idx; hides in the first tile",
    ),
    Fault(
        "scales-transposed",
        "scales[n, g] on a weight with as many groups as columns",
        GARBAGE,
        "check which axis is which where both sizes are equal",
        _transposed(True, False),
        _SQUARE,
        kind="groups",
        trigger="G = N of at least 2 and scales that differ; any other shape is an error instead",
    ),
    Fault(
        "zeros-transposed",
        "zeros[n, g] on a weight with as many groups as columns",
        GARBAGE,
        "check which axis is which where both sizes are equal",
        _transposed(False, True),
        ("https://github.com/vllm-project/vllm/pull/47770",),
        kind="groups",
        trigger="G = N of at least 2 and zeros that differ; any other shape is an error instead",
    ),
    Fault(
        "scales-and-zeros-transposed",
        "both tables transposed on a weight with as many groups as columns",
        GARBAGE,
        "check which axis is which where both sizes are equal",
        _transposed(True, True),
        _SQUARE,
        kind="groups",
        trigger="G = N of at least 2, scales or zeros that differ; any other shape is an error instead",
    ),
    Fault(
        "scale-of-next-column",
        "scales[g, n + 1]",
        GARBAGE,
        "the column of the scale is that of the code",
        _next_column("scales"),
        kind="groups",
        trigger="two columns with different scales; hides in scales of one value",
    ),
    Fault(
        "zero-of-next-column",
        "zeros[g, n + 1]",
        GARBAGE,
        "the column of the zero is that of the code",
        _next_column("zeros"),
        kind="zeros",
        trigger="two columns with different zeros; hides in symmetric weights, whose zeros are all mid",
    ),
)
