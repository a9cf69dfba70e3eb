"""Faults of a product whose activations are quantized on the way: those of each step."""

from __future__ import annotations

from conformance.faults import gemm, gemm_quantize

# What means the same in both steps stands once, as the product has it: a stored scale that is another
# one, and a zero point that is left out. The last entry has no product.
_PRODUCT = {fault.name for fault in gemm.FAULTS}
_SAME = (
    "scale-of-next-row",
    "scale-of-next-row-wrapped",
    "scale-of-previous-row-wrapped",
    "stored-scale-through-fp16",
    "stored-scale-through-bf16",
    "absmax-decoded-by-division",
)

FAULTS = (
    tuple(fault for fault in gemm_quantize.FAULTS if fault.name not in _PRODUCT and fault.name not in _SAME)
    + gemm.FAULTS
)
