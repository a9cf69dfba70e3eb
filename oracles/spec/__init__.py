"""The exact model of each format: NumPy, written from the format's text, slow and obvious.

``unpack(weight)`` gives a model whose fields are the decoded integers, scales and tables;
``model.values()`` the products in float32 or float64, before the output rounding, which is
:func:`oracles.spec.rounding.round_to`. A model is also what the diagnosis distorts: each
known fault is a change of one of its fields.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np


class Model(Protocol):
    """A weight, unpacked. K, N, R, C as in the format's own text."""

    def values(self) -> np.ndarray:
        """Values before output rounding: float32 where the format defines a float32
        intermediate, else float64 that holds the exact product. Shape of the output."""
        ...

    def steps(self) -> np.ndarray:
        """Local quantization step of each element (float64, shape of the output): the group's
        |scale|, or the smallest codebook gap times the block's |absmax|."""
        ...
