"""What the steps of the int8 matrix product share: dimensions, and the data they stand for."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from conformance.axes import Labels, spread
from conformance.case import Case
from conformance.dims import Choice, Patterned
from conformance.formats._gemm_bias import BIAS_PATTERNS, FINITE_BIASES, bias_values
from conformance.formats._grouped import DTYPES, SCALES, Size
from conformance.patterns import WORD_PATTERNS, Pattern, scale_values, word_bytes
from conformance.randomness import raw_bytes, raw_ints
from kernels._gemm import LAYOUTS, ORDERS

CODES = {"int8": torch.int8, "uint8": torch.uint8}
# Tiles end at 16, 32 and 64, words at 4 bytes, instructions at 16 and 32 codes.
EDGES = (8, 1, 2, 3, 5, 7, 16, 17, 31, 33)
DEPTHS = (32, 1, 2, 3, 4, 5, 7, 15, 16, 17, 31, 33, 36, 48, 63, 64, 65, 100, 127, 128, 129, 257)
# Whole numbers of the deepest tiles, as real layers have: what is lost at the end of K is a whole tile.
WHOLE_DEPTHS = (256, 512, 768, 1024)
# Elements of activations, weight and output that are drawn; larger ones are asked for by name.
LIMITS = (1024, 3072, 150)


def _rows(drawn: Mapping[str, Any]) -> tuple[int, ...]:
    return (2, 1, 3, 5, 8, 9, 16, 17)


def _depths(drawn: Mapping[str, Any]) -> tuple[int, ...]:
    """Inner dimensions; as many as rows too, where a wrong axis does not show as a wrong shape."""
    rows = drawn.get("M", 1)
    return (*(k for k in (*DEPTHS, *WHOLE_DEPTHS, rows) if k > 0 and k * rows <= LIMITS[0]), 1)


def _columns(drawn: Mapping[str, Any]) -> tuple[int, ...]:
    """Outputs; as many as rows or as the inner dimension too."""
    rows, depth = drawn.get("M", 1), drawn.get("K", 1)
    return (
        *(
            n
            for n in (*EDGES, depth, depth, rows, 64, 65)
            if 0 < n <= LIMITS[1] // max(depth, 1) and (n == rows or n * rows <= LIMITS[2])
        ),
        1,
    )


ROWS = Size("M", 2, _rows)
DEPTH = Size("K", 32, _depths)
COLUMNS = Size("N", 8, _columns)
# A row that is quantized has an element.
LENGTH = dataclasses.replace(DEPTH, minimum=1)

CODE_PATTERNS = {**WORD_PATTERNS, "max": False, "extremes": True, "eye": False}
# The identity as a weight leaves the activations as they are; asked for by name.
_DRAWN_CODES = tuple(name for name in CODE_PATTERNS if name != "eye")
CODE_DTYPE = Choice("codes", "int8", choices=tuple(CODES))
LEFT = Patterned("a", Pattern("random", 0), known=CODE_PATTERNS, generated=_DRAWN_CODES)
RIGHT = Patterned("b", Pattern("random", 0), known=CODE_PATTERNS, generated=_DRAWN_CODES)
LAYOUT_B = Choice("lay", "NK", choices=LAYOUTS)
# The first one twice: of it most oracles have something to say.
ORDER = Choice("order", "a-w", choices=tuple(ORDERS), generated=("a-w", *ORDERS))
A_PER = Choice("aper", "token", choices=("token", "tensor"))
# oneDNN's only one.
A_PER_TENSOR = Choice("aper", "tensor", choices=("tensor", "token", "unit"), generated=("tensor", "token"))
# A scale of 1, which leaves torch's int32 tensors of a scale by channel.
A_PER_UNIT = Choice(
    "aper", "unit", choices=("unit", "token", "tensor"), generated=("token", "unit", "tensor", "token")
)
# A scale of 1 shows the other steps alone (conformance/isolation.py).
W_PER = Choice("wper", "channel", choices=("channel", "tensor", "unit"), generated=("channel", "tensor"))
ZERO = Choice("azero", "none", choices=("none", "token", "tensor"))
ZEROS = Patterned(
    "azp",
    Pattern("random", 0),
    known={"mid": False, "lowest": False, "highest": False, "ramp": False, "random": True},
)
BIAS = Choice("bias", "none", choices=("none", *DTYPES))
BIAS_VALUES = Patterned(
    "bvals", Pattern("steps"), known=BIAS_PATTERNS, generated=("steps", "fine", *FINITE_BIASES)
)
EPILOGUE = (ORDER, A_PER, W_PER, ZERO, ZEROS, BIAS, BIAS_VALUES, SCALES)


def codes(pattern: Pattern, shape: tuple[int, int], dtype: torch.dtype, side: str) -> torch.Tensor:
    """Operand of ``shape``: any byte.

    ``eye`` is the identity, ``max`` has 0x7F everywhere, ``extremes`` the bytes 0x80, 0x7F, 0xFF and
    0, whose products are the largest of either sign. ``side`` keeps equal patterns of both operands apart."""
    count = shape[0] * shape[1]
    if pattern.name == "extremes":
        data = np.array([0x80, 0x7F, 0xFF, 0], np.uint8)[raw_ints(f"{side}/{pattern.number}", count, 4)]
    elif pattern.name == "eye":
        data = np.eye(*shape, dtype=np.uint8).reshape(-1)
    elif pattern.name == "max":
        data = np.full(count, 0x7F, np.uint8)
    elif pattern.name == "random":
        data = raw_bytes(f"{side}/{pattern.number}", count)
    else:
        data = word_bytes(pattern, count)
    return torch.from_numpy(data).view(dtype).reshape(shape)


def right_operand(case: Case) -> torch.Tensor:
    """int8 [N, K], or [K, N] with ``lay=KN``: the same weight, stored the other way round."""
    b = codes(case["b"], (case["N"], case["K"]), torch.int8, "b")
    return b.t().contiguous() if case["lay"] == "KN" else b


def left_operand(case: Case) -> torch.Tensor:
    return codes(case["a"], (case["M"], case["K"]), CODES[case["codes"]], "a")


def _scales(pattern: Pattern, count: int, side: int) -> torch.Tensor:
    """float32 [count]; ``side`` keeps the scales of activations and weight apart."""
    number = None if pattern.number is None else 2 * pattern.number + side
    return scale_values(Pattern(pattern.name, number), count, torch.float32)


def activation_scales(case: Case) -> torch.Tensor:
    if case["aper"] == "unit":
        return torch.ones(1)
    return _scales(case["scales"], case["M"] if case["aper"] == "token" else 1, 0)


def weight_scales(case: Case) -> torch.Tensor:
    if case["wper"] == "unit":
        return torch.ones(1)
    return _scales(case["scales"], case["N"] if case["wper"] == "channel" else 1, 1)


def bias(case: Case) -> torch.Tensor | None:
    """[N] of the case's pattern; a format without ``bvals`` has ``steps``."""
    if case["bias"] == "none":
        return None
    pattern = case["bvals"] if "bvals" in case else BIAS_VALUES.default  # noqa: SIM401 - a case has no get
    return bias_values(pattern, case["N"], DTYPES[case["bias"]])


