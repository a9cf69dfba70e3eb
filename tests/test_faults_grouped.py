"""Every fault of the catalogue for gptq and the AWQ layouts, planted, is caught and named."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from conformance.bits import DTYPES, from_bits
from conformance.faults import Context, Fault, grouped
from conformance.harness import Checked
from conformance.registry import Format
from kernels._packed import map_tensors
from oracles.spec.rounding import round_to
from tests.harness_runs import FORMATS, drawn, harness
from tests.planted import dense

CATALOGUE = {
    "gptq": grouped.GPTQ,
    "awq_cols": grouped.AWQ_COLS,
    "awq_rows": grouped.AWQ_ROWS,
    "awq_quads": grouped.QUADS,
}
PLANTED = [pytest.param(n, f, id=f"{n}-{f.name}") for n, faults in CATALOGUE.items() for f in faults]
# What one run of the suite's default profile draws for each output dtype.
BUDGET = 60

Kernel = Callable[..., torch.Tensor]


def right(fmt: Format, weight: Any, dtype: torch.dtype) -> np.ndarray:
    return round_to(fmt.unpack(weight).values(), dtype)


def mutant(fmt: Format, fault: Fault | None) -> Kernel:
    """A kernel with the fault; right where the fault does not apply, or without one."""

    def kernel(weight: Any, *, dtype: torch.dtype, out: torch.Tensor | None = None) -> torch.Tensor:
        weight = dense(weight)
        bits = None if fault is None else fault.decode(Context(weight, fmt.unpack(weight), dtype))
        result = from_bits(right(fmt, weight, dtype) if bits is None else bits, dtype)
        return result if out is None else out.copy_(result)

    return kernel


def strides_ignored(fmt: Format) -> Kernel:
    """Reads its inputs as if they were contiguous."""

    def raw(_: str, t: torch.Tensor) -> torch.Tensor:
        return t.as_strided(t.shape, [math.prod(t.shape[i + 1 :]) for i in range(t.dim())])

    def kernel(weight: Any, *, dtype: torch.dtype, out: torch.Tensor | None = None) -> torch.Tensor:
        return mutant(fmt, None)(map_tensors(weight, raw), dtype=dtype, out=out)

    return kernel


def last_column_left_out(fmt: Format) -> Kernel:
    """A mask that ends one column early."""

    def kernel(weight: Any, *, dtype: torch.dtype, out: torch.Tensor | None = None) -> torch.Tensor:
        result = mutant(fmt, None)(weight, dtype=dtype)
        if out is None:
            return result
        out[..., :-1] = result[..., :-1]
        return out

    return kernel


def column_mask_missing(fmt: Format) -> Kernel:
    """The last row's tile ends one element past the output."""

    def kernel(weight: Any, *, dtype: torch.dtype, out: torch.Tensor | None = None) -> torch.Tensor:
        if out is not None:
            end = sum((size - 1) * step for size, step in zip(out.shape, out.stride(), strict=True))
            out.as_strided((1,), (1,), out.storage_offset() + end + 1).fill_(1.0)
        return mutant(fmt, None)(weight, dtype=dtype, out=out)

    return kernel


def first_caught(fmt: Format, fault: Fault | None) -> Checked | None:
    """The first failing case among those that the suite draws or always runs, or None."""
    return first_failing(fmt, mutant(fmt, fault))


def first_failing(fmt: Format, kernel: Kernel) -> Checked | None:
    run = harness(kernel)
    for out in DTYPES:
        for case in drawn(fmt.name, BUDGET, out=out):
            checked = run.judge(case)
            if checked.verdict.failed:
                return checked
    # Cases that the suite runs every time.
    for text in (*fmt.tile_cases, *fmt.nonfinite):
        for out in DTYPES:
            checked = run.judge(fmt.parse(text).replace(out=out))
            if checked.verdict.failed:
                return checked
    return None


@pytest.mark.parametrize(("name", "fault"), PLANTED)
def test_fault_is_caught_and_named(name: str, fault: Fault):
    checked = first_caught(FORMATS[name], fault)
    assert checked is not None, "not caught"
    verdict = checked.verdict
    assert verdict.kind in ("MISMATCH", "NONFINITE_CLASS")
    assert verdict.located
    # On a small case several faults may be one: the planted one is always among those named.
    assert fault.name in [cause.name for cause in verdict.causes]


@pytest.mark.parametrize("name", CATALOGUE)
@pytest.mark.parametrize(
    ("plant", "kinds"),
    [
        (strides_ignored, ("MISMATCH", "NONFINITE_CLASS")),
        (last_column_left_out, ("UNWRITTEN",)),
        (column_mask_missing, ("OOB_WRITE",)),
    ],
)
def test_reads_and_writes_out_of_place_are_caught(
    name: str, plant: Callable[[Format], Kernel], kinds: tuple[str, ...]
):
    checked = first_failing(FORMATS[name], plant(FORMATS[name]))
    assert checked is not None, "not caught"
    assert checked.verdict.kind in kinds


@pytest.mark.parametrize("name", CATALOGUE)
def test_a_right_kernel_is_never_accused(name: str):
    assert first_caught(FORMATS[name], None) is None


def test_equivalent_mutants_are_data_with_a_reason():
    names = [name for name, _ in grouped.EQUIVALENT]
    assert len(names) == len(set(names))
    assert not set(names) & {fault.name for faults in CATALOGUE.values() for fault in faults}
    assert all(reason for _, reason in grouped.EQUIVALENT)


@pytest.mark.parametrize("name", CATALOGUE)
def test_names_are_distinct(name: str):
    names = [fault.name for fault in FORMATS[name].faults]
    assert len(names) == len(set(names))
