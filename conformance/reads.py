"""Reads outside the inputs, as Triton's interpreter does them.

A read past the end of a tensor shows in no value when what it brings in is masked at the store. On a GPU it
is an illegal access wherever the tensor is the last of its page. Only loads of a ``@triton.jit`` function
under the interpreter can be seen, and only between the fences of the arena: a launcher's own copies lie
elsewhere.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from conformance.arena import Arena


def watched(arena: Arena) -> contextlib.AbstractContextManager[list[str]]:
    """Loads within the block; the list holds a sentence for the first stray one once the block is left."""
    return _watching(arena) if arena.buffer.device.type == "cpu" else contextlib.nullcontext([])


@contextlib.contextmanager
def _watching(arena: Arena) -> Iterator[list[str]]:
    found: list[str] = []
    from triton.runtime.interpreter import InterpreterBuilder

    base, size = arena.buffer.data_ptr(), arena.buffer.numel()
    sections = sorted(arena.sections.values(), key=lambda section: section.offset)
    starts = np.array([section.offset for section in sections], np.int64)
    ends = starts + np.array([section.size for section in sections], np.int64)
    load = InterpreterBuilder.create_masked_load

    def create_masked_load(self: Any, ptrs: Any, mask: Any, *rest: Any, **more: Any) -> Any:
        if not found:
            pointers = np.asarray(ptrs.data)
            read = pointers[np.broadcast_to(np.asarray(mask.data, bool), pointers.shape)]
            at = read.astype(np.int64) - base
            at = at[(at >= 0) & (at < size)]
            section = np.searchsorted(starts, at, side="right") - 1
            stray = at[(section < 0) | (at >= ends[section])]
            if stray.size:
                found.append(f"{stray.size} elements read outside, the first {arena.where(int(stray[0]))}")
        return load(self, ptrs, mask, *rest, **more)

    InterpreterBuilder.create_masked_load = create_masked_load
    try:
        yield found
    finally:
        InterpreterBuilder.create_masked_load = load
