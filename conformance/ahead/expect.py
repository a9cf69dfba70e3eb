"""What the machine code of each kernel has to be like, and where it may be otherwise, with the reason.

All kernels: no spills, no shared memory, no fused multiply-add, and at ordinary sizes stores of 16
bytes and loads of packed words of 4. Every departure is an :class:`Excuse`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from packaging.specifiers import SpecifierSet

from conformance.ahead.cases import ODD
from conformance.ahead.result import Compiled


@dataclasses.dataclass(frozen=True)
class Expected:
    """Limits; None: not checked.

    Attributes:
        spills, shared, fused: at most.
        store: bytes a lane writes at least in one instruction to each of ``outputs`` that there is.
        loads: argument to bytes that a lane loads at least in one instruction.
        refused: the compiler may refuse.
    """

    spills: int | None = 0
    shared: int | None = 0
    fused: int | None = 0
    store: int | None = 16
    outputs: tuple[str, ...] = ("out", "accumulators")
    loads: Mapping[str, int] = dataclasses.field(default_factory=dict)
    refused: bool = False


@dataclasses.dataclass(frozen=True)
class Excuse:
    """Where something else is expected. Empty fields match everything; later entries win.

    Attributes:
        kernels: names of functions.
        formats, sizes, outs, targets: of the result.
        triton: versions, as of a requirement.
        cases: texts of which the case's id contains one.
        changes: fields of :class:`Expected` to their values.
        reason: why.
    """

    reason: str
    changes: Mapping[str, Any]
    kernels: tuple[str, ...] = ()
    formats: tuple[str, ...] = ()
    sizes: tuple[str, ...] = ()
    outs: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    triton: str = ""
    cases: tuple[str, ...] = ()

    def fits(self, result: Compiled) -> bool:
        pairs = (
            (self.kernels, result.kernel),
            (self.formats, result.format),
            (self.sizes, result.sizes),
            (self.outs, result.out),
            (self.targets, result.target),
        )
        return (
            all(not among or one in among for among, one in pairs)
            and SpecifierSet(self.triton).contains(result.triton, prereleases=True)
            and (not self.cases or any(text in result.case for text in self.cases))
        )


# Arguments that hold packed words or codes, and what a lane loads of them at least.
WORDS: dict[str, Mapping[str, int]] = {
    "blockwise_kernel": {"packed": 4},
    "gptq_kernel": {"qweight": 4, "qzeros": 4},
    "awq_cols_kernel": {"qweight": 4, "qzeros": 4},
    "awq_rows_kernel": {"qweight": 4, "qzeros": 4},
    "awq_quads_kernel": {"qweight": 4},
    "dense_kernel": {"qweight": 4},
    "gather_kernel": {"qweight": 4},
    "outlier_kernel": {"qweight": 4},
    "int8_affine_kernel": {"codes": 4},
    "llm_int8_kernel": {"codes": 4},
    "epilogue_kernel": {"acc": 4},
    "quantize_kernel": {"x": 4},
    "cast_kernel": {"x": 4},
    "decode_kernel": {"codes": 4},
}

# Matrix products, whose operands come in tiles of their own.
PRODUCTS = ("gemm_kernel", "gemm_fp8_kernel")

EXCUSES: tuple[Excuse, ...] = (
    Excuse(
        "sm_80 has no unit for e4m3fn; the launcher raises Unsupported there",
        {"refused": True},
        kernels=("gemm_fp8_kernel",),
        targets=("sm_80",),
    ),
    Excuse(
        "16 bytes of float32 are four codes, which at 4 bit are 2 bytes: a load of 4 would need a way "
        "through shared memory before the store",
        {"loads": {"packed": 2}},
        kernels=("blockwise_kernel",),
        formats=("nf4", "fp4"),
        outs=("fp32",),
    ),
    Excuse(
        "a packed row holds 16 or 32 rows of outputs; with four columns a lane, and more programs, it is "
        "decoded faster than with eight",
        {"store": 8},
        kernels=("gptq_kernel",),
        cases=("bits=2", "bits=3"),
        outs=("fp16", "bf16"),
    ),
    Excuse(
        "one flag a row is reduced over the warps: whether a sum needs rounding to odd",
        {"shared": 64},
        kernels=("awq_quads_kernel",),
    ),
    Excuse(
        "tl.dot takes its operands out of shared memory",
        {"shared": None},
        kernels=PRODUCTS,
    ),
    Excuse(
        "operands at odd sizes are loaded byte by byte, each with an address of its own",
        {"spills": None},
        kernels=PRODUCTS,
        sizes=(ODD,),
    ),
    Excuse(
        "a row's largest value is reduced over the warps, and float32 outputs are wider than inputs",
        {"shared": 4096},
        kernels=("quantize_kernel", "cast_kernel", "decode_kernel"),
    ),
    Excuse(
        "tiles are made for 32 lanes a warp; among 64 a lane has half as many elements, and values change "
        "lanes through shared memory",
        {"store": 8, "shared": None},
        targets=("gfx942",),
    ),
    Excuse(
        "as for other targets four columns for each of 32 lanes, among 64 lanes",
        {"store": 4},
        kernels=("gptq_kernel",),
        cases=("bits=2", "bits=3"),
        targets=("gfx942",),
    ),
    Excuse(
        "a division rounded to nearest is made of fused steps, in one text with the kernel's own; and the "
        "scale of a row is one number",
        {"fused": None, "store": None},
        kernels=("quantize_kernel", "cast_kernel"),
        targets=("gfx942",),
    ),
    Excuse(
        "every output is a lookup in the table of its own column; a lane has one column or two, so that the "
        "tables that a warp reads at once lie in few cache lines, which is faster than wide stores",
        {"store": None},
        kernels=("dense_kernel",),
    ),
    Excuse(
        "every output is looked up in the table of its own column, which a program holds in shared memory; "
        "values then change lanes for wide stores",
        {"shared": 1 << 16},
        kernels=("gather_kernel",),
    ),
    Excuse(
        "outliers lie anywhere: one element a store, and few of them",
        {"store": None, "shared": None},
        kernels=("outlier_kernel",),
    ),
    Excuse(
        "seen with 3.2 to 3.4: up to 1 KB of shared memory, where later ones need none",
        {"shared": 1024},
        kernels=("gptq_kernel",),
        targets=("sm_80", "sm_89", "sm_90", "sm_100", "sm_120"),
        triton="<3.5",
    ),
    Excuse(
        "seen with 3.5 and 3.6: one register is spilled and read once, but not up to 3.4 and from 3.7 on",
        {"spills": 2},
        kernels=("dense_kernel",),
        cases=("bits=3",),
        outs=("fp32",),
        triton=">=3.5,<3.7",
    ),
    Excuse(
        "seen with 3.7 and 3.8: one register is spilled and read once, but not up to 3.6 and with 3.9",
        {"spills": 2},
        kernels=("outlier_kernel",),
        outs=("fp16",),
        triton=">=3.7,<3.9",
    ),
    Excuse(
        "seen with 3.3 to 3.5: one register is spilled and read once, but not with 3.2 and from 3.6 on",
        {"spills": 2},
        kernels=("cast_kernel",),
        triton=">=3.3,<3.6",
    ),
    Excuse(
        "rows of odd sizes start at any element, so that neither a store nor a load of bytes can be wider, "
        "and the compiler goes through shared memory to have neighbouring lanes store neighbours",
        {"store": None, "loads": {}, "shared": None},
        sizes=(ODD,),
    ),
)


def expected(result: Compiled) -> Expected:
    """What is expected of a result."""
    return _after(EXCUSES, result)


def without_versions(result: Compiled) -> Expected:
    """The same without what a version of Triton is excused from."""
    return _after([excuse for excuse in EXCUSES if not excuse.triton], result)


def _after(excuses: Iterable[Excuse], result: Compiled) -> Expected:
    want = Expected(loads=WORDS.get(result.kernel, {}))
    if result.kernel not in WORDS and result.kernel not in PRODUCTS:
        # A kernel that nothing is said about: it must not spill.
        want = Expected(shared=None, fused=None, store=None)
    for excuse in excuses:
        if excuse.fits(result):
            want = dataclasses.replace(want, **excuse.changes)
    return want
