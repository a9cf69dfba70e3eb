"""bitsandbytes layers: the 4-bit quantization state against its tensors, and LLM.int8() rows."""

from __future__ import annotations

import json
import math
from typing import Any

import torch

from conformance.detect.layers import Layer
from conformance.detect.model import Reading, Report
from conformance.detect.source import Checkpoint, Info

STATE = "weight.quant_state.bitsandbytes__"
BLOCKSIZES = (32, 64, 128, 256, 512, 1024, 2048, 4096)
STORAGES = ("uint8", "int8", "float16", "bfloat16", "int32", "float32")


def detect_4bit(checkpoint: Checkpoint, layer: Layer, report: Report) -> None:
    """Fill ``report`` for a layer of ``quantize_4bit``: readings need the state blob."""
    names = [field for field in layer.fields if field.startswith(STATE)]
    for field in ("weight", "weight.absmax", "weight.quant_map"):
        if field not in layer.fields:
            report.damage.append(f"{field}: expected beside {', '.join(layer.fields)}, found none")
    if len(names) != 1:
        report.damage.append(
            f"{STATE}nf4 or fp4: expected one quantization state, found {', '.join(names) or 'none'}: "
            "block size and shape are written nowhere else"
        )
    if report.damage:
        return
    state = read_state(checkpoint, layer, names[0], report)
    if state is None:
        return
    report.evidence["quant_state"] = state
    named = names[0].removeprefix(STATE)
    if state["quant_type"] != named:
        report.damage.append(
            f"{names[0]}: expected quant_type {named!r} as it is named, found {state['quant_type']!r}"
        )
        return
    table = which_table(checkpoint.load(layer.name("weight.quant_map")))
    report.evidence["quant_map"] = table
    _sizes(layer, state, report)
    if report.damage:
        return
    shape = tuple(state["shape"])
    cols = shape[0] if shape else 1
    reading = Reading(
        named,
        math.prod(shape[1:]),
        cols,
        4,
        state["blocksize"],
        nested="weight.nested_absmax" in layer.fields,
    )
    for other in ("nf4", "fp4"):
        if other != named:
            report.exclude(other, f"{names[0]}: its quant_type is {named!r}")
    report.admitted.append(reading)
    if table in ("nf4", "fp4") and table != named:
        report.contradictions.append(
            f"weight.quant_map: expected the {named} table as the quantization state says, "
            f"found the {table} table, bit for bit"
        )
    elif table != named:
        report.hints.append(
            f"weight.quant_map is {table}, not bitsandbytes' {named} table: kernels with a table "
            "of their own (bitsandbytes' are such) decode other values than the file's table gives"
        )


def read_state(checkpoint: Checkpoint, layer: Layer, field: str, report: Report) -> dict[str, Any] | None:
    """The quantization state of a layer, or None when it is damaged (noted in ``report``)."""
    blob = checkpoint.load(layer.name(field))
    try:
        state = json.loads(bytes(blob.to(torch.uint8).reshape(-1).tolist()).decode("utf-8"))
    except ValueError as error:
        report.damage.append(f"{field}: expected JSON, found: {error}")
        return None
    nested = "weight.nested_absmax" in layer.fields
    expected = {"quant_type": str, "blocksize": int, "shape": list, "dtype": str}
    if nested:
        expected |= {"nested_blocksize": int, "nested_offset": float}
    if not isinstance(state, dict):
        report.damage.append(f"{field}: expected a JSON object, found a {type(state).__name__}")
        return None
    for key, kind in expected.items():
        value = state.get(key)
        numeric = kind is float and isinstance(value, int)
        if isinstance(value, bool) or not (isinstance(value, kind) or numeric):
            report.damage.append(f"{field}: expected {key} of type {kind.__name__}, found {value!r:.60}")
    if not report.damage and not all(isinstance(n, int) and n >= 0 for n in state["shape"]):
        report.damage.append(f"{field}: expected a shape of sizes, found {state['shape']!r:.60}")
    return None if report.damage else state


