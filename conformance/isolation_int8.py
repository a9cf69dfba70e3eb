"""The steps of an int8 matrix product, each shown alone; the rest is :mod:`conformance.isolation`."""

from __future__ import annotations

from conformance.isolation_step import Step

# Inner dimensions around words of 4 codes, instructions of 16 and 32, and tiles; one token and many.
_DEPTHS = (1, 3, 4, 5, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 129)
# Numbers of tokens and outputs between and beyond those of a tile, and a deep sum.
_LARGER = ("M=24,K=48,N=9", "M=48,K=16,N=7", "M=2,K=24,N=300", "M=2,K=512,N=3", "M=2,K=4096,N=3")
_PLAIN = "aper=unit,wper=unit,scales=one"


def operand_steps() -> tuple[Step, ...]:
    shapes = ("M=1,K=32,N=8", "M=2,K=33,N=9", "M=17,K=64,N=17", "M=33,K=40,N=5")
    return (
        Step(
            "accumulation",
            "scales of 1, no zero points, no bias",
            (
                *(f"M=2,K=33,N=5,a=onehot({bit}),b=random(1),{_PLAIN}" for bit in (0, 8, 250, 264, 520)),
                *(
                    f"M={rows},K={depth},N=3,a=random(2),b=random(2),{_PLAIN}"
                    for depth in _DEPTHS
                    for rows in (1, 2)
                ),
                *(f"{shape},a=random(3),b=random(3),{_PLAIN}" for shape in shapes),
                f"M=2,K=40,N=4,a=extremes(1),b=extremes(2),{_PLAIN}",
                # Sums beyond 2**24, which float32 does not hold to the unit.
                f"M=2,K=1103,N=4,a=max,b=max,{_PLAIN}",
                *(f"{shape},a=random(5),b=random(5),{_PLAIN}" for shape in _LARGER),
                f"M=2,K=33,N=5,codes=uint8,a=ones,b=random(1),{_PLAIN}",
                f"M=5,K=33,N=5,lay=KN,a=random(4),b=random(4),{_PLAIN}",
            ),
        ),
        Step(
            "zero point",
            "scales of 1, no bias",
            tuple(
                f"M=3,K=33,N=5,azero={per},azp=random(1),codes={codes},{_PLAIN}"
                for per in ("tensor", "token")
                for codes in ("int8", "uint8")
            ),
        ),
        Step(
            "activation scale",
            "weight scales of 1, no zero points, no bias",
            (
                *(f"{shape},aper={per},wper=unit" for shape in shapes for per in ("tensor", "token")),
                "M=8,K=16,N=8,aper=token,wper=unit",
            ),
        ),
        Step(
            "weight scale",
            "activation scales of 1, no zero points, no bias",
            (
                *(f"{shape},aper=unit,wper={per}" for shape in shapes for per in ("tensor", "channel")),
                "M=8,K=16,N=8,aper=unit,wper=channel",
            ),
        ),
        Step(
            "order of the scales",
            "both scales, no zero points, no bias",
            tuple(f"{shape},aper=token,wper=channel,scales=ordinary({i})" for i, shape in enumerate(shapes)),
        ),
        Step(
            "bias",
            "accumulators of 0, then products with bias",
            tuple(f"M=3,K=32,N=9,a=zeros,bias={dtype},{_PLAIN}" for dtype in ("fp32", "fp16", "bf16"))
            + tuple(f"{shape},bias=fp32,aper=token" for shape in shapes)
            + ("M=9,K=32,N=9,a=zeros,bias=fp32,aper=unit,wper=unit,scales=one",),
        ),
        Step(
            "output rounding",
            "products beyond and between the numbers of the output dtype",
            (
                "M=4,K=64,N=9,scales=ties(1),aper=token",
                "M=4,K=64,N=9,scales=huge(1),aper=token",
                "M=4,K=64,N=9,scales=subnormal(1),aper=token",
            ),
            ("fp16", "bf16", "fp32"),
        ),
        Step(
            "all together",
            "nothing left out",
            tuple(f"{shape},aper=token,azero=token,bias=fp16,codes=uint8" for shape in shapes),
        ),
    )


def activation_steps() -> tuple[Step, ...]:
    shapes = ("M=1,K=32,N=8", "M=2,K=33,N=9", "M=17,K=40,N=9", "M=33,K=24,N=5")
    whole = "x=whole(1)"
    return (
        Step(
            "accumulation",
            "activations that are whole multiples of their scale, weight scales of 1, no bias",
            tuple(
                f"M={rows},K={depth},N=3,{whole},wper=unit"
                for depth in _DEPTHS
                for rows in (1, 2)
                if depth > 1
            )
            + tuple(f"{shape},{whole},wper=unit" for shape in (*shapes, *_LARGER)),
        ),
        Step(
            "quantization",
            "a weight that is the identity, scales of 1, no bias",
            (
                *(
                    f"M=5,K=16,N=16,b=eye,wper=unit,x={x},xdtype={dtype}"
                    for x in ("whole(1)", "ties(1)", "near(1)", "ordinary(1)", "outlier(1)", "holes(1)")
                    for dtype in ("fp16", "fp32")
                ),
                "M=3,K=40,N=40,b=eye,wper=unit,x=last(1)",
                "M=5,K=16,N=16,b=eye,wper=unit,x=huge(1)",
            ),
        ),
        Step(
            "weight scale",
            "activations that are whole multiples of their scale, no bias",
            tuple(f"{shape},{whole},wper={per}" for shape in shapes for per in ("tensor", "channel")),
        ),
        Step(
            "bias",
            "activations of 0, then products with bias",
            tuple(f"M=3,K=32,N=9,x=zeros,wper=unit,bias={dtype}" for dtype in ("fp32", "fp16", "bf16"))
            + tuple(f"{shape},{whole},bias=fp32" for shape in shapes),
        ),
        Step(
            "output rounding",
            "products beyond and between the numbers of the output dtype",
            (
                "M=4,K=32,N=9,scales=ties(1)",
                "M=4,K=32,N=9,scales=huge(1)",
                "M=4,K=32,N=9,scales=subnormal(1)",
            ),
            ("fp16", "bf16", "fp32"),
        ),
        Step(
            "all together",
            "nothing left out",
            tuple(f"{shape},bias=fp16" for shape in shapes),
        ),
    )
