"""The steps of an fp8 matrix product, each shown alone; the rest is :mod:`conformance.isolation`."""

from __future__ import annotations

from conformance.isolation_step import Step

# Inner dimensions around instructions of 16 and 32 codes, tiles of 64 and blocks of 128.
_DEPTHS = (1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257)
_PLAIN = "aper=unit,wper=unit"


def fp8_steps() -> tuple[Step, ...]:
    """The chain of ``gemm_fp8``."""
    shapes = ("M=1,K=32,N=16", "M=2,K=33,N=9", "M=16,K=160,N=16", "M=33,K=48,N=5")
    # Whole blocks for kernels that need them, short last ones for the others.
    blocks = ("M=4,K=256,N=256", "M=3,K=129,N=130", "M=5,K=300,N=257", "M=2,K=384,N=384")
    return (
        Step(
            "codes",
            "products with an identity, scales of 1, no bias",
            (
                f"M=2,K=256,N=256,a=ramp,b=eye,{_PLAIN}",
                f"M=256,K=256,N=2,a=eye,b=ramp,{_PLAIN}",
                f"M=16,K=16,N=16,a=sub(1),b=eye,{_PLAIN}",
                f"M=16,K=16,N=16,a=top,b=eye,{_PLAIN}",
                f"M=16,K=16,N=16,a=eye,b=nan(1),{_PLAIN}",
            ),
        ),
        Step(
            "accumulation",
            "whole numbers, whose sums are exact, and any codes, by the bound; scales of 1, no bias",
            (
                *(f"M={rows},K={depth},N=16,{_PLAIN}" for depth in _DEPTHS for rows in (1, 16)),
                *(f"{shape},a=random(1),b=random(2),{_PLAIN}" for shape in shapes),
                f"M=4,K=2048,N=16,a=random(1),b=random(2),{_PLAIN}",
                f"M=4,K=512,N=16,a=max,b=max,{_PLAIN}",
            ),
        ),
        Step(
            "activation scale",
            "weight scales of 1, no bias",
            (
                *(f"{shape},aper={per},wper=unit" for shape in shapes for per in ("tensor", "token")),
                "M=16,K=16,N=16,aper=token,wper=unit",
                *(f"{shape},aper=block,wper=unit" for shape in blocks),
            ),
        ),
        Step(
            "weight scale",
            "activation scales of 1, no bias",
            (
                *(f"{shape},aper=unit,wper={per}" for shape in shapes for per in ("tensor", "channel")),
                "M=16,K=16,N=16,aper=unit,wper=channel",
                *(f"{shape},aper=unit,wper=block" for shape in blocks),
            ),
        ),
        Step(
            "order of the scales",
            "both scales, no bias",
            (
                *(f"{shape},scales=ordinary({i})" for i, shape in enumerate(shapes)),
                *(f"{shape},aper=block,wper=block,scales=ordinary({i})" for i, shape in enumerate(blocks)),
            ),
        ),
        Step(
            "bias",
            "sums of 0, then products with bias",
            (
                *(f"M=3,K=32,N=16,a=zeros,bias={dtype},{_PLAIN}" for dtype in ("fp32", "fp16", "bf16")),
                *(f"{shape},bias=fp32" for shape in shapes),
                "M=3,K=129,N=130,aper=block,wper=block,bias=fp32",
            ),
        ),
        Step(
            "output rounding",
            "products beyond and between the numbers of the output dtype",
            tuple(f"M=4,K=64,N=16,scales={scales}(1)" for scales in ("ties", "huge", "subnormal")),
            ("fp16", "bf16", "fp32"),
        ),
        Step(
            "all together",
            "nothing left out",
            (
                *(f"{shape},bias=fp16,a=random(1)" for shape in shapes),
                "M=5,K=300,N=257,aper=block,wper=block,bias=bf16",
            ),
        ),
    )
