"""Faults of the result of an int8 matrix product, after scales and bias."""

from __future__ import annotations

import numpy as np

from conformance.faults import Fault
from conformance.faults import _gemm as wrong

RESULT = tuple(
    Fault(
        f"result-{verb}-to-integer",
        f"{function}(y): the result, its bias included, as a whole number and back",
        "results below 1 are 0, all lose their fraction: garbage",
        "cast float32 to the output dtype; only a requantized output is an integer",
        wrong.after_bias(wrong.whole(rounding)),
        kind="scales",
        trigger=f"a result with a fraction{where}",
    )
    for verb, function, rounding, where in (
        ("truncated", "trunc", np.trunc, ", and a bias with one; without a bias it is the product"),
        ("rounded", "rint", np.rint, "; hides where scales and bias are whole numbers"),
    )
)
