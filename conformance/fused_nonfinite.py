"""What a product must do with NaN and infinities in x: they stay in their token, and are not lost there.

A token with NaN or inf at k has no finite y where w[k] is not 0. Where it is 0, IEEE 754 says NaN, but a
kernel may leave such a term out: not judged. The other tokens have their usual bound.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from conformance.verdict import Cause

# Numbers of tokens that are tried: one, and more than a tile of 32.
TOKENS = (1, 33)

LOST = Cause(
    "nonfinite-activation-lost",
    "NaN or infinity in x gives a finite y: x is clamped, replaced, or converted with saturation",
    "an overflow in the layers before goes on as ordinary numbers, and nobody sees it",
    "multiply x as it is; clamp before the layer if the model asks for it",
)
SPREAD = Cause(
    "nonfinite-activation-spread",
    "NaN or infinity in one token spoils y of others",
    "one bad sequence of a batch spoils the rest of it",
    "each token's sum takes its own row of x alone: masks of tiles, scales of x that several tokens share",
)
AGAIN = Cause(
    "call-leaves-state",
    "a second product with as many tokens is wrong, the first was right: something is left from it",
    "the first prompt is answered well, and those after it are not",
    "zero the workspace of a split K, and its counters, in each call; keep nothing by shape alone",
)


@dataclasses.dataclass(frozen=True)
class Spoiled:
    """An x that is not finite.

    Attributes:
        x: float64 [M, K].
        clean: the same with 0 there, to bound the other tokens with.
        places: (token, k) of each value that is not finite.
        words: where, for the report.
    """

    x: np.ndarray
    clean: np.ndarray
    places: tuple[tuple[int, int], ...]
    words: str

    def lost(self, y: np.ndarray, used: np.ndarray) -> np.ndarray:
        """bool [M, N]: outputs that are finite and must not be, where ``used`` (bool [K, N]) is true."""
        found = np.zeros(y.shape, bool)
        for token, k in self.places:
            found[token] = np.isfinite(y[token]) & used[k]
        return found

    def others(self) -> np.ndarray:
        """bool [M]: tokens that are finite."""
        found = np.ones(len(self.x), bool)
        found[[token for token, _ in self.places]] = False
        return found


def spoiled(xs: Sequence[np.ndarray], used: np.ndarray) -> Iterator[Spoiled]:
    """Inputs of the numbers of tokens in :data:`TOKENS`, made of x float64 [M, K] of these sizes."""
    k = int(used.sum(axis=1).argmax())
    for clean in xs:
        tokens = len(clean)
        if tokens == 1:
            yield _with(clean, {0: np.nan}, k)
            yield _with(clean, {0: np.inf}, k)
        else:
            yield _with(clean, {0: np.nan, tokens // 2: np.inf, tokens - 1: -np.inf}, k)


def _with(x: np.ndarray, values: dict[int, float], k: int) -> Spoiled:
    dirty, clean = x.copy(), x.copy()
    for token, value in values.items():
        dirty[token, k], clean[token, k] = value, 0.0
    names = ", ".join(f"{value} in token {token}" for token, value in values.items())
    return Spoiled(dirty, clean, tuple((token, k) for token in values), f"M = {len(x)}, k = {k}: {names}")