def zeros(case: Case, unsigned: bool) -> torch.Tensor | None:
    """Zero points int32 [M] or [1], over the whole range of the activations' codes."""
    if case["azero"] == "none":
        return None
    count, pattern = case["M"] if case["azero"] == "token" else 1, case["azp"]
    flat = np.arange(count, dtype=np.int64)
    if pattern.name == "random":
        above = raw_ints(f"zero/{pattern.number}", count, 256)
    else:
        above = {"mid": flat * 0 + 128, "lowest": flat * 0, "highest": flat * 0 + 255, "ramp": flat % 256}[
            pattern.name
        ]
    return torch.from_numpy(above - (0 if unsigned else 128)).to(torch.int32)


# --- floats -----------------------------------------------------------------------------------

ACTIVATIONS = {
    "zeros": False,
    "ones": False,
    "onehot": True,
    "ramp": False,
    "ordinary": True,
    "whole": True,
    "ties": True,
    "near": True,
    "last": True,
    "outlier": True,
    "holes": True,
    "tiny": True,
    "huge": True,
    "inf": True,
    "nan": True,
}
FINITE = tuple(name for name in ACTIVATIONS if name not in ("inf", "nan"))
X = Patterned("x", Pattern("ordinary", 0), known=ACTIVATIONS, generated=FINITE)
X_DTYPE = Choice("xdtype", "fp16", choices=tuple(DTYPES))
# rule -> the rule of the type, and whether its codes are signed
RULES = {
    "scale": ("scale", True),
    "full": ("full", True),
    "absmax": ("absmax", True),
    "minmax": ("minmax", True),
    "minmax-u8": ("minmax", False),
}
RULE = Choice("rule", "scale", choices=tuple(RULES))
# That of torchao's int8 layers.
RULE_FULL = Choice("rule", "full", choices=("full", *(rule for rule in RULES if rule != "full")))


