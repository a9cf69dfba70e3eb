"""Pictures of an error: where it is, how it is signed, and what it has to do with groups and slots.

matplotlib is imported when a picture is drawn, and only its file backends are used. Cells hold many
elements of a large output; each shows the one with the largest error in either direction, never a
mean, so that one wrong element in millions stays visible.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from conformance import panels
from conformance.axes import LINES
from conformance.bits import is_finite, same, to_float
from conformance.errors import UsageError
from conformance.measures import HELPERS, measure
from conformance.slots import found_in

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CELLS = 256
# Labels that are no group or block.
NO_UNITS = (*LINES, *panels.PLACES, "row", "column", "part")


@dataclasses.dataclass(frozen=True)
class Grid:
    """Cells of a picture.

    Attributes:
        error: float64 [rows, columns], the signed error of largest size; NaN where none is finite.
        nonfinite: bool, cells with an element that is wrong and not finite on both sides.
        empty: bool, cells without any element.
        extent: how many labels the rows and the columns stand for.
    """

    error: np.ndarray
    nonfinite: np.ndarray
    empty: np.ndarray
    extent: tuple[int, int]

    @property
    def wrong(self) -> np.ndarray:
        """Cells with a wrong element."""
        return ~np.isnan(self.error) | self.nonfinite


@dataclasses.dataclass(frozen=True)
class Wrong:
    """The wrong elements of an output.

    Attributes:
        flat: int64 [n], their flat positions.
        error: float64 [n], got - want; anything where not ``finite``.
        finite: bool [n], whether both sides are.
    """

    flat: np.ndarray
    error: np.ndarray
    finite: np.ndarray

    @staticmethod
    def of(got_bits: np.ndarray, want_bits: np.ndarray, dtype: torch.dtype) -> Wrong:
        """Wrong elements of two outputs of one shape, as bit patterns."""
        flat = np.flatnonzero(~same(got_bits, want_bits, dtype).reshape(-1))
        got, want = got_bits.reshape(-1)[flat], want_bits.reshape(-1)[flat]
        with np.errstate(invalid="ignore"):
            error = to_float(got, dtype) - to_float(want, dtype)
        return Wrong(flat, error, is_finite(got, dtype) & is_finite(want, dtype))

    def grid(self, rows: np.ndarray, columns: np.ndarray, cells: int = CELLS) -> Grid:
        """Cells by two labels of all elements (int), at most ``cells`` a side."""
        r, c = rows.reshape(-1), columns.reshape(-1)
        shape = (int(r.max(initial=0)) + 1, int(c.max(initial=0)) + 1)
        size = (min(shape[0], cells), min(shape[1], cells))
        place = r * size[0] // shape[0] * size[1] + c * size[1] // shape[1]
        empty = np.bincount(place, minlength=size[0] * size[1]).reshape(size) == 0
        flat = place[self.flat]
        found, nonfinite = np.full(size, np.nan), np.zeros(size, bool)
        kept = np.flatnonzero(self.finite)
        kept = kept[np.argsort(np.abs(self.error[kept]), kind="stable")]
        # The last one of a cell stays: the largest.
        found.reshape(-1)[flat[kept]] = self.error[kept]
        nonfinite.reshape(-1)[flat[~self.finite]] = True
        return Grid(found, nonfinite, empty, shape)


def draw(
    got_bits: np.ndarray,
    want_bits: np.ndarray,
    dtype: torch.dtype,
    *,
    axes: Mapping[str, np.ndarray],
    steps: np.ndarray | None,
    title: str,
    folder: Path,
    stem: str = "error",
) -> tuple[Path, Path]:
    """Draw one figure and write ``stem``.png and ``stem``.svg into ``folder``.

    Args:
        got_bits, want_bits: bit patterns of equal shape, uint16 or uint32.
        axes: labels as of :func:`conformance.axes.labels`.
        steps: as for :func:`conformance.measures.measure`.
        title: first line of the picture; the measures in words are the second.

    Raises:
        UsageError: matplotlib is missing, or the folder cannot be written.
        ValueError: shapes that differ.
    """
    drawn = figure(got_bits, want_bits, dtype, axes=axes, steps=steps, title=title)
    paths = (folder / f"{stem}.png", folder / f"{stem}.svg")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        drawn.savefig(paths[0], dpi=100)
        drawn.savefig(paths[1])
    except OSError as problem:
        raise UsageError(
            f"heatmap: expected a folder to write, found {folder}: {problem.strerror}"
        ) from problem
    return paths


def figure(
    got_bits: np.ndarray,
    want_bits: np.ndarray,
    dtype: torch.dtype,
    *,
    axes: Mapping[str, np.ndarray],
    steps: np.ndarray | None,
    title: str,
) -> Figure:
    """The figure that :func:`draw` writes."""
    try:
        # A figure without pyplot has no window, no global state, and the file backends alone.
        from matplotlib.figure import Figure
    except ImportError as problem:
        raise UsageError(f"heatmap: expected matplotlib to be installed, found: {problem}") from problem
    measures = measure(got_bits, want_bits, dtype, axes=axes, steps=steps)
    wrong = Wrong.of(got_bits, want_bits, dtype)
    rows, columns, wrapped = _matrix(got_bits, axes)
    names = LINES if set(LINES) <= set(axes) else (f"row{wrapped}", f"column{wrapped}")
    product = set(LINES) <= set(axes)
    units = "output units" if product else "weight units"
    unit = next((name for name in axes if name not in (*HELPERS, *NO_UNITS)), None)

    made = Figure(figsize=(15, 9), layout="constrained")
    made.suptitle(panels.wrapped(f"{title}\n{measures.sentence()}", panels.HEADING_WIDTH), fontsize=12)
    places = made.subplots(2, 3)
    panels.error_map(
        places[0, 0], wrong.grid(rows, columns), f"signed error by {names[0]} and {names[1]}", names, units
    )
    if unit is None:
        panels.magnitude(places[0, 1], measures, units)
    else:
        cells = wrong.grid(rows, axes[unit])
        panels.error_map(places[0, 1], cells, f"signed error by row and {unit}", (names[0], unit))
        panels.order(places[0, 1], rows, axes[unit], wrong.flat)
    of_wrong = None if steps is None else steps.reshape(-1)[wrong.flat][wrong.finite]
    panels.sizes(places[0, 2], wrong.error[wrong.finite], of_wrong, units)
    name = next((name for name in panels.PLACES if name in axes), "slot")
    panels.slot_bars(places[1, 0], axes.get(name), wrong.flat, name)
    matrix = found_in(to_float(got_bits, dtype), to_float(want_bits, dtype), axes, steps)
    if product:
        places[1, 1].remove()  # there are no packed words
    elif matrix is not None:
        panels.slot_matrix(places[1, 1], matrix)
    elif unit is not None:
        panels.magnitude(places[1, 1], measures, units)
    else:
        panels.nothing(places[1, 1], "too few packed words to compare slots")
    panels.ulp(places[1, 2], measures)
    return made


def _matrix(bits: np.ndarray, axes: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray, str]:
    """Row and column of each element, and a note when one dimension was wrapped into two."""
    for rows, columns in (LINES, ("row", "column")):
        if rows in axes and columns in axes:
            return axes[rows], axes[columns], ""
    width = max(1, 2 ** int(np.ceil(np.log2(max(bits.size, 1)) / 2)))
    flat = np.arange(bits.size).reshape(bits.shape)
    return flat // width, flat % width, f" (flat index wrapped at {width})"
