"""Delta debugging: the smallest part of a list that still does it (Zeller and Hildebrandt, 2002)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def ddmin(items: Sequence[T], holds: Callable[[Sequence[T]], bool]) -> list[T]:
    """A part of ``items``, in order, for which ``holds``, and for none of it less one item.

    Neighbouring items are left out together first, so that whole rows and groups go in one step.
    ``holds(items)`` is taken for granted.
    """
    kept = list(items)
    if not kept or holds([]):
        return []
    parts = 2
    while len(kept) > 1:
        size = -(-len(kept) // parts)
        chunks = [kept[i : i + size] for i in range(0, len(kept), size)]
        alone = next((chunk for chunk in chunks if holds(chunk)), None)
        if alone is not None:
            kept, parts = alone, 2
            continue
        for number in range(len(chunks)):
            rest = [item for i, chunk in enumerate(chunks) if i != number for item in chunk]
            if len(chunks) > 2 and holds(rest):
                kept, parts = rest, max(2, parts - 1)
                break
        else:
            if size == 1:
                break
            parts = min(len(kept), 2 * parts)
    return kept