def activations(pattern: Pattern, shape: tuple[int, int], dtype: torch.dtype) -> torch.Tensor:
    """Activations of ``shape``; but for the first four, every row has its own magnitude.

    ======== ========================================================================
    ramp     0, 1, 2, ... over all elements
    ordinary uniform around 0
    whole    whole steps of a scale that is a power of two, the first element with the largest code:
             quantizing by ``scale`` or ``absmax`` loses nothing
    ties     whole and half steps of a scale that is a power of two: products x * inverse are exact
             ties; the first element has the largest code
    near     as near to half steps of an odd scale as the dtype allows (float32: one ULP off, or none)
    last     ordinary, and the last element is twice the largest possible
    outlier  ordinary, one element of each row 512 times as large
    holes    ordinary; every third row is 0, and every third has one sign
    tiny     the smallest numbers of ``dtype``, subnormal ones among them
    huge     up to the largest number of ``dtype``
    inf, nan ordinary, one element of every other row replaced
    ======== ========================================================================
    """
    n_rows, n_cols = shape
    count, label = n_rows * n_cols, f"x/{pattern.name}/{pattern.number}"
    flat = np.arange(count, dtype=np.int64)
    row, col = flat // max(n_cols, 1), flat % max(n_cols, 1)
    if pattern.name in ("zeros", "ones", "ramp"):
        values = {"zeros": flat * 0.0, "ones": flat * 0 + 1.0, "ramp": flat * 1.0}[pattern.name]
    elif pattern.name == "onehot":
        values = (flat == (pattern.number or 0) % max(count, 1)) * 1.0
    elif pattern.name == "whole":
        steps = raw_ints(label, count, 255) - 127
        steps[col == 0] = 127
        values = steps * 2.0 ** (raw_ints(label + "/row", n_rows, 9) - 8)[row]
    elif pattern.name == "ties":
        # Up to 8 bits, which every dtype has. 127 steps for the symmetric rules, 255 between the ends.
        half = raw_ints(label, count, 507) - 253
        half[col == 0] = 254
        values = half * 2.0 ** (raw_ints(label + "/row", n_rows, 9) - 8)[row]
    elif pattern.name == "near":
        half = 2 * raw_ints(label, count, 254) - 253
        half[col == 0] = 254
        values = half * ((raw_ints(label + "/row", n_rows, 2**22) + 2**22) / 254 / 2**22)[row]
    else:
        values = (raw_ints(label, count, 2**24) - 2**23) / 2**23
        where = raw_ints(label + "/where", n_rows, max(n_cols, 1))[row] == col
        if pattern.name == "last":
            values[col == n_cols - 1] = 2
        elif pattern.name == "outlier":
            values[where] *= 512
        elif pattern.name == "holes":
            values = np.where(row % 3 == 1, 0.0, np.where(row % 3 == 2, np.abs(values), values))
        exponent = (raw_ints(label + "/row", n_rows, 9) - 5)[row]
        info = torch.finfo(dtype)
        if pattern.name == "tiny":
            values = values * float(info.smallest_normal) * 2.0**exponent
        elif pattern.name == "huge":
            values = values * float(info.max) * 2.0 ** np.minimum(exponent, 0)
        else:
            values = values * 2.0**exponent
        if pattern.name in ("inf", "nan"):
            sign = np.where(raw_ints(label + "/sign", n_rows, 2), -1.0, 1.0)[row]
            values = np.where(where & (row % 2 == 0), sign * float(pattern.name), values)
    with np.errstate(over="ignore", under="ignore"):
        return torch.from_numpy(values.astype(np.float32)).to(dtype).reshape(shape)


# --- words about elements ---------------------------------------------------------------------


def product_axes(weight: Any) -> Labels:
    """Labels of an output [M, N]: token, channel, its place in an instruction's 8, and the scale."""
    shape = tuple(weight.output_shape)
    return spread(
        shape,
        token=np.arange(shape[0])[:, None],
        channel=np.arange(shape[1]),
        lane=np.arange(shape[1]) % 8,
        scale=np.arange(shape[0])[:, None] * shape[1] + np.arange(shape[1]),
    )


def scaled_words(model: Any, index: tuple[int, ...]) -> str:
    """Where an element of a scaled product sits: accumulator, zero point, scales, bias."""
    m, n = index
    zero, total = int(model.a_zero[m]), int(model.acc[m, n])
    words = f"token {m}, channel {n}, accumulator {total}"
    if zero or int(model.corrected()[m, n]) != total:
        words += f" - {zero} * {int(model.sums[n])}"
    words += f", scales {model.a_scale[m]:.6g} and {model.w_scale[n]:.6g}"
    return words if model.bias is None else f"{words}, bias {model.bias[n]:.6g}"
