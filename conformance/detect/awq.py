"""AWQ layers: zeros, and what the padding of the GEMV layouts tells about the group size."""

from __future__ import annotations

from typing import Any

import torch

from conformance.detect import gptq
from conformance.detect.layers import Layer
from conformance.detect.model import Reading, Report
from conformance.detect.source import Checkpoint


def look_inside(checkpoint: Checkpoint, layer: Layer, report: Report) -> None:
    """Evidence of the AWQ readings in ``report.admitted``."""
    formats = {reading.format for reading in report.admitted}
    if "awq_cols" in formats:
        qzeros = checkpoint.load(layer.name("qzeros")).numpy()
        # The order within a word does not matter for a histogram.
        _zeros(report, gptq.zero_facts(qzeros, 4, qzeros.shape[1] * 8))
    if "awq_rows" in formats:
        _narrow(report, "awq_rows", _used(checkpoint.load(layer.name("scales")).t()))
        readings = [r for r in report.admitted if r.format == "awq_rows"]
        if readings:
            groups = max(1, readings[0].rows // _rows(readings[0]))
            qzeros = checkpoint.load(layer.name("qzeros")).numpy()
            _zeros(report, gptq.zero_facts(qzeros, 4, groups))
    if "awq_quads" in formats:
        _narrow(report, "awq_quads", _used(checkpoint.load(layer.name("scales"))))


def _rows(reading: Reading) -> int:
    return max(reading.rows, 1) if reading.group_size in (-1, None) else reading.group_size or 1


def _used(scales: torch.Tensor) -> int:
    """Groups up to the last one with a scale that is not 0; NaN is no padding either."""
    used = (scales != 0).any(dim=1).nonzero()
    return int(used[-1]) + 1 if used.numel() else 0


def _narrow(report: Report, name: str, used: int) -> None:
    """Rule out group sizes whose padding would not be 0, as every known writer leaves it."""
    mine = [reading for reading in report.admitted if reading.format == name]
    report.evidence["groups_with_scales"] = used
    kept = []
    for reading in mine:
        groups = reading.rows // _rows(reading)
        if groups < used:
            why = f"scales: expected 0 as padding from group {groups} on, found others in group {used - 1}"
            report.exclude(reading.name, why)
            report.admitted.remove(reading)
        else:
            kept.append(reading)
    if mine and not kept and not report.admitted:
        report.damage.append(
            f"scales: expected 0 in the padding of every possible group size of {name}, "
            f"found other values in group {used - 1}"
        )
    if len(kept) > 1:
        exact = [r for r in kept if r.rows // _rows(r) == used]
        if exact:
            report.hints.append(
                f"scales other than 0 fill exactly {used} groups, as group size {_rows(exact[0])} needs; "
                "a larger count would mean groups whose weights are all 0"
            )


def _zeros(report: Report, facts: dict[str, Any]) -> None:
    report.evidence.setdefault("stored_zeros", {})["awq"] = facts
    value = gptq.uniform(facts)
    if value is not None:
        report.hints.append(f"every zero is {value}" + (": a symmetric weight" if value == 8 else ""))
