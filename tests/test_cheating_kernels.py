"""Kernels that are wrong in how they use memory or answer, and would pass a comparison of values."""

import ctypes
import dataclasses
import inspect

import pytest
import torch

from conformance.arena import GUARD
from conformance.bits import from_bits
from conformance.execute import execute
from conformance.harness import Harness
from conformance.judge import exact
from conformance.known_faults import BUILTIN, load
from conformance.registry import Kernel, formats
from conformance.running import Tally
from conformance.runtime import Runtime
from kernels import Unsupported
from kernels.llm_int8 import LLMInt8Weight

FMT = formats()["llm_int8"]


def right(weight, dtype):
    return (weight.codes * weight.absmax.view(-1, 1) * 7.874015718698502e-3).to(dtype)


_WORKSPACE: dict = {}


def shared_workspace(weight, *, dtype):
    """One buffer for every call: the next call destroys the result of this one."""
    key = (tuple(weight.codes.shape), dtype)
    buffer = _WORKSPACE.setdefault(key, torch.empty(weight.codes.shape, dtype=dtype))
    first = not getattr(buffer, "used", False)
    buffer.used = True
    return buffer.copy_(right(weight, dtype)) if not first else buffer.fill_(7.0)


_ANSWERS: dict = {}


def cached_answer(weight, *, dtype):
    """Right, but the tensor of the call before: whoever writes to a result spoils the next one."""
    result = right(weight, dtype)
    kept = _ANSWERS.setdefault((tuple(result.shape), dtype), torch.empty_like(result))
    return kept.copy_(result)


def slices_of_one(weight, *, dtype):
    """Each call's result in a place of its own, but all in one storage: they keep each other alive."""
    result = right(weight, dtype)
    kept = _ANSWERS.setdefault(
        (tuple(result.shape), dtype, "all"), [torch.empty(8, *result.shape, dtype=dtype), 0]
    )
    kept[1] = (kept[1] + 1) % 8
    return kept[0][kept[1]].copy_(result)


def rebinds_out(weight, *, dtype, out=None):
    """Points the given tensor at memory of its own: the caller's is never written."""
    result = right(weight, dtype)
    if out is None:
        return result
    out.data = result
    return out


def replaces_scales(weight, *, dtype, out=None):
    result = right(weight, dtype)
    weight.absmax.data = weight.absmax.clone()
    return result if out is None else out.copy_(result)


def one_stride(weight, *, dtype, out=None):
    """Takes the last stride of out for all of them: right but for padded and transposed ones."""
    result = right(weight, dtype)
    if out is None:
        return result
    flat = torch.as_strided(out, (out.numel(),), (out.stride(-1),))
    flat.copy_(result.reshape(-1))
    return out


def skips(weight, *, dtype, out=None):
    pytest.skip("not today")


def spoils_then_refuses(weight, *, dtype, out=None):
    weight.codes.zero_()
    raise Unsupported("not today")


def refuses_later(weight, *, dtype, out=None, calls=[]):  # noqa: B006 - the state is the fault
    calls.append(1)
    if len(calls) % 2 == 0:
        raise Unsupported("not today")
    result = right(weight, dtype)
    return result if out is None else out.copy_(result)


def sparse(weight, *, dtype, out=None):
    return right(weight, dtype).to_sparse()


def spoils_the_last(part):
    """Every other call writes into what ``part`` makes of the output that the call before it was given."""
    last = []

    def kernel(weight, *, dtype, out=None):
        result = right(weight, dtype)
        if out is None:
            return result
        if last:
            last.pop().fill_(3.0)
        else:
            last.append(part(out))
        return out.copy_(result)

    return kernel


def fence_of(out):
    return torch.as_strided(out, (1,), (1,), out.storage_offset() + out.numel())


def spoils_inputs_for_a_while(weight, *, dtype, out=None, kept=[]):  # noqa: B006 - the state is the fault
    """The second call gives back what the first one took."""
    result = right(kept[0] if kept else weight, dtype)
    if kept:
        weight.absmax.copy_(kept.pop().absmax)
    else:
        kept.append(dataclasses.replace(weight, absmax=weight.absmax.clone()))
        weight.absmax.zero_()
    return result if out is None else out.copy_(result)


def spoils_its_result_for_a_while():
    """The second call changes what the first one returned, the third one changes it back."""
    kept = []

    def kernel(weight, *, dtype, out=None):
        result = right(weight, dtype)
        if kept:
            kept[0].view(torch.int16)[0, 0] ^= 1
        kept.append(result)
        return result if out is None else out.copy_(result)

    return kernel


