"""Wrong decoders of groups: which row uses which scale and zero."""

from __future__ import annotations

import dataclasses

import numpy as np

from conformance.faults import Context, Fault
from conformance.faults._grouped import DEGRADED, GARBAGE, Decode, changed, model_of, oriented, regrouped
from oracles.spec.awq import ScaledZeroModel
from oracles.spec.gptq import GPTQModel
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


def _shifted(by: int) -> Decode:
    return lambda ctx: regrouped(ctx, model_of(ctx).group + by)


def _first(ctx: Context) -> np.ndarray | None:
    return regrouped(ctx, model_of(ctx).group * 0)


def _index_ignored(scale: bool, zero: bool) -> Decode:
    """k // group_size in place of g_idx[k], for the scale, the zero or both."""

    def decode(ctx: Context) -> np.ndarray | None:
        model = ctx.model
        if not isinstance(model, GPTQModel) or ctx.weight.g_idx is None:
            return None
        plain = _rows(ctx) // ctx.weight.group_rows
        if np.array_equal(plain, model.group):
            return None
        return changed(
            ctx, group=plain if scale else model.group, zero_group=plain if zero else model.zero_group
        )

    return decode


def _floor_count(previous: bool) -> Decode:
    """K // group_size groups: the short last one uses the group before it, or a scale of 0."""

    def decode(ctx: Context) -> np.ndarray | None:
        model, weight = ctx.model, ctx.weight
        if not isinstance(model, GPTQModel) or weight.g_idx is not None:
            return None
        whole = weight.n_rows // weight.group_rows
        if whole == weight.n_groups or whole == 0:
            return None
        if previous:
            return regrouped(ctx, np.minimum(model.group, whole - 1))
        scales = model.scales.copy()
        scales[whole:] = 0
        return changed(ctx, scales=scales)

    return decode


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
_INDEX = (
    "https://github.com/qwopqwop200/GPTQ-for-LLaMa/issues/128",
    "https://github.com/ml-explore/mlx-lm/pull/730",
)
_FLOOR = ("https://github.com/vllm-project/compressed-tensors/pull/308",)
_MINUS = ("https://github.com/vllm-project/vllm/pull/37329",)
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
        )
        for size in (128, 64, 32)
    ),
    Fault(
        "group-plus-one",
        "group + 1 (the last one keeps its own)",
        DEGRADED,
        "group = k // group_size",
        _shifted(1),
    ),
    Fault(
        "group-minus-one",
        "group - 1 (the first one keeps its own)",
        DEGRADED,
        "group = k // group_size",
        _shifted(-1),
    ),
    Fault(
        "first-group-everywhere", "every row uses group 0", GARBAGE, "advance the group with the row", _first
    ),
    Fault(
        "group-size-minus-one-per-row",
        "group = k // -1: every row but the first reads in front of the scales",
        "NaN, or whatever is there",
        "-1 means one group over all of K",
        _minus_one(1),
        _MINUS,
    ),
    Fault(
        "group-size-minus-one-per-tile",
        "group = (first row of the tile of 32) // -1",
        "right in the first tile only",
        "-1 means one group over all of K",
        _minus_one(32),
        _MINUS,
    ),
    Fault(
        "scales-transposed",
        "scales[n, g] on a weight with as many groups as columns",
        GARBAGE,
        "check which axis is which where both sizes are equal",
        _transposed(True, False),
        _SQUARE,
    ),
    Fault(
        "zeros-transposed",
        "zeros[n, g] on a weight with as many groups as columns",
        GARBAGE,
        "check which axis is which where both sizes are equal",
        _transposed(False, True),
        ("https://github.com/vllm-project/vllm/pull/47770",),
    ),
    Fault(
        "scales-and-zeros-transposed",
        "both tables transposed on a weight with as many groups as columns",
        GARBAGE,
        "check which axis is which where both sizes are equal",
        _transposed(True, True),
        _SQUARE,
    ),
    Fault(
        "scale-of-next-column",
        "scales[g, n + 1]",
        GARBAGE,
        "the column of the scale is that of the code",
        _next_column("scales"),
    ),
    Fault(
        "zero-of-next-column",
        "zeros[g, n + 1]",
        GARBAGE,
        "the column of the zero is that of the code",
        _next_column("zeros"),
    ),
)

INDEX = (
    Fault(
        "g_idx-ignored",
        "group = k // group_size in place of g_idx[k]",
        "irrelevant, repeating text",
        "with activation order a row's group is g_idx[k]",
        _index_ignored(True, True),
        _INDEX,
    ),
    Fault(
        "g_idx-scale-only",
        "scale by g_idx[k], zero by k // group_size",
        DEGRADED,
        "both by g_idx[k]",
        _index_ignored(False, True),
        _INDEX,
    ),
    Fault(
        "g_idx-zero-only",
        "zero by g_idx[k], scale by k // group_size",
        DEGRADED,
        "both by g_idx[k]",
        _index_ignored(True, False),
        _INDEX,
    ),
    Fault(
        "group-count-floor-previous",
        "K // group_size groups: the short last one uses the one before it",
        "the last rows of a layer are off",
        "the number of groups is ceil(K / group_size)",
        _floor_count(True),
        _FLOOR,
    ),
    Fault(
        "group-count-floor-zero",
        "K // group_size groups: the short last one is scaled by 0",
        "the last rows of a layer vanish",
        "the number of groups is ceil(K / group_size)",
        _floor_count(False),
        _FLOOR,
    ),
)
