"""Faults of a whole int8 matrix product: those of its sums, and those of scaling them."""

from __future__ import annotations

from conformance.faults import gemm_accumulate, gemm_epilogue

FAULTS = gemm_accumulate.FAULTS + gemm_epilogue.FAULTS
