"""Guards, gaps and poison: a single byte written in the wrong place is seen and placed."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance.arena import GUARD, POISON, Arena, OutputArena
from conformance.bits import is_nan, to_bits

CPU = torch.device("cpu")
LAYOUTS = ("contiguous", "offset", "strided")


def tensors() -> dict[str, torch.Tensor]:
    return {
        "codes": torch.arange(15, dtype=torch.uint8).reshape(3, 5),
        "scale": torch.linspace(0.5, 2, 6),
        "offset": torch.tensor(3.0),
        "empty": torch.zeros((0, 4), dtype=torch.int32),
    }


@pytest.mark.parametrize("layout", LAYOUTS)
def test_views_hold_the_values(layout):
    arena = Arena(tensors(), layout, CPU)
    for name, tensor in tensors().items():
        view = arena.view(name)
        assert torch.equal(view, tensor)
        assert view.dtype == tensor.dtype
        assert view.untyped_storage().data_ptr() == arena.buffer.untyped_storage().data_ptr()
    assert arena.changes() == ([], [])


def test_layouts_differ_in_address_and_strides():
    contiguous, offset, strided = (Arena(tensors(), layout, CPU).view("codes") for layout in LAYOUTS)
    assert contiguous.is_contiguous()
    assert offset.is_contiguous()
    assert strided.stride() == (10, 2)
    assert contiguous.storage_offset() % 256 == 0
    assert offset.storage_offset() % 256 == 1


@given(st.data())
@settings(max_examples=150, deadline=None, database=None)
def test_any_single_byte_is_seen(data):
    """Guards before, between and after, gaps between strided elements, and the inputs themselves."""
    layout = data.draw(st.sampled_from(LAYOUTS))
    arena = Arena(tensors(), layout, CPU)
    at = data.draw(st.integers(0, arena.buffer.numel() - 1))
    arena.buffer[at] ^= data.draw(st.integers(1, 255))
    inputs, fences = arena.changes()
    assert len(inputs) + len(fences) == 1
    owned = [section for section in arena.sections.values() if at - section.offset in _owned_bytes(section)]
    assert bool(inputs) == bool(owned)
    if owned:
        assert inputs[0].startswith(f"{owned[0].name}: 1 bytes changed")


def _owned_bytes(section) -> set[int]:
    item = section.dtype.itemsize
    return {int(start) + byte for start in section.element_offsets() for byte in range(item)}


@pytest.mark.parametrize(
    ("step", "words"),
    [(-1, "1 bytes before codes"), (15, "1 bytes past the end of codes"), (-100, "100 bytes before codes")],
)
def test_stray_writes_are_placed(step, words):
    arena = Arena(tensors(), "contiguous", CPU)
    arena.buffer[arena.sections["codes"].offset + step] = 0
    assert arena.changes() == ([], [f"1 bytes written outside, the first {words}"])


def test_gaps_of_strided_elements():
    arena = Arena(tensors(), "strided", CPU)
    view = arena.view("codes")
    view.as_strided((1,), (1,), view.storage_offset() + 1).fill_(7)
    assert arena.changes() == ([], ["codes: 1 bytes written between its elements"])


def test_an_input_names_its_element():
    arena = Arena(tensors(), "strided", CPU)
    arena.view("scale")[4] = 9.0
    inputs, fences = arena.changes()
    assert fences == []
    assert inputs[0].startswith("scale: ")
    assert inputs[0].endswith("first in element 4")


def test_a_write_of_the_same_value_is_no_change():
    arena = Arena(tensors(), "contiguous", CPU)
    arena.view("scale").mul_(1.0)
    assert arena.changes() == ([], [])


def test_guards_are_wide_and_poisoned():
    arena = Arena(tensors(), "contiguous", CPU)
    offsets = sorted((s.offset, s.offset + s.size) for s in arena.sections.values())
    assert offsets[0][0] >= GUARD
    for (_, end), (start, _) in itertools.pairwise(offsets):
        assert start - end >= GUARD
        assert bool((arena.buffer[end:start] == POISON).all())
    assert arena.buffer.numel() - offsets[-1][1] >= GUARD


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("layout", ["contiguous", "strided", "padded", "transposed"])
def test_outputs_are_poisoned_with_a_nan_of_their_own(dtype, layout):
    first, second = (OutputArena((3, 5), dtype, run, layout, CPU) for run in (0, 1))
    for output in (first, second):
        bits = to_bits(output.tensor)
        assert (bits == output.payload).all()
        assert is_nan(bits, dtype).all()
        assert output.tensor.is_contiguous() == (layout == "contiguous")
        assert output.stray_writes() == []
        output.tensor.fill_(1.0)
        assert output.stray_writes() == []
    assert first.payload != second.payload


def test_output_of_no_elements():
    output = OutputArena((0, 5), torch.float16, 0, "contiguous", CPU)
    assert output.tensor.numel() == 0
    assert output.stray_writes() == []
