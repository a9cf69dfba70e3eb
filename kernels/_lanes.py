"""Device helpers of kernels whose lanes decode several elements that lie side by side.

``tl.join`` and one reshape compile to the same code as ``tl.interleave`` (seen with Triton 3.2, 3.4,
3.9) and take half the time in the interpreter, where each call of a @triton.jit function costs a
millisecond.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


def side_by_side(dtype: torch.dtype) -> int:
    """Elements of ``dtype`` that one store of 16 bytes holds, so that no lane needs another's.

    With more of them a store's values come from several lanes, by way of shared memory.
    """
    return 16 // dtype.itemsize


@triton.jit
def spread(x, COUNT: tl.constexpr):
    """Each element of ``x`` COUNT times in a row: 1, 2, 4 or 8."""
    if COUNT >= 2:
        x = tl.join(x, x)
    if COUNT >= 4:
        x = tl.join(x, x)
    if COUNT >= 8:
        x = tl.join(x, x)
    return tl.reshape(x, [x.numel])
