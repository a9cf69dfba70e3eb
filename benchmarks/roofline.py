"""A picture of a run: fraction of the copy by size, a line a kernel, a panel an output dtype."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.cases import DTYPES
from benchmarks.results import OURS, Measurement, Results
from conformance.errors import UsageError

SUFFIXES = (".png", ".svg", ".pdf")


def _lines(results: Results, dtype: str) -> dict[str, list[Measurement]]:
    """Measurements of the usual group sizes, in the order of the bytes that move."""
    usual: dict[str, int] = {}
    found: dict[str, list[Measurement]] = {}
    for entry in results.measurements:
        case = entry.case
        name = f"{case.format} {case.variant}"
        if entry.by != OURS or case.dtype != dtype or entry.fraction is None:
            continue
        if usual.setdefault(name, case.group) == case.group:
            found.setdefault(name, []).append(entry)
    return {name: sorted(entries, key=lambda entry: entry.n_bytes) for name, entries in found.items()}


def draw(results: Results, path: Path) -> None:
    """Write the picture; the suffix chooses png, svg or pdf.

    Raises:
        UsageError: another suffix, matplotlib is missing, or a run without a figure.
    """
    if path.suffix not in SUFFIXES:
        raise UsageError(f"output: expected a name that ends in {', '.join(SUFFIXES)}, found {path.name!r}")
    panels = [(dtype, lines) for dtype in DTYPES if (lines := _lines(results, dtype))]
    if not panels:
        raise UsageError("results: expected at least one figure of this repository, found none")
    try:
        import matplotlib
        from matplotlib import pyplot
    except ImportError as error:
        raise UsageError(f"roofline: expected matplotlib to be installed, found none ({error})") from error
    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "roofline"  # the same figures give the same file
    figure, axes = pyplot.subplots(1, len(panels), figsize=(6 * len(panels), 6), sharey=True, squeeze=False)
    names = sorted({name for _, lines in panels for name in lines})
    colours = pyplot.colormaps["tab20"]
    for axis, (dtype, lines) in zip(axes[0], panels, strict=True):
        for name, entries in lines.items():
            index = names.index(name)
            axis.plot(
                [entry.n_bytes / 1e6 for entry in entries],
                [entry.fraction for entry in entries],
                marker="os^Dv"[index % 5],
                color=colours(index % 20),
                linewidth=1,
                markersize=4,
                label=name,
            )
        axis.axhline(1, color="black", linewidth=0.8, linestyle="--")
        axis.set_xscale("log")
        axis.set_xlabel("MB that must move")
        axis.set_title(dtype)
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("fraction of a device copy of the same bytes")
    axes[0][0].set_ylim(bottom=0)
    handles: dict[str, Any] = {}
    for axis in axes[0]:
        handles.update(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
    ordered = [name for name in names if name in handles]
    figure.legend(
        handles=[handles[name] for name in ordered],
        labels=ordered,
        loc="lower center",
        ncols=5,
        fontsize="small",
        frameon=False,
    )
    figure.suptitle(str(results.machine.get("device", "")))
    figure.tight_layout(rect=(0, 0.06 + 0.03 * (len(ordered) // 5), 1, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    # Without the day, for the same reason.
    metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix)
    figure.savefig(path, dpi=150, metadata=metadata)
    pyplot.close(figure)
