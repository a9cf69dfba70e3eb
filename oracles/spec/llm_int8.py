"""Exact model of LLM.int8() rows (the text is in ``kernels/llm_int8.py``)."""

from __future__ import annotations

import dataclasses

import numpy as np

from kernels.llm_int8 import LLMInt8Weight

# float32 nearest to the literal upstream multiplies by; it is the float32 nearest 1/127.
INV_127 = np.float32(7.874015718698502e-3)


@dataclasses.dataclass(frozen=True)
class LLMInt8Model:
    """Attributes: codes int64 [R, C]; absmax float32 [R]; row int64 [R], the scale a row uses."""

    codes: np.ndarray
    absmax: np.ndarray
    row: np.ndarray

    def values(self) -> np.ndarray:
        with np.errstate(all="ignore"):
            product = self.codes.astype(np.float32) * self.absmax[self.row][:, None]
            return product * INV_127

    def steps(self) -> np.ndarray:
        with np.errstate(all="ignore"):
            step = np.abs(self.absmax[self.row].astype(np.float64)) / 127
        return np.broadcast_to(step[:, None], self.codes.shape)


def unpack(weight: LLMInt8Weight) -> LLMInt8Model:
    codes = weight.codes.cpu().numpy().astype(np.int64)
    return LLMInt8Model(codes, weight.absmax.cpu().numpy(), np.arange(codes.shape[0]))
