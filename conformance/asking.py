"""Ask one oracle for its answer to a weight. Judges nothing: whether an answer is right comes later."""

from __future__ import annotations

import numpy as np
import torch

from conformance import device_loss
from conformance.bits import all_same, to_bits
from conformance.calling import one_line
from conformance.judge import Answer
from conformance.waiting import wait
from kernels._packed import PackedWeight, describe, map_tensors
from oracles.base import Declined, Oracle


def own_copy(weight: PackedWeight, device: torch.device) -> PackedWeight:
    """The tensors (CPU) anew on ``device``, where no kernel saw them."""
    found = map_tensors(weight, lambda _, tensor: tensor.to(device, copy=True, non_blocking=True))
    # Once for all of them: upstream code may launch on a stream of its own.
    wait(device)
    return found


def answer_of(
    oracle: Oracle, copy: PackedWeight, dtype: torch.dtype, want: np.ndarray, device: torch.device
) -> Answer:
    """What ``oracle`` says of a weight of its own. ``want`` is the exact model's bits: an output that is not
    ``dtype`` of their shape has a breach in place of bits. What it raises is a note: it loses its vote,
    visibly."""
    try:
        assert oracle.dequantize is not None
        result = oracle.dequantize(copy, dtype)
        if tuple(result.shape) == want.shape and result.dtype == dtype:
            # A copy: oracles of one library may answer with one buffer.
            bits = to_bits(result).copy()
            return Answer(oracle.name, bits, exact=all_same(bits, want, dtype))
        found = f"{describe(result.dtype)} {list(result.shape)}"
    except Declined as refusal:
        return Answer(oracle.name, note=f"declined: {refusal.reason}")
    except Exception as error:  # upstream may raise anything, and answer with what is no tensor
        lost = device_loss.why_lost(device)
        return Answer(oracle.name, note=f"raised {one_line(error)}", lost=lost)
    return Answer(oracle.name, breach=f"returned {found} instead of {describe(dtype)} {list(want.shape)}")
