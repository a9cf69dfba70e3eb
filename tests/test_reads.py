"""Reads outside the inputs: seen in the interpreter, and told apart from right ones."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from conformance.arena import Arena
from conformance.reads import watched
from tests.harness_runs import FORMATS, harness
from tests.planted import dense

pytestmark = pytest.mark.interpreter


@triton.jit
def _copy(out, x, n, first, BLOCK: tl.constexpr):
    at = first + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n, other=0)
    tl.store(out + at, value, mask=(at >= 0) & (at < BLOCK))


def sentences(n: int, first: int = 0, layout: str = "contiguous") -> list[str]:
    """What is seen when ``x`` of 5 elements is read from ``first`` to ``n``."""
    arena = Arena({"x": torch.arange(5, dtype=torch.int32), "y": torch.zeros(3)}, layout, torch.device("cpu"))
    out = torch.zeros(8, dtype=torch.int32)
    with watched(arena) as found:
        _copy[(1,)](out, arena.view("x"), n, first, BLOCK=8)
    return found


def test_reads_within_a_tensor_are_no_strays():
    assert sentences(5) == []
    assert sentences(5, first=3) == []


def test_reads_past_the_end_and_before_the_start_are_seen():
    assert sentences(7) == ["2 elements read outside, the first 1 bytes past the end of x"]
    assert sentences(5, first=-2) == ["2 elements read outside, the first 8 bytes before x"]


def test_gaps_between_elements_are_not_outside():
    assert sentences(5, layout="strided") == []


def test_loads_are_as_before_afterwards():
    from triton.runtime.interpreter import InterpreterBuilder

    before = InterpreterBuilder.create_masked_load
    with pytest.raises(ValueError, match="kernel"), watched(Arena({}, "contiguous", torch.device("cpu"))):
        raise ValueError("kernel")
    assert InterpreterBuilder.create_masked_load is before


@triton.jit
def _rows(out, codes, absmax, n_rows, n_cols, limit, by, COLS: tl.constexpr):
    col = tl.arange(0, COLS)
    for row in range(n_rows):
        q = tl.load(codes + row * n_cols + col, mask=col < limit, other=0)
        scale = tl.load(absmax + row)
        value = q.to(tl.float32) * scale * by
        tl.store(out + row * n_cols + col, value.to(out.dtype.element_ty), mask=col < n_cols)


def planted(more: int, by: float):
    """A kernel for llm_int8 that reads ``more`` columns than there are."""

    def kernel(weight, *, dtype, out=None):
        rows, cols = weight.codes.shape
        result = torch.empty((rows, cols), dtype=dtype)
        codes = weight.codes if weight.codes.is_contiguous() else dense(weight).codes
        _rows[(1,)](result, codes, weight.absmax.contiguous(), rows, cols, cols + more, by, COLS=64)
        return result if out is None else out.copy_(result)

    return kernel


@pytest.mark.parametrize(
    ("more", "by", "kind"),
    [(0, 7.874015718698502e-3, "EXACT"), (1, 7.874015718698502e-3, "OOB_READ"), (1, 1.0, "MISMATCH")],
)
def test_verdict(more: int, by: float, kind: str):
    run = harness(planted(more, by))
    verdict = run.judge(FORMATS["llm_int8"].parse("shape=3x33,out=fp32")).verdict
    assert verdict.kind == kind
    assert ("past the end of codes" in verdict.summary) == (more > 0)
    assert (kind == "OOB_READ") == verdict.summary.startswith("right values, but ")
