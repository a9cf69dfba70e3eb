"""GPTQ layers: what g_idx and the stored zeros tell, and what they do not."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from conformance.detect.layers import Layer
from conformance.detect.model import Reading, Report
from conformance.detect.source import Checkpoint

CONVENTIONS = ("v1", "v1-nowrap", "v2")
# Word rows read for the hint from values; whole runs of three words at 3 bit.
SAMPLED = 384
CHUNK = 256


def look_inside(checkpoint: Checkpoint, layer: Layer, report: Report) -> None:
    """Evidence of the GPTQ readings in ``report.admitted``: g_idx first, then zeros."""
    if not any(reading.format == "gptq" for reading in report.admitted):
        return
    group: np.ndarray | None = None
    groups = layer.fields["scales"].shape[0]
    if "g_idx" in layer.fields:
        group = checkpoint.load(layer.name("g_idx")).numpy()
        facts, size = group_facts(group, groups, report)
        report.evidence["g_idx"] = facts
        if report.damage:
            return
        _fix_group_size(report, size)
    else:
        report.evidence["g_idx"] = {"order": "absent"}
    qzeros = checkpoint.load(layer.name("qzeros")).numpy()
    for bits in sorted({r.bits for r in report.admitted if r.format == "gptq"}):
        reading = next(r for r in report.admitted if r.format == "gptq" and r.bits == bits)
        facts = zero_facts(qzeros, bits, reading.cols)
        report.evidence.setdefault("stored_zeros", {})[str(bits)] = facts
        _zero_hints(checkpoint, layer, report, reading, facts, qzeros, group)


def group_facts(group: np.ndarray, groups: int, report: Report) -> tuple[dict[str, Any], int | None]:
    """Facts of g_idx, and the group size that it shows, if it shows one."""
    bad = np.flatnonzero((group < 0) | (group >= groups))
    if bad.size:
        row = int(bad[0])
        report.damage.append(
            f"g_idx: expected 0 <= group < {groups}, found {int(group[row])} at row {row}"
            + (f", and {bad.size - 1} more" if bad.size > 1 else "")
        )
        return {"order": "out of range", "rows": int(group.size), "groups": groups}, None
    counts = np.bincount(group, minlength=groups)
    size: int | None = int(counts[0]) if groups > 1 else -1
    rows_per_group = max(int(counts[0]), 1) if groups > 1 else max(group.size, 1)
    missing = np.flatnonzero(counts == 0)
    fits = -(-group.size // rows_per_group) == groups
    if fits and np.array_equal(group, np.arange(group.size) // rows_per_group):
        order = "sequential"
    elif groups > 1 and (counts[:-1] == counts[0]).all() and 0 < counts[-1] <= counts[0]:
        order = "permuted"
    else:
        order, size = "unequal", None
    facts: dict[str, Any] = {
        "order": order,
        "rows": int(group.size),
        "groups": groups,
        "rows_per_group": [int(counts.min()), int(counts.max())] if groups else [],
        "missing_groups": int(missing.size),
        "first_missing": missing[:8].tolist(),
    }
    if groups > 1 and group.size and not group.any():
        report.hints.append(
            f"g_idx is 0 throughout although there are {groups} groups: some loaders take that for "
            "'not set' and read k // group_size, others scale every row by group 0"
        )
    elif missing.size:
        report.hints.append(
            f"g_idx names {groups - missing.size} of {groups} groups; the others are never read"
        )
    return facts, size


def _fix_group_size(report: Report, size: int | None) -> None:
    if size is None:
        return
    for at, reading in enumerate(report.admitted):
        if reading.format == "gptq" and reading.allows_group_size(size):
            sizes = (max(reading.rows, 1), -1) if size == -1 else (size, size)
            report.admitted[at] = dataclasses.replace(reading, group_size=size, group_sizes=sizes)


def fields_of(words: np.ndarray, bits: int, count: int) -> np.ndarray:
    """Fields [R, count] of rows of int32 words [R, W], each row a little-endian bit stream."""
    if 32 % bits == 0:
        shifts = np.arange(0, 32, bits, dtype=np.uint32)
        spread = (np.ascontiguousarray(words).view(np.uint32)[:, :, None] >> shifts) & np.uint32(2**bits - 1)
        return spread.reshape(words.shape[0], -1)[:, :count]
    data = np.ascontiguousarray(words).view(np.uint8).reshape(words.shape[0], -1)
    stream = np.unpackbits(data, axis=1, bitorder="little")[:, : count * bits]
    return stream.reshape(words.shape[0], count, bits) @ (1 << np.arange(bits, dtype=np.uint32))


def zero_facts(qzeros: np.ndarray, bits: int, cols: int) -> dict[str, Any]:
    """Histogram of stored zeros, padding left out, and the words that AutoGPTQ's packer smeared."""
    maxq = 2**bits - 1
    histogram = np.zeros(maxq + 1, np.int64)
    smeared = 0
    for start in range(0, qzeros.shape[0], CHUNK):
        fields = fields_of(qzeros[start : start + CHUNK], bits, cols)
        histogram += np.bincount(fields.reshape(-1), minlength=maxq + 1)
        per_word = 32 // bits
        if 32 % bits == 0 and cols % per_word == 0 and cols:
            ones = fields.reshape(-1, per_word) == maxq
            # A run of maxq that starts inside a word and fills it to its end.
            first = ones.argmax(axis=1)
            tail = ones.sum(axis=1) == per_word - first
            smeared += int((ones.any(axis=1) & tail & (first < per_word - 1)).sum())
    present = np.flatnonzero(histogram)
    return {
        "bits": bits,
        "fields": int(histogram.sum()),
        "min": int(present[0]) if present.size else None,
        "max": int(present[-1]) if present.size else None,
        "distinct": int(present.size),
        "maxq": int(histogram[maxq]),
        "words_ending_in_a_run_of_maxq": smeared,
        "histogram": {str(value): int(histogram[value]) for value in present},
    }


