"""Fenced memory: tensors embedded in poison, so that a stray write or read leaves a trace.

All inputs of a launch share one arena with guard zones before, between and after them. The
whole arena is compared with its snapshot afterwards, which shows writes to inputs and
writes past them alike. Values cannot show an over-long store into padding:
https://github.com/bitsandbytes-foundation/bitsandbytes/issues/2042.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch.utils.dlpack import from_dlpack, to_dlpack

GUARD = 32 * 1024
ALIGN = 256
# All-ones is NaN in every float format; as an integer it is the largest code.
POISON = 0xFF
# Elements between the rows of the padded layout.
PADDING = 3
# Bytes up to which the host's side of a copy is page-locked: several times faster, but kept by torch.
PINNED = 4 * 1024 * 1024

# NumPy has no bfloat16 and no float8: by size.
_IN_NUMPY = frozenset(
    (torch.float32, torch.float16, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
)
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclasses.dataclass(frozen=True)
class Section:
    """Where one tensor lies: byte offset of its first element and element strides."""

    name: str
    offset: int
    size: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @functools.cached_property
    def _kind(self) -> tuple[np.dtype[Any], tuple[int, ...]]:
        """Of the elements as unsigned integers: NumPy's dtype, and strides in bytes."""
        item = self.dtype.itemsize
        return np.dtype(f"u{item}"), tuple(stride * item for stride in self.strides)

    def element_offsets(self) -> np.ndarray:
        """Byte offset of each element within the section: int64 [numel]."""
        offsets = np.zeros((1,), np.int64)
        for size, stride in zip(self.shape, self.strides, strict=True):
            offsets = (offsets[:, None] + np.arange(size, dtype=np.int64) * stride).reshape(-1)
        return offsets * self.dtype.itemsize

    def bits(self, memory: np.ndarray) -> np.ndarray:
        """The elements within an arena's bytes, as unsigned integers: a view."""
        kind, strides = self._kind
        return np.ndarray(self.shape, kind, memory, self.offset, strides)


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


