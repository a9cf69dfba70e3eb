"""Values that a bias has in the steps of the int8 matrix product."""

from __future__ import annotations

import numpy as np
import torch

from conformance.patterns import Pattern
from conformance.randomness import raw_ints

# name -> whether a number in parentheses follows; from simple to wild.
BIAS_PATTERNS = {
    "negzero": False,
    "steps": False,
    "fine": True,
    "tiny": True,
    "huge": True,
    "mixed": True,
    "inf": True,
    "nan": True,
}
FINITE_BIASES = tuple(name for name in BIAS_PATTERNS if name not in ("inf", "nan"))


def bias_values(pattern: Pattern, count: int, dtype: torch.dtype) -> torch.Tensor:
    """Bias [count] of ``dtype`` (float16, bfloat16 or float32).

    ======== ======================================================================================
    negzero  -0, which leaves a product of -0 as it is, where +0 makes it +0
    steps    between -8 and 8 in steps of 2**-12
    fine     either sign, 2**-6 to 2**7, all bits of the significand in use: two bfloat16 that add up to
             a float32, or an integer of fixed point, cannot hold them
    tiny     either sign, around the smallest normal number of ``dtype``, subnormal ones among them
    huge     either sign, the last four binades of ``dtype``
    mixed    one in four each as fine, tiny and huge; zeros of either sign
    inf, nan fine, with one in four and the last one replaced
    ======== ======================================================================================
    """
    label = f"bias/{pattern.name}/{pattern.number}"
    if pattern.name == "steps":
        steps = raw_ints("bias", count, 2**16) - 2**15
        return _rounded(steps / 2**12, dtype)
    if pattern.name == "negzero":
        return torch.full((count,), -0.0, dtype=dtype)
    coin = raw_ints(label + "/coin", count, 4)
    sign = 1.0 - 2 * raw_ints(label + "/sign", count, 2)
    # Odd, so that the last bit of a float32 is in use; in 1 .. 2.
    significand = 1 + (2 * raw_ints(label + "/significand", count, 2**22) + 1) / 2**23
    info = torch.finfo(dtype)
    fine = sign * significand * 2.0 ** (raw_ints(label + "/exponent", count, 13) - 6)
    tiny = sign * significand * float(info.smallest_normal) * 2.0 ** -raw_ints(label + "/tiny", count, 4)
    # Below 2, so that no rounding makes it infinite.
    most = float(info.max) * (1 - 2.0**-24)
    huge = sign * significand / 2 * most * 2.0 ** -raw_ints(label + "/huge", count, 4)
    if pattern.name == "mixed":
        return _rounded(np.choose(coin, (fine, tiny, huge, sign * 0.0)), dtype)
    if pattern.name in ("inf", "nan"):
        special = coin == 0
        special[-1:] = True
        fine[special] = float(pattern.name) * sign[special]
    return _rounded({"tiny": tiny, "huge": huge}.get(pattern.name, fine), dtype)


def _rounded(values: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    with np.errstate(under="ignore"):
        return torch.from_numpy(values.astype(np.float32)).to(dtype)