def uniform(facts: dict[str, Any]) -> int | None:
    """The one value that all stored zeros have, or None."""
    return facts["min"] if facts["distinct"] == 1 else None


def _zero_hints(
    checkpoint: Checkpoint,
    layer: Layer,
    report: Report,
    reading: Reading,
    facts: dict[str, Any],
    qzeros: np.ndarray,
    group: np.ndarray | None,
) -> None:
    bits, value, middle = reading.bits, uniform(facts), 2 ** (reading.bits - 1)
    if value in (middle - 1, middle):
        convention = "v1" if value == middle - 1 else "v2"
        report.hints.append(
            f"at {bits} bit every stored zero is {value}: "
            f"a symmetric weight (zero {middle}) if it is {convention}"
        )
    elif value is None and facts["fields"]:
        if facts["words_ending_in_a_run_of_maxq"]:
            report.hints.append(
                f"at {bits} bit {facts['words_ending_in_a_run_of_maxq']} words of qzeros end in a run of "
                f"{2**bits - 1}: AutoGPTQ's v1 packer leaves that where a zero is 0, "
                "and the later zeros of the word are lost"
            )
        _value_hint(checkpoint, layer, report, reading, qzeros, group)


def _value_hint(
    checkpoint: Checkpoint,
    layer: Layer,
    report: Report,
    reading: Reading,
    qzeros: np.ndarray,
    group: np.ndarray | None,
) -> None:
    """Compare the mean code with the mean stored zero: trained weights average about zero."""
    bits = reading.bits
    words = checkpoint.head(layer.name("qweight"), SAMPLED)
    if words.numel() == 0:
        return
    rows = min(words.shape[0] * 32 // bits, reading.rows)
    width = max(1, 2**20 // max(rows, 1))
    codes = 0.0
    for start in range(0, reading.cols, width):
        part = words[:, start : start + width].t().contiguous().numpy()
        codes += float(fields_of(part, bits, rows).sum(dtype=np.float64))
    size = reading.rows if reading.group_size == -1 else reading.group_size
    assert size is not None
    index = group[:rows] if group is not None else np.arange(rows) // max(size, 1)
    rows_of = np.bincount(index, minlength=qzeros.shape[0])
    stored = 0.0
    for at in np.flatnonzero(rows_of):
        zeros = fields_of(qzeros[at : at + 1], bits, reading.cols)
        stored += float(rows_of[at]) * float(zeros.sum(dtype=np.float64))
    gap = (codes - stored) / (rows * reading.cols)
    # Codes spread over a quarter of their range or less: so many make the mean sure to a tenth.
    enough = (10 * 2**bits / 4) ** 2
    if rows * reading.cols < enough or min(abs(gap), abs(gap - 1)) > 0.25:
        return
    convention = "v1" if abs(gap - 1) < abs(gap) else "v2"
    report.hints.append(
        f"no proof: at {bits} bit codes exceed stored zeros by {gap:.2f} on average (first {rows} rows); "
        f"weights that average zero give 1 for v1 and 0 for v2, so this looks like {convention}"
    )


def meanings(report: Report, bits: int) -> str:
    """What each convention makes of the stored zeros of a layer, as words."""
    facts = report.evidence["stored_zeros"][str(bits)]
    maxq = 2**bits - 1
    text = (
        f"v1 reads them as one more than v2 does, so every weight differs by one scale (stored {facts['min']}"
    )
    text += f" is {(facts['min'] + 1) & maxq} by v1, {facts['min']} by v2)"
    return text


__all__ = ["CONVENTIONS", "fields_of", "group_facts", "look_inside", "meanings", "uniform", "zero_facts"]
