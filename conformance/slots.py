"""In which slot of a packed word the value of each slot is found: a picture of a wrong order."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

# Fewer words correlate by chance: two random slots of 16 words do so by 1/4.
LEAST_WORDS = 16
# The mean of a word is taken off, since its codes share a zero: what is left of two does not vary freely.
LEAST_SLOTS = 4
MOST_WORDS = 65_536


def found_in(
    got: np.ndarray, want: np.ndarray, axes: Mapping[str, np.ndarray], steps: np.ndarray | None
) -> np.ndarray | None:
    """Correlation of got at one slot with want at another, over words.

    Args:
        got, want: float64, of one shape.
        axes: labels; ``word`` and ``slot`` are needed.
        steps: local step of each element; values are taken in steps, so that words whose slots have
            different scales compare. None: values as they are.

    Returns:
        float64 [slots, slots], NaN where a slot does not vary; row: slot of got. None without labels
        or with too few whole words.
    """
    if "word" not in axes or "slot" not in axes:
        return None
    word, slot = axes["word"].reshape(-1), axes["slot"].reshape(-1)
    n_slots = int(slot.max(initial=0)) + 1
    n_words = min(int(word.max(initial=-1)) + 1, MOST_WORDS)
    if n_slots < LEAST_SLOTS or n_words < LEAST_WORDS:
        return None
    g, w = got.reshape(-1), want.reshape(-1)
    with np.errstate(all="ignore"):
        if steps is not None:
            g, w = g / steps.reshape(-1), w / steps.reshape(-1)
        g, w = np.where(np.isfinite(g), g, 0.0), np.where(np.isfinite(w), w, 0.0)
    kept = word < n_words
    tables = []
    for values in (g, w):
        table = np.full((n_words, n_slots), np.nan)
        table[word[kept], slot[kept]] = values[kept]
        tables.append(table)
    whole = ~np.isnan(tables[1]).any(axis=1)  # a last word may be short
    if np.count_nonzero(whole) < LEAST_WORDS:
        return None
    with np.errstate(all="ignore"):
        a, b = (_standard(table[whole] - table[whole].mean(axis=1, keepdims=True)) for table in tables)
        return a.T @ b / len(a)


def _standard(table: np.ndarray) -> np.ndarray:
    """Columns with mean 0 and standard deviation 1; NaN where a column is constant."""
    centred = table - table.mean(axis=0)
    return centred / centred.std(axis=0)
