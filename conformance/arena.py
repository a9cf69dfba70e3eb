"""Fenced memory: tensors embedded in poison, so that a stray write or read leaves a trace.

All inputs of a launch share one buffer with guard zones before, between and after them. The
whole buffer is compared with its snapshot afterwards, which shows writes to inputs and
writes past them alike. Values cannot show an over-long store into padding:
https://github.com/bitsandbytes-foundation/bitsandbytes/issues/2042.
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import numpy as np
import torch

from oracles.spec.rounding import numpy_bytes

GUARD = 32 * 1024
ALIGN = 256
# All-ones is NaN in every float format; as an integer it is the largest code.
POISON = 0xFF
# Elements between the rows of the padded layout.
PADDING = 3


@dataclasses.dataclass(frozen=True)
class Section:
    """Where one tensor lies: byte offset of its first element and element strides."""

    name: str
    offset: int
    size: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def element_offsets(self) -> np.ndarray:
        """Byte offset of each element within the section: int64 [numel]."""
        offsets = np.zeros((1,), np.int64)
        for size, stride in zip(self.shape, self.strides, strict=True):
            offsets = (offsets[:, None] + np.arange(size, dtype=np.int64) * stride).reshape(-1)
        return offsets * self.dtype.itemsize


def _strides(shape: tuple[int, ...], layout: str) -> tuple[int, ...]:
    """Element strides of a layout.

    contiguous, offset: dense. strided: every other element. padded: rows with a gap behind each,
    as a slice ``big[:, :n]`` has. transposed: the first dimension fastest, as ``t.t()`` has. The
    last two are dense for tensors of fewer than two dimensions.
    """
    if layout == "transposed":
        return tuple(math.prod(shape[:i]) for i in range(len(shape)))
    wide = (*shape[:-1], shape[-1] + PADDING) if layout == "padded" and len(shape) > 1 else shape
    step = 2 if layout == "strided" else 1
    return tuple(step * math.prod(wide[i + 1 :]) for i in range(len(shape)))


class Arena:
    """One guarded buffer on ``device`` and its snapshot on the host."""

    def __init__(self, tensors: dict[str, torch.Tensor], layout: str, device: torch.device) -> None:
        """Embed ``tensors`` (CPU) in a layout of :func:`_strides`; ``offset`` is dense, but not
        aligned to more than an element."""
        self.sections: dict[str, Section] = {}
        cursor = GUARD
        for name, tensor in tensors.items():
            cursor = -(-cursor // ALIGN) * ALIGN
            item = tensor.dtype.itemsize
            start = cursor + (item if layout == "offset" else 0)
            strides = _strides(tuple(tensor.shape), layout)
            span = sum((n - 1) * stride for n, stride in zip(tensor.shape, strides, strict=True))
            size = (span + 1 if tensor.numel() else 1) * item
            self.sections[name] = Section(name, start, size, tensor.dtype, tuple(tensor.shape), strides)
            cursor = start + size + GUARD
        self.snapshot = np.full(cursor, POISON, np.uint8)
        for name, tensor in tensors.items():
            section = self.sections[name]
            data = numpy_bytes(tensor)
            if layout not in ("contiguous", "offset"):
                at = section.element_offsets()[:, None] + np.arange(section.dtype.itemsize)
                self.snapshot[section.offset + at.reshape(-1)] = data
            else:
                self.snapshot[section.offset : section.offset + data.size] = data
        self.buffer = torch.from_numpy(self.snapshot.copy()).to(device)

    def view(self, name: str) -> torch.Tensor:
        """The tensor as embedded: a view into the buffer."""
        section = self.sections[name]
        item = section.dtype.itemsize
        end = section.offset + -(-section.size // item) * item
        flat = self.buffer[section.offset : end].view(section.dtype)
        return flat.as_strided(section.shape, section.strides)

    def changes(self) -> tuple[list[str], list[str]]:
        """What was written since: ``(inputs, fences)``, a sentence for each place."""
        now = self.buffer.cpu().numpy()
        changed = np.flatnonzero(now != self.snapshot)
        if not changed.size:
            return [], []
        inputs, fences = [], []
        remaining = np.ones(changed.size, bool)
        for section in self.sections.values():
            inside = (changed >= section.offset) & (changed < section.offset + section.size)
            if not inside.any():
                continue
            remaining &= ~inside
            elements = section.element_offsets()
            at = changed[inside] - section.offset
            item = section.dtype.itemsize
            owned = np.isin(at // item * item, elements)
            if owned.any():
                first = int(np.searchsorted(elements, at[owned][0] // item * item))
                inputs.append(f"{section.name}: {int(owned.sum())} bytes changed, first in element {first}")
            if (~owned).any():
                fences.append(f"{section.name}: {int((~owned).sum())} bytes written between its elements")
        stray = changed[remaining]
        if stray.size:
            fences.append(f"{stray.size} bytes written outside, the first {self.where(int(stray[0]))}")
        return inputs, fences

    def where(self, first: int) -> str:
        """Where a byte offset in a fence lies, by the nearest tensor."""
        nearest = min(
            self.sections.values(),
            key=lambda s: min(abs(first - s.offset), abs(first - s.offset - s.size)),
        )
        distance = first - (nearest.offset + nearest.size)
        if distance >= 0:
            return f"{distance + 1} bytes past the end of {nearest.name}"
        return f"{nearest.offset - first} bytes before {nearest.name}"


class OutputArena:
    """A poisoned output between guards. Elements still poisoned afterwards were not written."""

    # Two quiet NaNs with payloads that no arithmetic produces, one for each run.
    PAYLOADS: ClassVar[dict[torch.dtype, tuple[int, int]]] = {
        torch.float16: (0x7E5A, 0x7EA5),
        torch.bfloat16: (0x7FDA, 0x7FE5),
        torch.float32: (0x7FDA5A5A, 0x7FE5A5A5),
    }

    def __init__(
        self, shape: tuple[int, ...], dtype: torch.dtype, run: int, layout: str, device: torch.device
    ) -> None:
        self.payload = self.PAYLOADS[dtype][run]
        word = np.uint16 if dtype.itemsize == 2 else np.uint32
        filler = torch.from_numpy(
            np.full(math.prod(shape), self.payload, word).view(np.int16 if word is np.uint16 else np.int32)
        ).view(dtype)
        self._arena = Arena({"out": filler.reshape(shape)}, layout, device)
        self.tensor = self._arena.view("out")

    def written(self) -> torch.Tensor:
        """What is in the output's memory now, whatever became of the tensor that was handed out."""
        return self._arena.view("out")

    def stray_writes(self) -> list[str]:
        return self._arena.changes()[1]
