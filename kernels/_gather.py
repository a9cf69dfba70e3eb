"""``tl.gather``, which looks entries up in shared memory, where Triton has it.

A lookup by a load costs a cache line for each table that a warp reads at once; in shared memory 32
lanes read 32 tables in one step.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Triton 3.2 has no gather. That of 3.3 runs in the interpreter, but its compiler fails on it
# (a pass named TritonGPUOptimizeThreadLocality; seen with 3.3.0 and 3.3.1).
GATHERS = tuple(int(part) for part in triton.__version__.split(".")[:2]) >= (3, 4)

# Named within a kernel, even in a branch that is never taken, it would stop Triton before 3.3.
if hasattr(tl, "gather"):

    @triton.jit
    def take(table, index):
        """``table[index[i, ...], ...]`` along the first axis; the other axes are the same in both."""
        return tl.gather(table, index, 0)

else:

    @triton.jit
    def take(table, index):
        """Stands in where there is none; launchers look at ``GATHERS``."""
        tl.static_assert(False, "this Triton has no gather")
