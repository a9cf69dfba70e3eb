"""The bits do not depend on launch parameters: they decide who decodes an element, not how."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from benchmarks import check, references, weights
from benchmarks.cases import DTYPES, VARIANTS, BenchCase, Variant
from benchmarks.space import SPACES, configurations
from benchmarks.subjects import builtin
from conformance import interpreter
from conformance.bits import DTYPES as TORCH

pytestmark = [
    pytest.mark.interpreter,
    pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning"),
]
CPU = torch.device("cpu")

# No whole number of most tiles; several groups, and more than one program in both directions.
ROWS, COLS, GROUP = 64, 96, 32
# Narrower than any that is tuned, so that a small weight has many tiles and ragged edges.
NARROW = {"lanes": (32, 64), "cols": (32, 128), "words": (4, 16), "eighths": (4, 16)}


def case_of(variant: Variant, dtype: str) -> BenchCase:
    group = GROUP if variant.groups[0] else 0
    cols = 64 if variant.format == "awq_quads" else COLS  # its chunks are of 64
    return BenchCase(variant.format, variant.name, dtype, ROWS, cols, group)


def launches(case: BenchCase) -> list[dict[str, int]]:
    """The defaults, two narrow ones, and the narrowest and the widest that are tuned."""
    space = SPACES[case.format]
    tuned = configurations(case)
    # Rows that are decoded at once are a power of two.
    several = 2 if case.format in ("awq_quads", "squeezellm") else 3
    by_size = sorted(tuned, key=lambda launch: (launch[space.width], *launch.values()))
    narrow, wider = NARROW[space.width]
    return [
        tuned[0],
        {**dict.fromkeys(space.others, 1), space.width: narrow, "num_warps": 1},
        {**dict.fromkeys(space.others, several), space.width: wider, "num_warps": 2},
        by_size[0],
        by_size[-1],
    ]


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.label)
def test_same_bits_whatever_the_launch_parameters(variant):
    interpreter.correct()
    for dtype in DTYPES:
        case = case_of(variant, dtype)
        assert check.reference_fault(case, CPU) == ""
        weight = weights.make(case, CPU)
        want = references.formula(weight, TORCH[dtype])
        found = launches(case)
        for launch in found if dtype == "fp16" else found[1:2]:
            out = torch.empty_like(want)
            check.poison(out)
            builtin(variant.format)(weight, dtype=TORCH[dtype], out=out, **launch)
            assert check.difference(out, want) == "", f"{case.id} {launch}"


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.label)
def test_the_launch_parameters_differ(variant):
    found = launches(case_of(variant, "fp16"))
    assert len({tuple(sorted(launch.items())) for launch in found}) >= 4


# Not a size: 0 and 1 are the values.
FLAGS = ("gather", "down")


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.label)
@pytest.mark.parametrize("value", [-8, 0, 1.5, 8.0])
def test_a_launch_parameter_that_is_no_size_is_an_error_that_names_it(variant, value):
    case = case_of(variant, "fp16")
    weight = weights.make(case, CPU)
    for name in SPACES[case.format].names:
        if name in FLAGS:
            continue
        with pytest.raises((TypeError, ValueError), match=f"^{name}: expected"):
            builtin(variant.format)(weight, dtype=torch.float16, **{name: value})


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.label)
def test_widths_and_warps_are_powers_of_two(variant):
    case = case_of(variant, "fp16")
    weight = weights.make(case, CPU)
    for name in (SPACES[case.format].width, "num_warps"):
        with pytest.raises(ValueError, match=f"^{name}: expected a power of two, found 48"):
            builtin(variant.format)(weight, dtype=torch.float16, **{name: 48})


def test_fewer_columns_than_a_lane_stores_and_more_rows_than_there_are():
    weight = weights.make(BenchCase("gptq", "4bit", "fp16", 64, 32, 32), CPU)
    want = references.formula(weight, torch.float16)
    with pytest.raises(ValueError, match=r"^cols: expected at least 8 for torch.float16, found 4"):
        builtin("gptq")(weight, dtype=torch.float16, cols=4)
    found = builtin("gptq")(weight, dtype=torch.float16, cols=8, packed_rows=2000)
    assert check.difference(found, want) == ""
    huge = dataclasses.replace(
        weights.make(BenchCase("gptq", "4bit", "fp16", 32, 32, -1), CPU), group_size=2**70
    )
    huge.validate()
    want = references.formula(dataclasses.replace(huge, group_size=-1), torch.float16)
    assert check.difference(builtin("gptq")(huge, dtype=torch.float16), want) == ""
