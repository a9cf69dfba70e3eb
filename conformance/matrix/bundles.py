"""Bundles beside a run's results, and the picture of an error from one of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from conformance.errors import UsageError
from conformance.matrix.runs import Run


class Bundles:
    """Finds the bundle of a failure: by the name that the run gave it, else by its case."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self._indexed: dict[Path, dict[tuple[str, str, str], Path]] = {}

    def find(self, run: Run, record: Mapping[str, Any]) -> Path | None:
        """Folder of the bundle of ``record``, or None."""
        named = record.get("bundle")
        if isinstance(named, str):
            # Results are copied about without their bundles; a name must not lead out of the folder.
            path = run.folder / named
            inside = path.resolve().is_relative_to(run.folder.resolve())
            return path if inside and (path / "case.json").is_file() else None
        key = (str(record.get("verdict")), str(record.get("case")), str(record.get("kernel")))
        return self._index(run.folder).get(key)

    def _index(self, folder: Path) -> dict[tuple[str, str, str], Path]:
        if folder not in self._indexed:
            found = self._indexed[folder] = {}
            for file in sorted(folder.glob("bundles/*/case.json")):
                try:
                    info = json.loads(file.read_text(encoding="utf-8"))
                    key = (info["verdict"]["verdict"], info["id"], info["kernel"])
                except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
                    self.notes.append(f"{file} is no bundle that can be read: {error}")
                    continue
                found[key] = file.parent
        return self._indexed[folder]


def verdict_of(bundle: Path) -> Mapping[str, Any] | None:
    """The verdict in a bundle: it has been looked into, unlike the records of cases."""
    try:
        info = json.loads((bundle / "case.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    found = info.get("verdict") if isinstance(info, dict) else None
    return found if isinstance(found, dict) else None


def draw(bundle: Path, file: Path) -> str | None:
    """Draw the error of a bundle as SVG into ``file``; the reason if that cannot be done."""
    try:
        from conformance import heatmap
        from conformance.runtime import choose

        choose("cpu")  # before the formats import their kernels
        from matplotlib import rc_context

        from conformance import bundle as stored
        from conformance.axes import even_steps, labels
        from conformance.bits import to_bits
        from conformance.registry import find_format
    except ImportError as error:
        return f"no picture: {error}"
    try:
        found = stored.read(bundle)
        if "got" not in found.tensors or "want/spec" not in found.tensors:
            return "no picture: there are no two outputs to compare"
        got, want = found.tensors["got"], found.tensors["want/spec"]
        fmt = find_format(found.info["case"]["format"])
        weight = stored.rebuild(fmt.weight_type, found)
        # Text stays text, and equal pictures are equal files.
        with rc_context({"svg.fonttype": "none", "svg.hashsalt": "conformance"}):
            figure = heatmap.figure(
                to_bits(got),
                to_bits(want),
                got.dtype,
                axes=labels(fmt, weight),
                steps=even_steps(fmt.unpack(weight)),
                title=f"{found.info['verdict']['verdict']}  {found.info.get('id', '')}",
            )
            figure.savefig(file, format="svg", metadata={"Date": None})
    except (UsageError, ValueError, TypeError, LookupError, AttributeError) as error:
        return f"no picture: {error}"
    return None
