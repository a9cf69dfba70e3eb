"""Several arenas in one buffer: each sees what was written to it, and a call is caught in the next one's."""

from __future__ import annotations

import ctypes

import pytest
import torch

from conformance.arena import GUARD, Arena, Memory, OutputArena
from conformance.bits import to_bits
from tests.harness_runs import FORMATS, harness

CPU = torch.device("cpu")


def three() -> tuple[Memory, OutputArena, OutputArena, Arena]:
    first = OutputArena((3, 5), torch.float16, 0, "padded")
    second = OutputArena((3, 5), torch.float16, 1, "contiguous")
    inputs = Arena({"codes": torch.arange(7, dtype=torch.uint8), "scale": torch.tensor(2.0)}, "offset")
    return Memory([first, second, inputs], CPU), first, second, inputs


def test_each_holds_what_it_was_given():
    memory, first, second, inputs = three()
    assert memory.buffer.numel() == first.size + second.size + inputs.size
    for output in (first, second):
        assert (to_bits(output.tensor) == output.payload).all()
        assert output.buffer.data_ptr() == memory.buffer.data_ptr() + output.start
        # As an output of its own would: nothing else is in its storage.
        assert output.tensor.untyped_storage().data_ptr() == output.buffer.data_ptr()
        assert output.tensor.untyped_storage().nbytes() == output.size
    assert inputs.view("codes").tolist() == list(range(7))
    assert inputs.view("scale").item() == 2.0
    assert (inputs.snapshot == inputs.buffer.numpy()).all()


@pytest.mark.parametrize("at", range(3))
def test_a_byte_is_seen_by_the_arena_that_it_is_in(at):
    arenas = three()[1:]
    arenas[at].buffer[10] = 0
    for number, arena in enumerate(arenas):
        expected = [] if number != at else ["1 bytes written outside, the first"]
        assert [text[:34] for text in arena.changes()[1]] == expected
        if isinstance(arena, OutputArena):
            assert arena.stray_writes() == arena.changes()[1]


def test_a_look_at_several_tells_what_was_written_behind_the_first():
    memory, first, second, inputs = three()
    first.tensor.fill_(1.0)
    assert first.stray_writes(memory.read()[: inputs.start]) == []
    second.tensor[0, 0] = 1.0
    end = first.sections["out"].offset + first.sections["out"].size
    beyond = second.start + second.sections["out"].offset - end + 1
    assert first.stray_writes(memory.read()[: inputs.start]) == [
        f"2 bytes written outside, the first {beyond} bytes past the end of out"
    ]
    assert beyond > 2 * GUARD
    now = memory.read()[: inputs.start]
    assert first.allow(memory.snapshot, now).tolist() == to_bits(first.tensor).tolist()
    assert first.stray_writes(now, memory.snapshot[: now.size]) == first.stray_writes(now)


def test_an_output_that_the_next_call_is_given_may_not_be_written_before():
    starts: list[int] = []

    def early(weight, *, dtype, out=None):
        """Right, but the first call also writes where the second one's output will be."""
        result = (weight.codes * weight.absmax.view(-1, 1) * 7.874015718698502e-3).to(dtype)
        if not starts:
            end = out.data_ptr() + out.numel() * out.element_size()
            ctypes.memset(end + 2 * GUARD, 0, 1024)
        starts.append(out.data_ptr())
        return out.copy_(result)

    verdict = harness(early).judge(FORMATS["llm_int8"].parse("shape=3x17,out=fp32")).verdict
    assert verdict.kind == "OOB_WRITE"
    assert "bytes past the end of out" in verdict.summary
    assert len(set(starts)) == 2


@pytest.mark.parametrize(("dest", "call"), [("given", 1), ("given", 2), ("new", 2)])
@pytest.mark.parametrize("place", ["before out", "behind out", "before the inputs", "behind the inputs"])
def test_a_byte_in_any_fence_is_said_once(place, dest, call):
    calls = 0
    at = {
        "before out": lambda codes, out: out.data_ptr() - 1,
        "behind out": lambda codes, out: out.data_ptr() + out.numel() * out.element_size(),
        "before the inputs": lambda codes, out: codes.data_ptr() - 1,
        "behind the inputs": lambda codes, out: codes.data_ptr() + codes.numel(),
    }[place]

    def stray(weight, *, dtype, out=None):
        nonlocal calls
        calls += 1
        if calls == call:
            ctypes.memset(at(weight.codes, out), 0, 1)
        out = torch.empty(weight.output_shape, dtype=dtype) if out is None else out
        return out.copy_((weight.codes * weight.absmax.view(-1, 1) * 7.874015718698502e-3).to(dtype))

    verdict = harness(stray).judge(FORMATS["llm_int8"].parse(f"shape=3x17,out=fp32,dest={dest}")).verdict
    assert verdict.kind == "OOB_WRITE"
    words = {
        "before out": "1 bytes before out",
        "behind out": "1 bytes past the end of out",
        "before the inputs": "1 bytes before codes",
        "behind the inputs": "1 bytes past the end of codes",
    }
    assert verdict.summary == f"1 bytes written outside, the first {words[place]}"


@pytest.mark.parametrize("distance", [33_000, 60_000])
def test_a_write_far_before_the_inputs_falls_into_no_output(distance):
    """Nor is it overwritten there: fences of two arenas lie between them."""

    def stray(weight, *, dtype, out=None):
        ctypes.memset(weight.codes.data_ptr() - distance, 0, 4)
        out = torch.empty(weight.output_shape, dtype=dtype) if out is None else out
        return out.copy_((weight.codes * weight.absmax.view(-1, 1) * 7.874015718698502e-3).to(dtype))

    verdict = harness(stray).judge(FORMATS["llm_int8"].parse("shape=3x17,out=fp32,dest=new")).verdict
    assert verdict.kind == "OOB_WRITE"
