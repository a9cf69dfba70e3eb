"""What detection found, for people and for programs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from conformance.detect.core import Detection
from conformance.detect.model import Report

STYLES = {"ok": "green", "undecidable": "yellow", "contradiction": "red", "damaged": "red"}
SHOWN_VALUES = 4


def summary(found: Detection, counts: Counter[str], seconds: float) -> dict[str, Any]:
    """The last JSON line."""
    return {
        "record": "summary",
        "path": found.checkpoint.path.name,
        "tensors": len(found.checkpoint.tensors),
        "layers": len(found.quantized),
        "float_layers": len(found.layers) - len(found.quantized),
        "metadata": {place: found.claims.values[field] for field, place in found.claims.where.items()},
        "status": dict(counts),
        "contradictions": list(found.contradictions),
        "seconds": round(seconds, 3),
    }


def failed(found: Detection, counts: Counter[str]) -> bool:
    return bool(found.contradictions or counts["damaged"] or counts["contradiction"])


def json_line(record: dict[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False)


def layer_row(report: Report) -> tuple[str | Text, ...]:
    """Layer, status, what it is, what it is not, evidence: one row of the table."""
    return (
        report.layer,
        Text(report.status, STYLES[report.status]),
        "\n".join(reading.name for reading in report.chosen) or "-",
        _excluded(report),
        "\n".join(facts(report)),
    )


def as_text(cell: str | Text) -> Text:
    """A cell that shows its brackets: a str would be read as markup."""
    return cell if isinstance(cell, Text) else Text(cell)


def _excluded(report: Report) -> str:
    names = [item.reading for item in report.excluded]
    left = [reading.name for reading in report.admitted if report.chosen and reading not in report.chosen]
    text = ", ".join(names) if not report.damage else "every reading"
    return text + ("\nby metadata or as equal: " + ", ".join(left) if left else "")


def facts(report: Report) -> Iterator[str]:
    """Evidence of a layer, a line each."""
    evidence = report.evidence
    shapes = [
        f"{field} {info['dtype']} {info['shape']}"
        for field, info in evidence["tensors"].items()
        if not field.startswith("weight.quant_state")
    ]
    yield ", ".join(shapes)
    g_idx = evidence.get("g_idx")
    if g_idx is not None:
        text = f"g_idx {g_idx['order']}"
        if g_idx.get("rows_per_group"):
            low, high = g_idx["rows_per_group"]
            text += f", {g_idx['groups']} groups of {low}" + (f" to {high}" if high != low else "") + " rows"
        if g_idx.get("missing_groups"):
            text += f", {g_idx['missing_groups']} never named"
        yield text
    for zeros in evidence.get("stored_zeros", {}).values():
        top = sorted(zeros["histogram"].items(), key=lambda item: -item[1])
        shown = ", ".join(f"{value}: {count}" for value, count in top[:SHOWN_VALUES])
        more = f", and {len(top) - SHOWN_VALUES} more values" if len(top) > SHOWN_VALUES else ""
        yield f"stored zeros at {zeros['bits']} bit {{{shown}{more}}}"
    if "quant_state" in evidence:
        state = evidence["quant_state"]
        yield f"quant_state {state['quant_type']}, shape {state['shape']}, blocksize {state['blocksize']}"
        yield f"quant_map: {evidence['quant_map']}" if "quant_map" in evidence else "quant_map not read"


def sentences(report: Report) -> Iterator[tuple[str, str]]:
    """Everything to say of a layer beside its row: kind and sentence."""
    for kind in ("damage", "contradictions", "undecidable", "hints"):
        for text in getattr(report, kind):
            yield kind.rstrip("s"), text


class Printer:
    """The table and the sentences. Layers that say the same share a sentence."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.table = Table(title="layers", title_justify="left", show_lines=True)
        for column in ("layer", "status", "admitted", "excluded", "evidence"):
            self.table.add_column(column, overflow="fold")
        self.texts: dict[tuple[str, str], list[str]] = {}

    def add(self, report: Report) -> None:
        self.table.add_row(*map(as_text, layer_row(report)))
        for kind, text in sentences(report):
            self.texts.setdefault((kind, text), []).append(report.layer)

    def finish(self, found: Detection, counts: Counter[str]) -> None:
        if found.quantized:
            self.console.print(self.table)
        for order in ("damage", "contradiction", "undecidable", "hint"):
            for (kind, text), layers in self.texts.items():
                if kind == order:
                    where = layers[0] + (f" and {len(layers) - 1} more" if len(layers) > 1 else "")
                    self.console.print(f"{kind}: {where}: {text}", markup=False, soft_wrap=True)
        for text in found.contradictions:
            self.console.print(f"contradiction: {text}", markup=False, soft_wrap=True)
        if not found.claims.files:
            self.console.print("no metadata was read: what it could contradict was not checked")
        total = len(found.quantized)
        parts = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
        floats = len(found.layers) - total
        self.console.print(f"{total} quantized layers ({parts or 'none'}), {floats} float layers")


@contextmanager
def progress(stream: TextIO, what: str) -> Iterator[Progress]:
    """A progress bar on ``stream``, or nothing when that is no terminal."""
    console = Console(file=stream)
    columns = (
        TextColumn(what),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        yield bar
