"""Kernels that show each thing that the checks of machine code look for, and their compilation.

Run as ``python -m tests.compiled_kernels`` in a process without the interpreter; prints a JSON object of
kernel, ``@`` and target to the fields of its result.
"""

# ruff: noqa: ANN201
from __future__ import annotations

import json
import os

if __name__ == "__main__":
    os.environ["TRITON_INTERPRET"] = "0"

import torch
import triton
import triton.language as tl


@triton.jit
def clean(out, x, n, BLOCK: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * BLOCK
    at = tl.arange(0, BLOCK)
    mask = at < tl.minimum(n - first, BLOCK).to(tl.int32)
    tl.store(out + first + at, tl.load(x + first + at, mask=mask) * 3, mask=mask)


@triton.jit
def every_other(out, x, n, BLOCK: tl.constexpr):
    """A lane's elements are no neighbours in memory."""
    at = tl.arange(0, BLOCK)
    tl.store(out + at * 2, tl.load(x + at, mask=at < n), mask=at < n)


@triton.jit
def transposed(out, x, ROWS: tl.constexpr, COLS: tl.constexpr):
    """Rows are read and columns are written: values change lanes by way of shared memory."""
    row, col = tl.arange(0, ROWS), tl.arange(0, COLS)
    tile = tl.load(x + row[:, None] * COLS + col[None, :])
    tl.store(out + col[:, None] * ROWS + row[None, :], tl.trans(tile))


@triton.jit
def hungry(out, x, n, BLOCK: tl.constexpr):
    """384 float32 of a thread live through the loop; a thread has 255 registers."""
    at = tl.arange(0, BLOCK)
    a = tl.load(x + at)
    b = tl.load(x + BLOCK + at)
    c = tl.load(x + 2 * BLOCK + at)
    for _ in range(n):
        a = a * b
        b = b + c
        c = c - a
    tl.store(out + at, a + b * c)


@triton.jit
def multiply_add(out, x, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    a = tl.load(x + at)
    tl.store(out + at, a * a + tl.load(x + BLOCK + at))


@triton.jit
def narrow_program(out, x, n, BLOCK: tl.constexpr):
    """The product of the program's number and the tile has 32 bits; that they are extended is too late."""
    at = (tl.program_id(0) * BLOCK).to(tl.int64) + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n), mask=at < n)


@triton.jit
def narrow_loaded(out, index, n_cols, BLOCK: tl.constexpr):
    """A row's number out of memory times the row's length."""
    at = tl.arange(0, BLOCK)
    row = tl.load(index + tl.program_id(0))
    tl.store(out + row * n_cols + at, at.to(tl.float16))


@triton.jit
def narrow_carried(out, n_rows, n_cols, BLOCK: tl.constexpr):
    """A pointer that moves on in a loop by too small a number."""
    at = tl.arange(0, BLOCK)
    row = out
    for r in range(n_rows):
        tl.store(row + at, at.to(tl.float16))
        row += r * n_cols


@triton.jit
def wide_carried(out, n_rows, n_cols, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    row = out
    for _ in range(n_rows):
        tl.store(row + at, at.to(tl.float16))
        row += n_cols


@triton.jit
def narrow_branch(out, n_rows, n_cols, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    first = tl.program_id(0).to(tl.int64) * n_cols
    if n_cols > n_rows:
        first = (tl.program_id(0) * n_cols).to(tl.int64)
    tl.store(out + first + at, at.to(tl.float16))


LARGE = "large"


def _compile(targets: list[str]) -> dict[str, dict[str, object]]:
    from conformance.ahead.launches import captured
    from conformance.ahead.work import compile_launch

    half, single = torch.zeros(4096, dtype=torch.float16), torch.zeros(16384)
    index = torch.zeros(16, dtype=torch.int32)
    found: dict[str, dict[str, object]] = {}
    options = {"num_warps": 4, "enable_fp_fusion": False}
    with captured() as launches:
        clean[(4,)](half, half, 4096, BLOCK=1024, **options)
        every_other[(1,)](half, half, 1024, BLOCK=1024, **options)
        transposed[(1,)](half, half, ROWS=64, COLS=64, **options)
        hungry[(1,)](single, single, 5, BLOCK=4096, num_warps=1, enable_fp_fusion=False)
        multiply_add[(1,)](single, single, BLOCK=1024, num_warps=4, enable_fp_fusion=True)
        ordinary = len(launches)
        clean[(2**22,)](half, half, 2**32, BLOCK=1024, **options)
        narrow_program[(2**22,)](half, half, 2**32, BLOCK=1024, **options)
        narrow_program[(2**20,)](half, half, 2**30, BLOCK=1024, **options)
        narrow_loaded[(2**16,)](half, index, 2**16, BLOCK=1024, **options)
        narrow_carried[(1,)](half, 2**17, 2**15, BLOCK=1024, **options)
        wide_carried[(1,)](half, 2**17, 2**15, BLOCK=1024, **options)
        narrow_branch[(2**17,)](half, 2**17, 2**15, BLOCK=1024, **options)
    for number, launch in enumerate(launches):
        sizes = "ordinary" if number < ordinary else LARGE
        for target in targets if number < ordinary else targets[:1]:
            result = compile_launch(launch, "test", f"{launch.kernel} {launch.grid[0]}", sizes, target)
            name = launch.kernel if number < ordinary else f"{launch.kernel} {launch.grid[0]}"
            found[f"{name}@{target}"] = dict(vars(result))
    return found


if __name__ == "__main__":
    from conformance.ahead.build import TARGETS, unsupported

    wanted = [
        target for target in ("sm_90", "sm_80", "sm_100", "sm_120", "gfx942") if not unsupported(target)
    ]
    assert all(target in TARGETS for target in wanted)
    print(json.dumps(_compile(wanted)))
