"""Layers of qweight, qzeros and scales: GPTQ and the three AWQ layouts, told apart by shapes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from conformance.detect import awq, gptq
from conformance.detect.layers import FLOATS, Layer
from conformance.detect.model import Reading, Report
from conformance.detect.source import Checkpoint, Info

# Of hypotheses that fail equally often, the first explains the damage: the commonest first.
GPTQ_BITS = (4, 8, 2, 3, 5, 6, 7)
SCALES = FLOATS[1:]


@dataclasses.dataclass
class Hypothesis:
    """One layout tried on a layer: what does not fit, or the readings if all does."""

    name: str
    failures: list[str] = dataclasses.field(default_factory=list)
    readings: list[Reading] = dataclasses.field(default_factory=list)

    def need(self, field: str, info: Info, dtypes: tuple[str, ...], shape: tuple[int, ...]) -> None:
        """Note what is wrong with a tensor's dtype and shape."""
        if info.dtype not in dtypes:
            expected = dtypes[0] if len(dtypes) == 1 else "one of " + ", ".join(dtypes)
            self.failures.append(f"{field}: expected dtype {expected}, found {info.dtype}")
        if info.shape != shape:
            transposed = ", which is transposed" if info.shape == shape[::-1] else ""
            self.failures.append(
                f"{field}: expected shape {list(shape)}, found {list(info.shape)}{transposed}"
            )


def detect(checkpoint: Checkpoint, layer: Layer, report: Report) -> None:
    """Fill ``report`` with the readings of a layer of packed words."""
    for field in ("qweight", "qzeros", "scales"):
        if field not in layer.fields:
            report.damage.append(f"{field}: expected beside {', '.join(layer.fields)}, found none")
        elif len(layer.fields[field].shape) != 2:
            found = list(layer.fields[field].shape)
            report.damage.append(f"{field}: expected 2 dimensions, found shape {found}")
    if "g_idx" in layer.fields and len(layer.fields["g_idx"].shape) != 1:
        report.damage.append(f"g_idx: expected 1 dimension, found shape {list(layer.fields['g_idx'].shape)}")
    if report.damage:
        return
    tried = [gptq_shapes(layer.fields, bits) for bits in GPTQ_BITS]
    tried += [rule(layer.fields) for rule in (awq_cols, awq_rows, awq_quads)]
    for hypothesis in tried:
        if hypothesis.failures:
            report.exclude(hypothesis.name, hypothesis.failures[0])
        report.admitted += hypothesis.readings
    if not report.admitted:
        nearest = min(tried, key=lambda hypothesis: len(hypothesis.failures))
        report.damage += [f"{failure} (read as {nearest.name})" for failure in nearest.failures]
        return
    gptq.look_inside(checkpoint, layer, report)
    awq.look_inside(checkpoint, layer, report)


