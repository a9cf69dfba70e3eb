"""The panels of an error picture. Each draws into one place and computes no more than it shows.

In maps, grey cells are right, white ones are wrong by next to nothing, black ones have NaN or infinity
where the other side has not, and hatched ones have no element.
"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

import numpy as np

from conformance.measures import Measures

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from conformance.heatmap import Grid

# Purple and orange are told apart in every common colour blindness.
DIVERGING = "PuOr"
RIGHT, NOT_FINITE, BARS = "0.82", "black", "tab:purple"
# Characters of a line above a panel, and above all of them, at the sizes that these have.
TITLE_WIDTH, HEADING_WIDTH = 62, 150
# Rings are drawn around so many cells at most: more are visible without.
FEW = 24
# Wider histograms of steps have no room for a bar on each whole step.
MOST_STEPS = 40
# Labels of which there are a few, with what they are.
PLACES = {
    "slot": "slot (position of the code in its packed word)",
    "lane": "lane (place of the channel in an instruction's 8)",
    "byte": "byte of the accumulator, the lowest first",
}


def error_map(
    place: Axes, cells: Grid, title: str, names: tuple[str, str], units: str = "weight units"
) -> None:
    """Signed errors; ``names`` are those of rows and columns."""
    from matplotlib import colormaps
    from matplotlib.colors import SymLogNorm

    error = cells.error
    largest = float(np.abs(error[~np.isnan(error)]).max(initial=0.0)) or 1.0
    # Linear up to a hundredth of the largest: small errors next to large ones stay coloured.
    norm = SymLogNorm(largest / 100, vmin=-largest, vmax=largest)
    shades = colormaps[DIVERGING].with_extremes(bad=(0, 0, 0, 0))
    options: dict[str, Any] = {
        "extent": (-0.5, cells.extent[1] - 0.5, cells.extent[0] - 0.5, -0.5),
        "aspect": "auto",
        "interpolation": "nearest",
    }
    place.patch.set(hatch="////", facecolor="white", edgecolor="0.9")
    _paint(place, RIGHT, ~cells.empty, options)
    image = place.imshow(np.ma.masked_invalid(error), cmap=shades, norm=norm, **options)
    _paint(place, NOT_FINITE, cells.nonfinite, options)
    _ring(place, cells)
    bar = place.figure.colorbar(image, ax=place, shrink=0.9)
    bar.set_label(f"got - want ({units})")
    ticks = [sign * largest / part for part in (1, 10, 100) for sign in (-1, 1)]
    bar.set_ticks([*ticks, 0.0], labels=[*(f"{tick:.2g}" for tick in ticks), "0"])
    bar.minorticks_off()
    count = int(cells.wrong.sum())
    notes = [f"{count} wrong cell{'s' * (count != 1)}", "grey: right"]
    if error.shape != cells.extent:
        ratio = " x ".join(str(-(-a // b)) for a, b in zip(cells.extent, error.shape, strict=True))
        notes.insert(1, f"each the largest of {ratio}")
    if cells.nonfinite.any():
        notes.append("black: NaN or infinity")
    if cells.empty.any():
        notes.append("hatched: no element")
    _titled(place, f"{title}\n{'; '.join(notes)}")
    place.set_ylabel(names[0])
    place.set_xlabel(names[1])


def _titled(place: Axes, text: str) -> None:
    place.set_title(wrapped(text, TITLE_WIDTH), fontsize=9)


def wrapped(text: str, width: int) -> str:
    """Each line of ``text`` in lines of ``width`` characters at most; no shorter word is broken."""
    return "\n".join(textwrap.fill(line, width, break_on_hyphens=False) for line in text.split("\n"))


def _paint(place: Axes, colour: str, where: np.ndarray, options: dict[str, Any]) -> None:
    from matplotlib.colors import to_rgb

    picture = np.zeros((*where.shape, 4))
    picture[..., :3] = to_rgb(colour)
    picture[..., 3] = where
    place.imshow(picture, **options)


def _ring(place: Axes, cells: Grid) -> None:
    """Rings around wrong cells that would be dots otherwise."""
    down, across = np.nonzero(cells.wrong)
    if 0 < down.size <= FEW and max(cells.error.shape) > 32:
        y = (down + 0.5) * cells.extent[0] / cells.error.shape[0] - 0.5
        x = (across + 0.5) * cells.extent[1] / cells.error.shape[1] - 0.5
        place.scatter(x, y, s=120, facecolors="none", edgecolors="tab:red", linewidths=1.5)


def order(place: Axes, rows: np.ndarray, unit: np.ndarray, wrong: np.ndarray) -> None:
    """Where each row would be if groups of equal size followed one another, unless they do; and how
    much is wrong there and elsewhere, which tells a kernel that takes the groups to be in order."""
    flat = rows.reshape(-1)
    first = unit.reshape(-1)[np.unique(flat, return_index=True)[1]]
    if (np.diff(first) >= 0).all():
        return
    n_units = int(unit.max()) + 1
    size = first.size / n_units
    for group in range(n_units):
        place.vlines(
            (group - 0.5, group + 0.5), group * size - 0.5, (group + 1) * size - 0.5, color="tab:red", ls=":"
        )
    inside = (first == np.arange(first.size) * n_units // first.size)[flat]
    shares = []
    for where in (inside, ~inside):
        part = int(np.count_nonzero(where[wrong])) / max(int(np.count_nonzero(where)), 1)
        shares.append(f"{100 * part:.0f} %")
    place.set_xlabel(
        f"{place.get_xlabel()}\nred: where rows would be if groups were in order; "
        f"wrong there {shares[0]}, elsewhere {shares[1]}"
    )


def sizes(place: Axes, error: np.ndarray, steps: np.ndarray | None, units: str = "weight units") -> None:
    """Histogram of finite errors, in ``steps`` of the local scale where there are any."""
    if steps is not None:
        with np.errstate(all="ignore"):
            error = error / steps
        error = error[np.isfinite(error)]
    if not error.size:
        nothing(place, "no finite error")
        return
    size = np.abs(error)
    reach, most = float(size.max()), float(np.quantile(size, 0.95))
    title = "size of the error, wrong elements only"
    if steps is not None and reach <= MOST_STEPS:
        # Bars of a quarter of a step, one of them on each whole step.
        edge = np.ceil(reach) + 0.125
        bins = np.arange(-edge, edge + 0.125, 0.25)
    else:
        if reach > 4 * most > 0:
            title += f"\nthe outermost bars hold all beyond {most:.3g}, up to {reach:.3g}"
            reach = most
        reach = reach or 1.0
        bins = np.linspace(-reach, reach, 82)
    place.hist(np.clip(error, bins[0], bins[-1]), bins=bins.tolist(), color=BARS)
    place.axvline(0, color="black", linewidth=0.8)
    place.ticklabel_format(axis="x", style="sci", scilimits=(-2, 4))
    unit = units if steps is None else "steps of the local scale"
    place.set_xlabel(f"got - want ({unit})")
    place.set_ylabel("wrong elements")
    _titled(place, title)


def slot_bars(place: Axes, slot: np.ndarray | None, wrong: np.ndarray, name: str = "slot") -> None:
    """Share of wrong elements (flat positions) of each slot, or what else :data:`PLACES` names."""
    if slot is None or not slot.size:
        nothing(place, "no packed words")
        return
    flat = slot.reshape(-1)
    whole = np.bincount(flat)
    part = 100 * np.bincount(flat[wrong], minlength=whole.size) / np.maximum(whole, 1)
    place.bar(np.arange(whole.size), part, color=BARS, width=0.8)
    place.set_xlabel(PLACES[name])
    place.set_ylabel("wrong elements (%)")
    place.set_ylim(0, 1.1 * (float(part.max()) or 1.0))
    place.set_xticks(np.arange(whole.size))
    _titled(place, f"wrong by {name}")


def slot_matrix(place: Axes, matrix: np.ndarray) -> None:
    """Correlation of slots (:func:`conformance.slots.found_in`)."""
    image = place.imshow(matrix, vmin=-1, vmax=1, cmap=DIVERGING, interpolation="nearest")
    bar = place.figure.colorbar(image, ax=place, shrink=0.9)
    bar.set_label("correlation over all words")
    place.set_xlabel("slot of want")
    place.set_ylabel("slot of got")
    place.set_xticks(np.arange(matrix.shape[1]))
    place.set_yticks(np.arange(matrix.shape[0]))
    _titled(place, "in which slot the value of each slot is found\nright: a dark diagonal")


def ulp(place: Axes, measures: Measures) -> None:
    """Histogram of distances, and of differences in class."""
    names = [item.label for item in measures.ulp]
    names += [name.replace(" instead of ", "\nfor ") for name in measures.classes]
    counts = [item.count for item in measures.ulp] + list(measures.classes.values())
    colours = ["0.7" if item.low == 0 else BARS for item in measures.ulp]
    colours += [NOT_FINITE] * len(measures.classes)
    if not counts:
        nothing(place, "no elements")
        return
    place.bar(np.arange(len(counts)), counts, color=colours)
    place.set_xticks(
        np.arange(len(counts)), names, rotation=60, ha="right", rotation_mode="anchor", fontsize=8
    )
    place.set_yscale("log")
    place.set_ylim(bottom=0.5)
    place.set_xlabel("distance (ULP of the output dtype)")
    place.set_ylabel("elements")
    _titled(place, "distance from the right value\ngrey: equal but perhaps for the sign of zero")


def magnitude(place: Axes, measures: Measures, units: str = "weight units") -> None:
    """Mean error by binade of |want|."""
    kept = [(item.exponent, item.mean_abs) for item in measures.magnitude if item.exponent is not None]
    kept = [(exponent, error) for exponent, error in kept if error > 0]
    if not kept:
        nothing(place, "no finite error")
        return
    place.loglog([2.0**e for e, _ in kept], [error for _, error in kept], "o-", base=2, color=BARS)
    place.set_xlabel(f"|want| ({units}, by binade)")
    place.set_ylabel(f"mean |got - want| ({units})")
    _titled(place, "error against magnitude")


def nothing(place: Axes, text: str) -> None:
    """A panel without anything to show says why."""
    place.text(0.5, 0.5, text, ha="center", va="center", transform=place.transAxes)
    place.set_axis_off()