def reshapes_its_result(change):
    """The second call makes ``change`` of the tensor that the first one returned."""
    kept = []

    def kernel(weight, *, dtype, out=None):
        result = right(weight, dtype)
        if kept:
            change(kept.pop())
        elif out is None:
            kept.append(result)
        return result if out is None else out.copy_(result)

    return kernel


def widened(result):
    result.data = result.double()


def deletes_scales(weight, *, dtype, out=None):
    result = right(weight, dtype)
    object.__delattr__(weight, "absmax")
    return result if out is None else out.copy_(result)


def deletes_scales_at_last(weight, *, dtype, out=None, calls=[]):  # noqa: B006 - the state is the fault
    calls.append(1)
    result = right(weight, dtype)
    if len(calls) % 2 == 0:
        object.__delattr__(weight, "absmax")
    return result if out is None else out.copy_(result)


def writes_ahead(weight, *, dtype, out=None):
    """The first call writes where a later one's output ends, with the fence behind it."""
    if out is None:
        ctypes.memset(weight.codes.data_ptr() - GUARD - 100, 7, 1)
    result = right(weight, dtype)
    return result if out is None else out.copy_(result)


@pytest.mark.parametrize(
    ("function", "fields", "kinds"),
    [
        (shared_workspace, "", ("MISMATCH",)),
        (cached_answer, "", ("MISMATCH",)),
        (slices_of_one, "", ("MISMATCH",)),
        (rebinds_out, "", ("MISMATCH", "UNWRITTEN")),
        (replaces_scales, "", ("INPUT_MUTATED",)),
        (one_stride, "dest=padded", ("OOB_WRITE", "UNWRITTEN", "MISMATCH")),
        (one_stride, "dest=transposed", ("OOB_WRITE", "UNWRITTEN", "MISMATCH")),
        (skips, "", ("CRASH_LAUNCH",)),
        (spoils_then_refuses, "", ("INPUT_MUTATED",)),
        (refuses_later, "", ("MISMATCH",)),
        (sparse, "", ("MISMATCH",)),
        (spoils_the_last(lambda out: out), "", ("OOB_WRITE",)),
        (spoils_the_last(fence_of), "", ("OOB_WRITE",)),
        (spoils_inputs_for_a_while, "", ("INPUT_MUTATED",)),
        (spoils_its_result_for_a_while(), "dest=new", ("MISMATCH",)),
        (writes_ahead, "dest=new", ("OOB_WRITE",)),
        (reshapes_its_result(lambda result: result.resize_(2, 2)), "dest=new", ("MISMATCH",)),
        (reshapes_its_result(widened), "dest=new", ("MISMATCH",)),
        (deletes_scales, "", ("CRASH_LAUNCH",)),
        (deletes_scales_at_last, "", ("INPUT_MUTATED",)),
    ],
)
def test_caught(function, fields, kinds):
    verdict = judged(function, fields)
    assert verdict.kind in kinds, verdict
    assert dataclasses.replace(verdict).failed


@pytest.mark.parametrize("function", [cached_answer, slices_of_one])
def test_a_result_in_the_storage_of_an_earlier_one_is_said(function):
    assert (
        "expected a tensor of its own, found one in the storage of an earlier call's"
        in judged(function, "").summary
    )


def returns_what_it_was_given():
    given = []

    def kernel(weight, *, dtype, out=None):
        result = right(weight, dtype)
        if out is not None:
            given[:] = [out.copy_(result)]
        return given[0] if given else result

    return kernel


def test_a_result_in_the_output_of_another_call_is_said():
    words = "expected a tensor of its own, found one in memory that this call was not given for it"
    assert words in judged(returns_what_it_was_given(), "dest=new").summary


def test_no_element_has_no_storage_to_share():
    def empty(weight, *, dtype):
        return torch.empty(0, 17, dtype=dtype)

    weight = LLMInt8Weight(codes=torch.empty(0, 17, dtype=torch.int8), absmax=torch.empty(0))
    found = execute(Kernel("empty", empty, False, False), weight, torch.float16, torch.device("cpu"))
    assert found.contract is None
    assert found.bits is not None
    assert found.bits.shape == (0, 17)


