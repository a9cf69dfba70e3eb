"""Judge the built-in kernels on the layers of a checkpoint, against oracles and spec."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from conformance.case import Case
from conformance.detect.build import build
from conformance.detect.core import Detection
from conformance.detect.layers import Layer
from conformance.detect.model import Reading
from conformance.errors import UsageError
from conformance.harness import Checked, Harness
from conformance.patterns import Pattern
from kernels._packed import PackedWeight

SHORT = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}


def case_of(harness: Harness, reading: Reading, weight: PackedWeight, out: str) -> Case:
    """The case that a file's layer is: its dimensions where the format has them by that name.

    The tensors are the file's and not the case's; conditions of known faults need the sizes.
    """
    fmt = harness.formats[reading.format]
    g_idx = getattr(weight, "g_idx", None)
    scales = getattr(weight, "scales", None)
    offered: dict[str, Any] = {
        "shape": tuple(weight.output_shape),
        "K": reading.rows,
        "N": reading.cols,
        "bits": reading.bits,
        "g": reading.group_size,
        "blocksize": reading.group_size,
        "zeros": reading.zeros,
        # The nearest of the generated orders: a file's own has no name.
        "act": Pattern("none") if g_idx is None else Pattern("perm", 0),
        "absmax": "nested" if reading.nested else "plain",
        "sdtype": None if scales is None else SHORT.get(scales.dtype),
        "out": out,
    }
    values: dict[str, Any] = {}
    for dim in fmt.all_dims:
        value = offered.get(dim.name)
        choices = getattr(dim, "choices", None)
        if value is not None and (choices is None or value in choices):
            if choices is None and type(value) is not type(dim.default):
                continue  # a dimension of that name that is about something else
            values[dim.name] = value
    packed = getattr(weight, "packed", None)
    if packed is not None and any(dim.name == "storage" for dim in fmt.all_dims):
        values["storage"] = SHORT.get(packed.dtype, str(packed.dtype).removeprefix("torch."))
    return fmt.case(**values)


def verify_layer(
    harness: Harness, found: Detection, layer: Layer, out: str
) -> Iterator[tuple[Reading | None, Checked | str]]:
    """Verdicts of one layer: one for each reading that detection leaves, or the reason for none."""
    report = found.report(layer)
    if report.damage:
        yield None, f"damaged: {report.damage[0]}"
        return
    if not report.chosen:
        yield None, (report.hints or report.undecidable or ["no reading"])[0]
    for reading in report.chosen:
        if reading.format not in harness.formats or not reading.has_kernel:
            yield reading, "no kernel is registered for this format here"
            continue
        try:
            weight = build(found.checkpoint, layer, reading)
        except UsageError as error:
            yield reading, f"damaged: {error}"
            continue
        case = case_of(harness, reading, weight, out)
        yield reading, harness.judge_weight(case, weight, None, harness.kernels[reading.format])