@functools.lru_cache(maxsize=1024)
def _plan(
    tensors: tuple[tuple[str, torch.dtype, tuple[int, ...]], ...], layout: str
) -> tuple[Mapping[str, Section], int]:
    """Sections in order and the size of the arena, a multiple of :data:`ALIGN`."""
    sections: dict[str, Section] = {}
    cursor = GUARD
    for name, dtype, shape in tensors:
        cursor = -(-cursor // ALIGN) * ALIGN
        item = dtype.itemsize
        start = cursor + (item if layout == "offset" else 0)
        strides = _strides(shape, layout)
        span = sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
        size = (span + 1 if math.prod(shape) else 1) * item
        sections[name] = Section(name, start, size, dtype, shape, strides)
        cursor = start + size + GUARD
    return sections, -(-cursor // ALIGN) * ALIGN


class Memory:
    """Arenas side by side in one buffer on ``device``, so that each look at several is one copy.

    Attributes:
        buffer: uint8, on the device.
        snapshot: what the buffer held at first, on the host; who owns the memory may keep it up to date.
    """

    def __init__(self, arenas: Sequence[Arena], device: torch.device) -> None:
        """Fill the buffer as the arenas say, and tell them where they lie."""
        size = sum(arena.size for arena in arenas)
        host = _on_host(size, device)
        self.snapshot = host.numpy()
        self.snapshot.fill(POISON)
        start = 0
        for arena in arenas:
            arena.memory, arena.start = self, start
            arena.fill()
            start += arena.size
        # NumPy's copy takes one thread, where torch's takes all for what is 10 us of work. A copy to a GPU is
        # waited for: of another, torch asks the device once more when it frees the page-locked memory, and
        # ends the process where a kernel broke the device in between.
        on_cpu = device.type == "cpu"
        self.buffer = torch.from_numpy(self.snapshot.copy()) if on_cpu else host.to(device)
        for arena in arenas:
            part = self.buffer[arena.start : arena.start + arena.size]
            # A storage of its own: torch.compile, for one, asks what shares a storage with an output.
            arena.buffer = from_dlpack(to_dlpack(part))

    def read(self) -> np.ndarray:
        """What it holds now: uint8, the memory itself on the CPU; on a GPU a copy, until the next look."""
        if self.buffer.device.type == "cpu":
            return self.buffer.numpy()
        return self._seen.copy_(self.buffer).numpy()

    @functools.cached_property
    def _seen(self) -> torch.Tensor:
        return _on_host(self.buffer.numel(), self.buffer.device)


def alike(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether whole arenas hold the same bytes."""
    return bool((a.view(np.uint64) == b.view(np.uint64)).all())


def _on_host(size: int, device: torch.device) -> torch.Tensor:
    """uint8 [size] for copies to and from ``device``, not filled."""
    pinned = device.type == "cuda" and size <= PINNED
    return torch.empty(size, dtype=torch.uint8, pin_memory=pinned)


class Arena:
    """Tensors between guards, in a buffer of their own on ``device`` or in a :class:`Memory`.

    Attributes:
        sections: by name, in order; offsets are the arena's.
        size: bytes, guards included.
        memory, start: where it lies, once it is in one.
        buffer: its part of the memory on the device, uint8 [size].
    """

    memory: Memory
    start: int
    buffer: torch.Tensor

    def __init__(
        self, tensors: Mapping[str, torch.Tensor], layout: str, device: torch.device | None = None
    ) -> None:
        """Embed ``tensors`` (CPU) in a layout of :func:`_strides`; ``offset`` is dense, but not
        aligned to more than an element. Without a device it waits for a memory."""
        self._tensors = tensors
        kinds = tuple((name, tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items())
        self._lay_out(kinds, layout, device)

    def _lay_out(
        self,
        kinds: tuple[tuple[str, torch.dtype, tuple[int, ...]], ...],
        layout: str,
        device: torch.device | None,
    ) -> None:
        self.sections, self.size = _plan(kinds, layout)
        self._typed: dict[torch.dtype, torch.Tensor] = {}
        if device is not None:
            Memory([self], device)

    @property
    def snapshot(self) -> np.ndarray:
        """What it held at first: uint8 [size], on the host."""
        return self.memory.snapshot[self.start : self.start + self.size]

    def fill(self) -> None:
        """Put the elements into the snapshot."""
        snapshot = self.snapshot
        for name, tensor in self._tensors.items():
            section = self.sections[name]
            item = section.dtype.itemsize
            held = tensor.detach()
            elements = (held if section.dtype in _IN_NUMPY else held.view(_INTEGERS[item])).numpy()
            section.bits(snapshot)[...] = elements.view(f"u{item}")

    def view(self, name: str) -> torch.Tensor:
        """The tensor as embedded: a view into the buffer."""
        section = self.sections[name]
        first = section.offset // section.dtype.itemsize
        if section.dtype not in self._typed:
            self._typed[section.dtype] = self.buffer.view(section.dtype)
        return self._typed[section.dtype].as_strided(section.shape, section.strides, first)

    def _now(self) -> np.ndarray:
        return self.memory.read()[self.start : self.start + self.size]

    def changes(
        self, now: np.ndarray | None = None, before: np.ndarray | None = None
    ) -> tuple[list[str], list[str]]:
        """What was written since: ``(inputs, fences)``, a sentence for each place. ``now`` is what
        it holds, and perhaps arenas behind it, as :meth:`Memory.read` gives it; ``before`` what it
        should, the snapshot unless given."""
        now = self._now() if now is None else now
        if before is None:
            before = self.memory.snapshot[self.start : self.start + now.size]
        if alike(now, before):
            return [], []
        changed = np.flatnonzero(now != before)
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
                first = int(np.flatnonzero(elements == at[owned][0] // item * item)[0])
                inputs.append(f"{section.name}: {int(owned.sum())} bytes changed, first in element {first}")
            if (~owned).any():
                fences.append(f"{section.name}: {int((~owned).sum())} bytes written between its elements")
        stray = changed[remaining]
        if stray.size:
            fences.append(f"{stray.size} bytes written outside, the first {self.where(int(stray[0]))}")
        return inputs, fences

    def place(self, first: int) -> str:
        """Where a byte offset lies: in a tensor, or by the nearest one."""
        for section in self.sections.values():
            if section.offset <= first < section.offset + section.size:
                return f"in byte {first - section.offset} of {section.name}"
        return self.where(first)

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


class OutputArena(Arena):
    """A poisoned output between guards. Elements still poisoned afterwards were not written."""

    # Two quiet NaNs with payloads that no arithmetic produces, one for each run.
    PAYLOADS: ClassVar[dict[torch.dtype, tuple[int, int]]] = {
        torch.float16: (0x7E5A, 0x7EA5),
        torch.bfloat16: (0x7FDA, 0x7FE5),
        torch.float32: (0x7FDA5A5A, 0x7FE5A5A5),
    }

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        run: int,
        layout: str,
        device: torch.device | None = None,
    ) -> None:
        """Without a device it waits for a memory, as other arenas do."""
        self.payload = self.PAYLOADS[dtype][run]
        self._lay_out((("out", dtype, tuple(shape)),), layout, device)

    def fill(self) -> None:
        self.sections["out"].bits(self.snapshot)[...] = self.payload

    @functools.cached_property
    def tensor(self) -> torch.Tensor:
        """The output to hand out."""
        return self.view("out")

    def allow(self, expected: np.ndarray, now: np.ndarray) -> np.ndarray:
        """Take the output's elements over from a look into what is expected; both begin with this arena.
        Returns a copy of their bits, whatever became of the tensor that was handed out."""
        section = self.sections["out"]
        written = section.bits(now).copy()
        section.bits(expected)[...] = written
        return written

    def stray_writes(self, now: np.ndarray | None = None, expected: np.ndarray | None = None) -> list[str]:
        """What was written beside the output since; ``now`` as for :meth:`changes`, whose arenas behind
        this one nothing may write; ``expected`` what that should be, with the output as it is now."""
        now = self._now() if now is None else now
        if expected is None:
            expected = self.memory.snapshot[self.start : self.start + now.size].copy()
            self.allow(expected, now)
        return self.changes(now, expected)[1]