def _sizes(layer: Layer, state: dict[str, Any], report: Report) -> None:
    numel, blocksize = math.prod(state["shape"]), state["blocksize"]
    if blocksize not in BLOCKSIZES:
        report.damage.append(f"quant_state: expected blocksize one of {BLOCKSIZES}, found {blocksize}")
        return
    blocks = -(-numel // blocksize)
    weight = layer.fields["weight"]
    n_bytes = -(-numel // 2)
    if weight.dtype not in STORAGES:
        report.damage.append(f"weight: expected dtype one of {', '.join(STORAGES)}, found {weight.dtype}")
    elif weight.n_bytes != n_bytes:
        report.damage.append(
            f"weight: expected {n_bytes} bytes for shape {state['shape']} of quant_state, "
            f"found {weight.n_bytes}"
        )
    nested = "weight.nested_absmax" in layer.fields
    _need(report, layer.fields["weight.absmax"], "weight.absmax", "uint8" if nested else "float32", (blocks,))
    _need(report, layer.fields["weight.quant_map"], "weight.quant_map", "float32", (16,))
    if ("weight.nested_quant_map" in layer.fields) != nested:
        report.damage.append(
            "weight.nested_absmax: expected together with weight.nested_quant_map, found one alone"
        )
    elif nested:
        size = state["nested_blocksize"]
        if size < 1 or size & (size - 1):
            report.damage.append(f"quant_state: expected nested_blocksize a power of two, found {size}")
            return
        groups = (-(-blocks // size),)
        _need(report, layer.fields["weight.nested_absmax"], "weight.nested_absmax", "float32", groups)
        _need(report, layer.fields["weight.nested_quant_map"], "weight.nested_quant_map", "float32", (256,))


def _need(report: Report, info: Info, field: str, dtype: str, shape: tuple[int, ...]) -> None:
    if info.dtype != dtype:
        report.damage.append(f"{field}: expected dtype {dtype}, found {info.dtype}")
    elif info.shape != shape:
        report.damage.append(f"{field}: expected shape {list(shape)}, found {list(info.shape)}")


def which_table(table: torch.Tensor) -> str:
    """``nf4`` or ``fp4`` when a table is bitsandbytes' bit for bit, or words for what it is."""
    from kernels import fp4, nf4  # here: kernels read TRITON_INTERPRET when imported

    if table.dtype != torch.float32 or table.numel() != 16:
        return "no table of 16 float32"
    found = [bits & 0xFFFFFFFF for bits in table.reshape(-1).contiguous().view(torch.int32).tolist()]
    for name, known in (("nf4", nf4.CODEBOOK_BITS), ("fp4", fp4.CODEBOOK_BITS)):
        if found == list(known):
            return name
    values = [float(value) for value in table.reshape(-1)]
    for name, own in (("nf4", nf4.codebook()), ("fp4", fp4.codebook())):
        if values == [float(torch.tensor(round(float(v), 4), dtype=torch.float32)) for v in own]:
            return f"{name} rounded to 4 digits (torchao's)"
    signed = [bits & 0x7FFFFFFF for bits in found]
    if signed == [bits & 0x7FFFFFFF for bits in fp4.CODEBOOK_BITS]:
        return "fp4 but for signs"
    return "an unknown table"


def detect_rows(checkpoint: Checkpoint, layer: Layer, report: Report) -> None:
    """Fill ``report`` for a layer of LLM.int8(): weight int8 [R, C] and SCB float32 [R]."""
    for field in ("weight", "SCB"):
        if field not in layer.fields:
            report.damage.append(f"{field}: expected beside {', '.join(layer.fields)}, found none")
    if report.damage:
        return
    weight = layer.fields["weight"]
    if weight.dtype != "int8" or len(weight.shape) != 2:
        report.damage.append(f"weight: expected int8 of 2 dimensions, found {weight}")
        return
    _need(report, layer.fields["SCB"], "SCB", "float32", weight.shape[:1])
    if "weight_format" in layer.fields:
        value = checkpoint.load(layer.name("weight_format")).reshape(-1).tolist()
        report.evidence["weight_format"] = value
        if value != [0]:
            report.damage.append(
                f"weight_format: expected 0 (rows), found {value}: a tiled order has no reading here"
            )
    if not report.damage:
        report.admitted.append(Reading("llm_int8", weight.shape[1], weight.shape[0], 8))
