"""Wrong decoders of gptq's groups: the activation order's index, and a short last group."""

from __future__ import annotations

import numpy as np

from conformance.faults import Context, Fault
from conformance.faults._grouped import DEGRADED, Decode, changed, regrouped
from oracles.spec.gptq import GPTQModel


def _index_ignored(scale: bool, zero: bool) -> Decode:
    """k // group_size in place of g_idx[k], for the scale, the zero or both."""

    def decode(ctx: Context) -> np.ndarray | None:
        model = ctx.model
        if not isinstance(model, GPTQModel) or ctx.weight.g_idx is None:
            return None
        plain = np.arange(model.codes.shape[0], dtype=np.int64) // ctx.weight.group_rows
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


def _inferred(ctx: Context) -> np.ndarray | None:
    """Groups of ceil(K / G) rows, the size that shapes suggest."""
    model, weight = ctx.model, ctx.weight
    if not isinstance(model, GPTQModel) or weight.g_idx is not None or weight.n_groups < 2:
        return None
    rows = np.arange(model.codes.shape[0], dtype=np.int64)
    return regrouped(ctx, rows // -(-rows.size // weight.n_groups))


_INDEX = (
    "https://github.com/qwopqwop200/GPTQ-for-LLaMa/issues/128",
    "https://github.com/ml-explore/mlx-lm/pull/730",
)
_FLOOR = (
    "https://github.com/vllm-project/compressed-tensors/pull/308",
    "https://github.com/vllm-project/vllm-ascend/pull/9159",
)

INDEX = (
    Fault(
        "g_idx-ignored",
        "group = k // group_size in place of g_idx[k]",
        "irrelevant, repeating text",
        "with activation order a row's group is g_idx[k]",
        _index_ignored(True, True),
        _INDEX,
        kind="groups",
        trigger="g_idx that is not k // group_size and groups that differ; hides in a sequential g_idx",
    ),
    Fault(
        "g_idx-scale-only",
        "scale by g_idx[k], zero by k // group_size",
        DEGRADED,
        "both by g_idx[k]",
        _index_ignored(False, True),
        _INDEX,
        kind="groups",
        trigger=(
            "g_idx that is not k // group_size and zeros that differ between groups; hides in symmetric "
            "weights"
        ),
    ),
    Fault(
        "g_idx-zero-only",
        "zero by g_idx[k], scale by k // group_size",
        DEGRADED,
        "both by g_idx[k]",
        _index_ignored(True, False),
        _INDEX,
        kind="groups",
        trigger="g_idx that is not k // group_size and scales that differ between groups",
    ),
    Fault(
        "group-count-floor-previous",
        "K // group_size groups: the short last one uses the one before it",
        "the last rows of a layer are off",
        "the number of groups is ceil(K / group_size)",
        _floor_count(True),
        _FLOOR,
        kind="tails",
        trigger="K % group_size != 0, K > group_size, no g_idx, and a last group that differs",
    ),
    Fault(
        "group-count-floor-zero",
        "K // group_size groups: the short last one is scaled by 0",
        "the last rows of a layer vanish",
        "the number of groups is ceil(K / group_size)",
        _floor_count(False),
        _FLOOR,
        kind="tails",
        trigger="K % group_size != 0, K > group_size, no g_idx",
    ),
    Fault(
        "group-size-inferred",
        "group = k // ceil(K / number of groups) instead of k // group_size",
        "scales drift away from their rows, from the first group's end on",
        "read the group size from the weight: shapes do not tell it where the last group is short",
        _inferred,
        (
            "https://github.com/NVIDIA/TensorRT-Model-Connect/pull/1115",
            "https://github.com/axolotl-ai-cloud/axolotl/pull/3486",
        ),
        kind="groups",
        trigger=(
            "a last group that lacks as many rows as there are groups (K = 33, group_size = 32), groups "
            "that differ, no g_idx"
        ),
    ),
)