class _Raising(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        raise RuntimeError("no functions on me")


class _Strange(ValueError):
    @property
    def __cause__(self):
        raise RuntimeError("no cause")

    def __str__(self):
        pytest.skip("not today")


class _NoReason(Unsupported):
    def __init__(self):
        pass


def round_and_round():
    try:
        raise ValueError("first")
    except ValueError as first:
        second = KeyError("second")
        second.__cause__, first.__cause__ = first, second
        raise second from first


def raises(error):
    raise error


def when(call, act):
    """A right kernel that does ``act(result, weight)`` in one of its calls, and returns what that gives."""
    calls = []

    def kernel(weight, *, dtype, out=None):
        calls.append(1)
        result = right(weight, dtype) if out is None else out.copy_(right(weight, dtype))
        changed = act(result, weight) if len(calls) == call else None
        return result if changed is None else changed

    return kernel


def sets_field(name, value):
    return lambda result, weight: object.__setattr__(weight, name, value(getattr(weight, name)))


@pytest.mark.parametrize("call", [1, 2])
@pytest.mark.parametrize(
    ("act", "kinds"),
    [
        (lambda result, weight: result.as_subclass(_Raising), ("MISMATCH",)),
        (lambda result, weight: torch.nested.nested_tensor([result]), ("MISMATCH",)),
        (lambda result, weight: torch._neg_view(result), ("MISMATCH",)),
        (lambda result, weight: round_and_round(), ("CRASH_LAUNCH",)),
        (lambda result, weight: raises(_Strange("x")), ("CRASH_LAUNCH",)),
        (lambda result, weight: raises(_NoReason()), ("UNSUPPORTED", "MISMATCH")),
        (sets_field("absmax", lambda held: held.to_sparse()), ("INPUT_MUTATED", "CRASH_LAUNCH")),
        (sets_field("absmax", lambda held: held.as_subclass(_Raising)), ("INPUT_MUTATED", "CRASH_LAUNCH")),
    ],
)
def test_strange_answers_have_a_verdict(act, kinds, call):
    for dest in ("given", "new"):
        verdict = judged(when(call, act), f"dest={dest}")
        assert verdict.kind in kinds, verdict


@pytest.mark.parametrize("call", [1, 2])
def test_a_size_of_the_weight_that_a_call_changes(call):
    fmt = formats()["nf4"]

    def kernel(weight, *, dtype, out=None):
        calls.append(1)
        if len(calls) == call:
            object.__setattr__(weight, "blocksize", 128)
        result = from_bits(bits, dtype)
        return result if out is None else out.copy_(result)

    calls = []
    case = fmt.parse("shape=3x17")
    bits = exact(fmt, fmt.words(case), torch.float16).bits
    harness = Harness(
        runtime=Runtime(torch.device("cpu"), True),
        formats={"nf4": fmt},
        kernels={"nf4": Kernel("kernel", kernel, False, True)},
        oracles=frozenset(),
    )
    verdict = harness.judge(case).verdict
    assert verdict.kind == "INPUT_MUTATED", verdict
    assert "sizes were replaced" in verdict.summary


def returns_a_view(weight, *, dtype, out=None):
    result = right(weight, dtype)
    if out is None:
        return result
    out.copy_(result)
    # Its stride is another where there is but one element along a dimension.
    return out.view(-1).view(out.shape)


@pytest.mark.parametrize("shape", ["1x1", "1x17", "17x1"])
@pytest.mark.parametrize("dest", ["given", "new", "strided", "padded", "offset"])
def test_a_view_of_out_is_out(shape, dest):
    assert judged(returns_a_view, f"dest={dest}", shape).kind == "EXACT"


def test_a_stray_byte_is_counted_once():
    summary = judged(writes_ahead, "dest=new").summary
    assert summary.count("1 bytes") == 1, summary
    assert ";" not in summary


def judged(function, fields, shape="3x17"):
    takes_out = "out" in inspect.signature(function).parameters
    harness = Harness(
        runtime=Runtime(torch.device("cpu"), True),
        formats={"llm_int8": FMT},
        kernels={"llm_int8": Kernel(function.__name__, function, False, takes_out)},
        known_faults=load(BUILTIN),
        oracles=frozenset(),
    )
    case = FMT.parse(",".join(filter(None, (f"shape={shape}", fields))))
    return harness.judge(case).verdict


class _Skipping(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is torch.Tensor.data_ptr:
            pytest.skip("not today")
        return super().__torch_function__(func, types, args, kwargs)


def skips_later(weight, *, dtype, out=None):
    result = right(weight, dtype)
    return (result if out is None else out.copy_(result)).as_subclass(_Skipping)


def test_a_result_that_skips_is_no_skip():
    harness = Harness(
        runtime=Runtime(torch.device("cpu"), True),
        formats={"llm_int8": FMT},
        kernels={"llm_int8": Kernel("skips_later", skips_later, False, True)},
        oracles=frozenset(),
    )
    with pytest.raises(AssertionError, match=r"shape=3x17: expected a verdict, found a skip \(not today\)"):
        Tally(harness, "a test").check(FMT.parse("shape=3x17"))
