"""kernels/_grid.py: every tile has a program, also where rows do not fit the second axis of a grid."""

from __future__ import annotations

import pytest
import torch

from benchmarks import check, references, weights
from benchmarks.cases import BenchCase
from kernels import _grid, gptq, squeezellm
from kernels._grid import AXIS_LIMIT, grid_of, grouped_grid

pytestmark = pytest.mark.interpreter


@pytest.mark.parametrize("rows", [1, 2, AXIS_LIMIT, AXIS_LIMIT + 1, 2 * AXIS_LIMIT + 1, 2**28 - 1])
def test_no_axis_is_too_long_and_no_row_is_left_out(rows):
    columns, down, folds = grid_of(7, rows)
    assert columns == 7
    assert max(down, folds) <= AXIS_LIMIT
    assert 0 <= down * folds - rows < folds


def test_groups_that_do_not_fit_have_no_grid_of_their_own():
    assert grouped_grid(3, AXIS_LIMIT, 2) == (3, AXIS_LIMIT, 2)
    assert grouped_grid(3, AXIS_LIMIT + 1, 2) is None
    assert grouped_grid(3, 2, AXIS_LIMIT + 1) is None


@pytest.mark.parametrize(
    ("format", "variant", "group"),
    [
        ("gptq", "4bit", 32),
        ("gptq", "4bit", -1),
        ("gptq", "3bit", 32),
        ("gptq", "4bit-act-order", 32),
        ("squeezellm", "4bit", 0),
        ("squeezellm", "3bit", 0),
    ],
)
def test_more_rows_than_an_axis_has(monkeypatch, format, variant, group):
    # 11 and 44 rows of tiles: the last fold has fewer.
    case = BenchCase(format, variant, "fp16", 352, 64, group)
    weight = weights.make(case, torch.device("cpu"))
    want = references.formula(weight, torch.float16)
    out = torch.empty_like(want)
    seen = []
    real = _grid.grid_of

    def folded(col_tiles, row_tiles):
        found = real(col_tiles, row_tiles)
        seen.append(found[2])
        return found

    monkeypatch.setattr(_grid, "AXIS_LIMIT", 3)
    kernel = gptq if format == "gptq" else squeezellm
    monkeypatch.setattr(kernel, "grid_of", folded)
    check.poison(out)
    launch = {"packed_rows": 1, "cols": 32, "num_warps": 1}
    kernel.dequantize(weight, dtype=torch.float16, out=out, **launch)
    assert check.difference(out, want) == ""
    assert max(seen) > 1
