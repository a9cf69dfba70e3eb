"""Labels of an output's elements: row, column, what shares a scale, slot in the packed word.

A format's ``axes`` gives the labels that only it knows; the rest is the same for every format.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from conformance.registry import Format

Labels = dict[str, np.ndarray]
# What rows and columns of a product are.
LINES = ("token", "channel")


def spread(shape: tuple[int, ...], **labels: np.ndarray | int) -> Labels:
    """Labels int64 of ``shape`` from arrays that broadcast to it."""
    return {name: np.broadcast_to(np.asarray(label, np.int64), shape) for name, label in labels.items()}


def by_group(group: np.ndarray, slot: np.ndarray, word: np.ndarray, *, outputs_first: bool = False) -> Labels:
    """Labels of a weight [K, N] whose scales are one a group and column.

    Args:
        group: int [K].
        slot, word: int, broadcast to [K, N].
        outputs_first: the output is [N, K].
    """
    shape = np.broadcast_shapes((group.size, 1), slot.shape, word.shape)
    scale = group[:, None] * shape[1] + np.arange(shape[1])
    found = spread(shape, group=group[:, None], slot=slot, scale=scale, word=word)
    return {name: label.T for name, label in found.items()} if outputs_first else found


def in_order(shape: tuple[int, ...], per_word: int, **units: np.ndarray | int) -> Labels:
    """Labels of codes that are packed one after another over the flattened weight.

    Args:
        per_word: codes in a 32-bit word.
        units: further labels, which come first, broadcast to ``shape``.
    """
    flat = np.arange(int(np.prod(shape)), dtype=np.int64).reshape(shape)
    return spread(shape, **units, slot=flat % per_word, word=flat // per_word)


def labels(fmt: Format, weight: Any) -> Labels:
    """All labels of a weight's output: the format's own first, then ``row`` and ``column``.

    An output of more than two dimensions has the first ones flattened to rows; one with a single
    dimension has neither. A product has ``token`` and ``channel`` in their place.
    """
    shape = tuple(weight.output_shape)
    found = dict(fmt.axes(weight)) if fmt.axes is not None else {}
    if len(shape) >= 2 and not set(LINES) <= set(found):
        rows = np.arange(int(np.prod(shape[:-1])), dtype=np.int64).reshape(*shape[:-1], 1)
        found |= spread(shape, row=rows, column=np.arange(shape[-1]))
    return found


def even_steps(model: Any) -> np.ndarray | None:
    """Steps of a model whose codes are evenly spaced; None where a table gives the values, whose
    smallest gap is a bound and no unit."""
    if hasattr(model, "codebook") or hasattr(model, "table"):
        return None
    return np.asarray(model.steps(), np.float64)
