"""Hold a layer's readings against what the metadata says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from conformance.detect import gptq
from conformance.detect.claims import Claims
from conformance.detect.model import Reading, Report

AWQ_VERSIONS = {"gemm": "awq_cols", "gemv": "awq_rows", "gemv_fast": "awq_quads"}
CHECKPOINT_FORMATS = {"gptq": ("v1", "v1-nowrap"), "gptq_v2": ("v2",)}
FAMILY = {
    "gptq": "gptq",
    "awq_cols": "awq",
    "awq_rows": "awq",
    "awq_quads": "awq",
    "nf4": "bitsandbytes",
    "fp4": "bitsandbytes",
    "llm_int8": "bitsandbytes",
    "compressed-tensors": "compressed-tensors",
}


def judge(report: Report, claims: Claims) -> None:
    """Fill ``chosen``, ``contradictions`` and ``undecidable`` of a report whose tensors are read."""
    if report.damage or not report.admitted:
        return
    report.chosen = list(report.admitted)
    if claims.not_quantized:
        report.contradictions.append(
            f"{claims.not_quantized}: expected a layer that is not quantized, found {report.family}"
        )
    _skipped(report, claims)
    _method(report, claims)
    family = FAMILY.get(report.chosen[0].format)
    if family in ("gptq", "awq"):
        _narrow(report, claims, "bits", lambda r, value: r.bits == value)
        _narrow(report, claims, "group_size", lambda r, value: r.allows_group_size(value))
    if family == "gptq":
        _order(report, claims)
        _convention(report, claims)
    elif family == "awq":
        _awq(report, claims)
    elif family == "bitsandbytes":
        _bitsandbytes(report, claims)
    _say_undecidable(report)


def _narrow(report: Report, claims: Claims, field: str, fits: Callable[[Reading, Any], bool]) -> None:
    value = claims.get(field)
    if value is None:
        return
    kept = [reading for reading in report.chosen if fits(reading, value)]
    if kept:
        report.chosen = kept
        return
    found = sorted({_show(reading, field) for reading in report.chosen})
    report.contradictions.append(f"{claims.says(field)}, but the tensors admit {' or '.join(found)} only")


def _show(reading: Reading, field: str) -> str:
    if field == "group_size" and reading.group_sizes is not None:
        first, last = reading.group_sizes
        if last == -1:
            return f"{field} -1 (one group of {reading.rows})"
        return f"{field} {first}" + (f" to {last}" if last != first else "")
    return f"{field} {getattr(reading, field)}"


def _skipped(report: Report, claims: Claims) -> None:
    for name in claims.get("skipped") or ():
        parts = report.layer.split(".")
        if isinstance(name, str) and (
            name == report.layer or name in parts or report.layer.endswith("." + name)
        ):
            report.contradictions.append(
                f"{claims.where['skipped']}: names {name!r} as not quantized, "
                f"but the layer is {report.family}"
            )


def _method(report: Report, claims: Claims) -> None:
    method = claims.method
    if method is None:
        return
    kept = [reading for reading in report.chosen if FAMILY.get(reading.format) == method]
    if kept:
        report.chosen = kept
        return
    found = " or ".join(sorted({reading.format for reading in report.chosen}))
    where = (
        claims.says("method")
        if "method" in claims.where
        else f"{claims.files[0]}: its fields are those of {method}"
    )
    report.contradictions.append(f"{where}, but the tensors are {found}")


def _order(report: Report, claims: Claims) -> None:
    order = report.evidence["g_idx"]["order"]
    if claims.get("desc_act") is False and order in ("permuted", "unequal"):
        report.contradictions.append(
            f"{claims.says('desc_act')}, but g_idx is {order}: "
            "a reader that takes k // group_size decodes other weights"
        )
    elif claims.get("desc_act") is True and order == "absent":
        report.contradictions.append(f"{claims.says('desc_act')}, but the layer has no g_idx")
    elif claims.get("desc_act") is True and order == "sequential" and report.evidence["g_idx"]["groups"] > 1:
        report.hints.append(f"{claims.says('desc_act')}, and g_idx is sequential: both ways of reading agree")


def _convention(report: Report, claims: Claims) -> None:
    stated = claims.get("checkpoint_format")
    bits = report.chosen[0].bits
    facts = report.evidence["stored_zeros"][str(bits)]
    value, middle = gptq.uniform(facts), 2 ** (bits - 1)
    if claims.method == "gptq" and stated is None:
        report.hints.append("checkpoint_format is missing: readers take that as 'gptq', zeros v1")
        allowed: tuple[str, ...] | None = CHECKPOINT_FORMATS["gptq"]
        subject = f"{claims.files[0]}: checkpoint_format missing, which means 'gptq'"
    elif claims.method == "gptq":
        allowed = CHECKPOINT_FORMATS.get(str(stated).lower())
        subject = claims.says("checkpoint_format")
        if allowed is None:
            report.contradictions.append(
                f"{subject} has no reading here, but the tensors have the shapes of gptq"
            )
    else:
        allowed, subject = None, ""
    symmetric = _symmetric(report, claims, facts, bits)
    if allowed is not None and symmetric and symmetric not in allowed:
        becomes = middle + 1 if symmetric == "v2" else middle - 1
        report.contradictions.append(
            f"{subject}, but {claims.says('sym')} and every stored zero {value} make it {symmetric}: "
            f"read as {allowed[0]}, the zero of {middle} becomes {becomes}, "
            "and every weight is off by one scale"
        )
    wanted = (symmetric,) if symmetric == "v2" else ("v1", "v1-nowrap") if symmetric else allowed
    if wanted is not None:
        report.chosen = [reading for reading in report.chosen if reading.zeros in wanted]
    if not facts["maxq"]:  # both v1 readings give the same values
        report.chosen = [r for r in report.chosen if r.zeros != "v1-nowrap"]


def _symmetric(report: Report, claims: Claims, facts: dict[str, Any], bits: int) -> str:
    """The convention by which the zeros are those of a symmetric weight, where sym says it is one."""
    if claims.get("sym") is not True or not facts["fields"]:
        return ""
    value, middle = gptq.uniform(facts), 2 ** (bits - 1)
    if value == middle - 1:
        return "v1"
    if value == middle:
        return "v2"
    found = (
        f"{facts['distinct']} values from {facts['min']} to {facts['max']}" if value is None else f"{value}"
    )
    report.contradictions.append(
        f"{claims.says('sym')} means stored zeros of {middle - 1} (v1) or {middle} (v2) at {bits} bit, "
        f"but qzeros has {found}: readers that use qzeros and readers that do not differ"
    )
    return ""


def _awq(report: Report, claims: Claims) -> None:
    version = claims.get("version")
    if version is None and str(claims.get("checkpoint_format")).lower() in AWQ_VERSIONS:
        version, field = claims.get("checkpoint_format"), "checkpoint_format"
    else:
        field = "version"
    if version is not None:
        wanted = AWQ_VERSIONS.get(str(version).lower())
        kept = [reading for reading in report.chosen if reading.format == wanted]
        if kept:
            report.chosen = kept
        else:
            found = " or ".join(sorted({reading.format for reading in report.chosen}))
            note = "" if wanted else " (no reading here)"
            report.contradictions.append(f"{claims.says(field)}{note}, but the tensors are {found}")
    facts = report.evidence.get("stored_zeros", {}).get("awq")
    if facts and claims.get("zero_point") is False and gptq.uniform(facts) != 8 and facts["fields"]:
        report.contradictions.append(
            f"{claims.says('zero_point')}, but qzeros has {facts['distinct']} values "
            f"from {facts['min']} to {facts['max']}"
        )


def _bitsandbytes(report: Report, claims: Claims) -> None:
    reading = report.chosen[0]
    eight = reading.format == "llm_int8"
    for field, is_so in (("load_in_4bit", not eight), ("load_in_8bit", eight)):
        if claims.get(field) is not None and claims.get(field) != is_so:
            report.contradictions.append(f"{claims.says(field)}, but the tensors are {reading.format}")
    if eight:
        return
    if claims.get("quant_type") not in (None, reading.format):
        report.contradictions.append(
            f"{claims.says('quant_type')}, but the quantization state is {reading.format}"
        )
    if claims.get("double_quant") not in (None, reading.nested):
        found = "nested" if reading.nested else "plain float32"
        report.contradictions.append(f"{claims.says('double_quant')}, but absmax is {found}")


def _say_undecidable(report: Report) -> None:
    formats = sorted({(reading.format, reading.bits) for reading in report.chosen})
    if len(formats) > 1:
        names = " or ".join(f"{name} {bits} bit" for name, bits in formats)
        report.undecidable.append(f"format: {names}, by shapes alone")
    for name, bits in formats:
        mine = [r for r in report.chosen if (r.format, r.bits) == (name, bits)]
        sizes = sorted({reading.group_size or 0 for reading in mine})
        first, last = mine[0].group_sizes or (0, 0)
        if len(sizes) > 1:
            report.undecidable.append(f"group_size ({name}): {' or '.join(map(str, sizes))}")
        elif name == "gptq" and last > first and report.evidence["g_idx"]["order"] == "absent":
            report.undecidable.append(
                f"group_size: {first} to {last} make as many groups, and there is no g_idx"
            )
        zeros = [reading.zeros for reading in mine]
        if "v2" in zeros and "v1" in zeros:
            report.undecidable.append(f"zeros ({bits} bit): v1 or v2; {gptq.meanings(report, bits)}")
        if "v1-nowrap" in zeros and "v1" in zeros:
            facts, maxq = report.evidence["stored_zeros"][str(bits)], 2**bits - 1
            report.undecidable.append(
                f"zeros ({bits} bit): v1 or v1-nowrap; {facts['maxq']} of {facts['fields']} stored zeros "
                f"are {maxq}, which is 0 by v1, {maxq + 1} by v1-nowrap (and {maxq} by v2)"
            )
