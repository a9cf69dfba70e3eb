"""What a decoder may look at in a run, and which outputs a kernel that computes a model may give."""

from __future__ import annotations

import functools

import numpy as np
import torch

from conformance.allowed import within
from conformance.bits import same
from conformance.faults import Context
from conformance.registry import Allowance, Format
from oracles.spec import Model


def context(
    fmt: Format, weight: object, dtype: torch.dtype, device: str, model: Model | None = None
) -> Context:
    """The context of a case; ``device`` is that of the run, ``model`` the exact one if it is there."""
    model = fmt.unpack(weight) if model is None else model
    if fmt.allowance is None:
        return Context(weight, model, dtype)
    may = functools.partial(_within_reach, fmt.allowance, device.partition(":")[0], type(model), dtype)
    return Context(weight, model, dtype, may)


def _within_reach(
    allowance: Allowance, device: str, kind: type, dtype: torch.dtype, model: Model, bits: np.ndarray
) -> np.ndarray:
    """bool mask: bits that a kernel which computes ``model``, a distorted one perhaps, may give. What may
    overflow proves nothing and is none."""
    if not isinstance(model, kind):
        return np.zeros(bits.shape, bool)
    reach = allowance.reach(model, "kernel", device)
    return within(bits, reach, dtype) & np.isfinite(reach.error)


def wrong_in(got: np.ndarray, want: np.ndarray, ctx: Context) -> np.ndarray:
    """bool mask: outputs that differ from the exact model's by more than the format allows."""
    wrong = ~same(got, want, ctx.dtype)
    return wrong if ctx.may is None or not wrong.any() else wrong & ~ctx.may(ctx.model, got)
