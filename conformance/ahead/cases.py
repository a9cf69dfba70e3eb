"""Cases whose launches are compiled: the variants that a format ships with, for ordinary and for odd sizes.

Ordinary sizes are multiples of 16, as those of models are. Odd ones are legal too; there an element
or a word is on no 16-byte boundary.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from conformance.bits import DTYPES
from conformance.case import Case
from conformance.registry import Format

ORDINARY, ODD = "ordinary", "odd"


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Field texts of a format's cases."""

    ordinary: tuple[str, ...]
    odd: tuple[str, ...] = ()


_GEMM = Sizes(
    (
        "M=64,N=128,K=64",
        "M=64,N=128,K=64,lay=KN,codes=uint8,azero=token,bias=fp16,order=w-a,aper=token",
    ),
    ("M=5,N=33,K=31,codes=uint8,azero=token",),
)
_BLOCKWISE = Sizes(
    ("shape=256x512", "shape=256x512,absmax=nested"), ("shape=3x257", "shape=3x257,absmax=nested")
)

CASES: dict[str, Sizes] = {
    "nf4": _BLOCKWISE,
    "fp4": _BLOCKWISE,
    "blockwise8": _BLOCKWISE,
    "llm_int8": Sizes(("shape=64x4096",), ("shape=9x1100", "shape=9x33")),
    "int8_affine": Sizes(
        (
            "shape=64x4096,per=tensor",
            "shape=64x4096,per=row,zero=same",
            "shape=64x4096,per=column,zero=same",
            "shape=64x4096,per=column,codes=uint8,zero=int32,sdtype=fp32",
            "shape=64x4096,per=group,g=128,zero=int32",
            "shape=64x4096,per=group,g=128",
        ),
        ("shape=9x33,zero=same", "shape=9x33,per=column", "shape=9x33,per=group,g=5,zero=same"),
    ),
    "gptq": Sizes(
        (
            "K=512,N=1024,g=128",
            "K=4224,N=1024,g=128",  # of this size with fewer columns
            "K=512,N=1024,g=128,act=perm(1)",
            "K=4224,N=1024,g=128,act=perm(1)",  # of this size it runs with other warps
            "K=512,N=1024,g=-1,act=perm(1)",
            "K=512,N=1024,g=8,zeros=v1-nowrap",
            "K=512,N=1024,g=20,zeros=v2",
            "K=512,N=1024,g=128,bits=2",
            "K=4224,N=1024,g=128,bits=2",  # of this size with more columns
            "K=512,N=1024,g=128,bits=3",
            "K=512,N=1024,g=128,bits=3,act=perm(1)",
            "K=512,N=1024,g=128,bits=8",
            "K=8320,N=4096,g=128,bits=8",  # of this size with fewer columns
        ),
        (
            "K=33,N=17,g=16",
            "K=33,N=17,g=16,act=perm(1)",
            "K=33,N=17,g=-1,act=perm(1)",
            "K=32,N=32,g=8,bits=3",
            "K=9,N=31,bits=8",
        ),
    ),
    "awq_cols": Sizes(("K=512,N=1024,g=128", "K=512,N=1024,g=128,sdtype=bf16"), ("K=33,N=40,g=11",)),
    "awq_rows": Sizes(("K=1024,N=256,g=128", "K=1024,N=256,g=32"), ("K=136,N=3,g=-1", "K=264,N=3,g=132")),
    "awq_quads": Sizes(("K=1024,N=256,g=128", "K=1024,N=256,g=32"), ("K=192,N=12,g=-1", "K=2112,N=4,g=132")),
    "squeezellm": Sizes(
        (
            "K=512,N=1024",
            "K=512,N=1024,tdtype=fp16",
            "K=512,N=1024,sparse=few(1),full=3",
            "K=512,N=1024,bits=3",
            "K=8320,N=4096,bits=3",  # of this size with more columns
            "K=512,N=1024,bits=3,sparse=few(1),full=3",
        ),
        ("K=32,N=63,sparse=few(1),full=3", "bits=3,K=32,N=63"),
    ),
    "gemm_accumulate": Sizes(
        ("M=64,N=128,K=64", "M=64,N=128,K=64,lay=KN,codes=uint8"), ("M=5,N=33,K=31,codes=uint8",)
    ),
    "gemm_int8": _GEMM,
    "gemm_epilogue": Sizes(
        ("M=64,N=128", "M=64,N=128,azero=token,bias=fp16,order=w-a,aper=token"),
        ("M=5,N=33,azero=tensor,order=absmax",),
    ),
    "gemm_quantize": Sizes(
        tuple(f"M=64,K=1024,rule={rule}" for rule in ("scale", "full", "absmax", "minmax", "minmax-u8")),
        ("M=5,K=33,rule=minmax",),
    ),
    "gemm_fp8": Sizes(
        (
            "M=64,N=128,K=256",
            "M=64,N=128,K=256,aper=block,wper=block",
            "M=64,N=128,K=256,wper=block,bias=fp16,order=w-a",
        ),
        ("M=5,N=33,K=31", "M=5,N=130,K=129,aper=block,wper=block"),
    ),
    "gemm_cast_fp8": Sizes(
        tuple(f"M=64,K=1024,per={per}" for per in ("token", "block", "tensor")), ("M=5,K=133,per=block",)
    ),
    "gemm_dynamic": Sizes(("M=64,N=128,K=64,rule=scale", "M=64,N=128,K=64,rule=minmax"), ("M=5,N=33,K=65",)),
}


def cases(fmt: Format, *, quick: bool = False) -> Iterator[tuple[str, Case]]:
    """Cases to compile, each ``ordinary`` or ``odd``: the first in every output dtype, the others in
    float16 and float32, which a lane has eight and four of in 16 bytes.

    A format without an entry above has its default case, and those for the edges of tiles as odd ones.

    Args:
        quick: only the first case, in float16.
    """
    sizes = CASES.get(fmt.name, Sizes(("",), fmt.tile_cases))
    for size, texts in ((ORDINARY, sizes.ordinary), (ODD, sizes.odd)):
        for text in texts:
            first = text == sizes.ordinary[0]
            for out in DTYPES if first else ("fp16", "fp32"):
                yield size, fmt.parse(text).replace(out=out)
                if quick:
                    return
