"""Catalogue of known faults, each a deliberately wrong decoder.

A fault serves twice: planted in a kernel it must be caught, and on a mismatch it is an
explanation, named only when it reproduces the kernel's output bit for bit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from oracles.spec import Model
from oracles.spec.rounding import round_to


@dataclasses.dataclass(frozen=True)
class Values:
    """A model given by its values alone."""

    array: np.ndarray

    def values(self) -> np.ndarray:
        return self.array

    def steps(self) -> np.ndarray:
        return np.zeros(self.array.shape)


@dataclasses.dataclass(frozen=True)
class Context:
    """What a wrong decoder may look at: the packed weight, its exact model, the output dtype.

    ``may`` says which bits a kernel that computes a (distorted) model may give, as a bool mask; None where
    a format prescribes every rounding.
    """

    weight: Any
    model: Model
    dtype: torch.dtype
    may: Callable[[Model, np.ndarray], np.ndarray] | None = None

    def bits(self, model: Model) -> np.ndarray:
        """Output of a (distorted) model, correctly rounded."""
        return round_to(model.values(), self.dtype)


# What a fault is about, by the word in its entry; the titles are those of the catalogue's sections.
KINDS = {
    "zeros": "Zero points",
    "order": "Order of fields",
    "bits": "Bits and signs of a field",
    "groups": "Groups, blocks and channels",
    "tails": "Short last groups and blocks",
    "scales": "Scales",
    "codebooks": "Codebooks",
    "sparse": "Outliers and full rows",
    "precision": "Precision and rounding",
    "sums": "Sums of products",
    "bias": "Bias",
}


@dataclasses.dataclass(frozen=True)
class Fault:
    """A wrong decoder.

    Attributes:
        name: id, in reports and tests.
        arithmetic: one line that says what is computed instead.
        effect: what it does to a model that runs with it.
        fix: where to look.
        decode: output bit patterns under this fault, or None where it does not apply.
        links: real occurrences.
        kind: a key of :data:`KINDS`.
        trigger: the least input that shows it, and where it hides.
    """

    name: str
    arithmetic: str
    effect: str
    fix: str
    decode: Callable[[Context], np.ndarray | None]
    links: tuple[str, ...] = ()
    kind: str = dataclasses.field(kw_only=True)
    trigger: str = dataclasses.field(kw_only=True)