def gptq_shapes(fields: Mapping[str, Info], bits: int) -> Hypothesis:
    """GPTQ: qweight [ceil(K b / 32), N], qzeros [G, ceil(N b / 32)], scales [G, N], g_idx [K]."""
    found = Hypothesis(f"gptq {bits} bit")
    qweight, qzeros, scales = (fields[name] for name in ("qweight", "qzeros", "scales"))
    g_idx = fields.get("g_idx")
    n_words, cols = qweight.shape
    rows = n_words * 32 // bits
    if g_idx is not None:
        found.need("g_idx", g_idx, ("int32",), g_idx.shape)
        length = g_idx.shape[0]
        if -(-length * bits // 32) == n_words:
            rows = length
        else:
            low = max(0, (n_words - 1) * 32 // bits + 1)
            span = f"{rows}" if bits in (3, 5, 6, 7) or low >= rows else f"{low} to {rows}"
            found.failures.append(
                f"g_idx: expected {span} rows, as qweight {list(qweight.shape)} holds at {bits} bit, "
                f"found {length}"
            )
    if 32 % bits:
        for what, size in (("K", rows), ("N", cols)):
            if size % 32:
                found.failures.append(
                    f"qweight: expected {what} a multiple of 32 at {bits} bit, found {size}"
                )
    groups = qzeros.shape[0]
    found.need("qweight", qweight, ("int32",), qweight.shape)
    found.need("qzeros", qzeros, ("int32",), (groups, -(-cols * bits // 32)))
    found.need("scales", scales, SCALES, (groups, cols))
    sizes = group_sizes(rows, groups)
    if sizes is None:
        found.failures.append(
            f"scales: expected 1 to K = {rows} groups of equal size (the last perhaps short), found {groups}"
        )
    elif not found.failures:
        size = preferred(*sizes)
        found.readings = [Reading("gptq", rows, cols, bits, size, sizes, zeros) for zeros in gptq.CONVENTIONS]
    return found


def group_sizes(rows: int, groups: int) -> tuple[int, int] | None:
    """Smallest and largest group size that make ``groups`` of ``rows`` (-1: no limit), if any does."""
    if groups < 1 or groups > max(rows, 1):
        return (1, -1) if rows == groups == 0 else None
    first = -(-rows // groups)
    last = -1 if groups == 1 else (rows - 1) // (groups - 1)
    return (first, last) if last == -1 or first <= last else None


def preferred(first: int, last: int) -> int:
    """The group size of that range that writers use, or its first."""
    if last == -1:
        return -1
    return next((size for size in (128, 64, 32, 256, 512, 1024, 16) if first <= size <= last), first)


def awq_cols(fields: Mapping[str, Info]) -> Hypothesis:
    """AWQ, GEMM layout: qweight [K, N / 8], qzeros [G, N / 8], scales [G, N]."""
    found = Hypothesis("awq_cols")
    rows, words = fields["qweight"].shape
    groups = fields["qzeros"].shape[0]
    found.need("qweight", fields["qweight"], ("int32",), (rows, words))
    found.need("qzeros", fields["qzeros"], ("int32",), (groups, words))
    found.need("scales", fields["scales"], SCALES, (groups, words * 8))
    _no_g_idx(found, fields)
    if rows and (groups == 0 or rows % groups):
        found.failures.append(f"scales: expected a number of groups that divides K = {rows}, found {groups}")
    if not found.failures:
        size = -1 if groups <= 1 else rows // groups
        found.readings = [Reading("awq_cols", rows, words * 8, 4, size, (rows, -1) if groups == 1 else None)]
    return found


def awq_rows(fields: Mapping[str, Info]) -> Hypothesis:
    """AWQ, GEMV layout: qweight [N, K / 8], qzeros [N, P / 8], scales [N, P], P padded groups."""
    found = Hypothesis("awq_rows")
    cols, words = fields["qweight"].shape
    padded = fields["qzeros"].shape[1] * 8
    found.need("qweight", fields["qweight"], ("int32",), (cols, words))
    found.need("qzeros", fields["qzeros"], ("int32",), (cols, padded // 8))
    found.need("scales", fields["scales"], SCALES, (cols, padded))
    _no_g_idx(found, fields)
    _padded(found, "awq_rows", words * 8, cols, padded)
    return found


def awq_quads(fields: Mapping[str, Info]) -> Hypothesis:
    """AWQ, GEMVFast layout: qweight int16 [N / 4, K], qzeros and scales float16 [P, N]."""
    found = Hypothesis("awq_quads")
    quads, rows = fields["qweight"].shape
    padded = fields["scales"].shape[0]
    found.need("qweight", fields["qweight"], ("int16",), (quads, rows))
    found.need("qzeros", fields["qzeros"], ("float16",), (padded, quads * 4))
    found.need("scales", fields["scales"], ("float16",), (padded, quads * 4))
    _no_g_idx(found, fields)
    if rows % 64:
        found.failures.append(f"qweight: expected K a multiple of 64, found {rows}")
    _padded(found, "awq_quads", rows, quads * 4, padded)
    return found


def _no_g_idx(found: Hypothesis, fields: Mapping[str, Info]) -> None:
    if "g_idx" in fields:
        found.failures.append(f"g_idx: expected none in an AWQ layer, found {fields['g_idx']}")


def _padded(found: Hypothesis, name: str, rows: int, cols: int, padded: int) -> None:
    if found.failures:
        return
    from kernels._awq import padded_groups  # here: kernels read TRITON_INTERPRET when imported

    sizes = [s for s in range(128, rows + 1) if rows % s == 0]
    sizes = [s for s in (16, 32, 64) if s <= rows and rows % s == 0] + sizes
    sizes = [s for s in sizes if padded_groups(rows, s) == padded]
    if not sizes:
        found.failures.append(
            f"scales: expected groups padded as a group size of K = {rows} needs, found {padded}"
        )
    found.readings = [Reading(name, rows, cols, 4, -1 if s == rows else s) for s in sizes]
