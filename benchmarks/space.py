"""Launch parameters that can be tuned, in one place: each format's values and which go together.

A kernel's width (columns, words or lanes of a program) is given by how many of them each thread
has, since that decides how wide its loads and stores are; the widths follow from the warps.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from benchmarks import weights
from benchmarks.cases import BenchCase
from benchmarks.subjects import default_launch
from conformance.bits import DTYPES

THREADS = 32  # of a warp

Launch = Mapping[str, int]


@dataclasses.dataclass(frozen=True)
class Space:
    """Launch parameters of one format.

    Attributes:
        width: name of the parameter that the threads of a program share.
        per_thread: how many of it a thread has; fewer than one where threads share them.
        num_warps: warps of a program.
        others: further parameters and their values.
    """

    width: str
    per_thread: tuple[float, ...]
    num_warps: tuple[int, ...] = (1, 2, 4, 8)
    others: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.others, self.width, "num_warps")

    def __iter__(self) -> Iterator[dict[str, int]]:
        for values in itertools.product(self.num_warps, self.per_thread, *self.others.values()):
            warps, per_thread, *rest = values
            others = dict(zip(self.others, map(int, rest), strict=True))
            yield {**others, self.width: int(warps * THREADS * per_thread), "num_warps": int(warps)}


# 16-byte stores need 8 outputs of 16 bits a thread, or 4 of 32 bits, side by side. A lane of the
# packed-word kernels has 8 (a byte code's word 4), so there 1 a thread is enough.
_ROWS = (1, 2, 4, 8)
SPACES: dict[str, Space] = {
    "nf4": Space("lanes", (1, 2, 4, 8)),
    "fp4": Space("lanes", (1, 2, 4, 8)),
    "blockwise8": Space("lanes", (1, 2, 4), others={"gather": (0, 1)}),
    "llm_int8": Space("cols", (4, 8, 16, 32), others={"rows": _ROWS}),
    "gptq": Space("cols", (4, 8, 16), others={"packed_rows": _ROWS}),
    "awq_cols": Space("words", (1, 2, 4), others={"rows": _ROWS}),
    "awq_rows": Space("words", (1, 2, 4), others={"rows": _ROWS}),
    "awq_quads": Space("eighths", (1, 2, 4), others={"rows": (2, 4, 8, 16)}),
    "squeezellm": Space(
        "cols", (0.5, 1, 2, 4), others={"packed_rows": (2, 4, 8, 16), "down": (0, 1), "gather": (0, 1)}
    ),
    "int8_affine": Space("cols", (4, 8, 16, 32), others={"rows": _ROWS}),
}


def defaults(case: BenchCase) -> dict[str, int]:
    """Launch parameters that the kernel takes for weights of this kind and size when nothing is said."""
    # Tensors without data: a large weight takes seconds to make on the CPU.
    with FakeTensorMode():
        weight = weights.make(case, torch.device("cpu"))
        return default_launch(case.format, weight, DTYPES[case.dtype])


def configurations(case: BenchCase) -> list[dict[str, int]]:
    """Launch parameters to try for a case: the defaults first, then the nearest to them first,
    so that a search cut short has seen what is likeliest."""
    usual = defaults(case)

    def distance(launch: Launch) -> int:
        # Steps of powers of two, over all parameters.
        return sum(abs(launch[key].bit_length() - usual[key].bit_length()) for key in usual)

    others = sorted((launch for launch in SPACES[case.format] if launch != usual), key=distance)
    return [usual, *others]
