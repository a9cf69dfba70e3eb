"""Detection of a whole checkpoint, one layer after the other."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

from conformance.detect import against, blockwise, words
from conformance.detect.build import build
from conformance.detect.claims import Claims, read_claims
from conformance.detect.layers import Layer, group
from conformance.detect.model import Reading, Report
from conformance.detect.source import CONFIGS, Checkpoint, Info, open_checkpoint
from conformance.errors import UsageError
from kernels._packed import PackedWeight


@dataclasses.dataclass(frozen=True)
class Detection:
    """A checkpoint whose headers are read: its layers are looked at when asked for.

    Attributes:
        contradictions: of the checkpoint as a whole: files that differ, a config without
            quantization beside quantized layers.
    """

    checkpoint: Checkpoint
    layers: tuple[Layer, ...]
    claims: Claims
    contradictions: tuple[str, ...]

    @property
    def quantized(self) -> tuple[Layer, ...]:
        return tuple(layer for layer in self.layers if layer.family != "float")

    def reports(self) -> Iterator[Report]:
        """Reports one by one; tensors of a layer are dropped before the next is read."""
        for layer in self.quantized:
            yield self.report(layer)

    def report(self, layer: Layer) -> Report:
        """What the tensors of one layer admit, and what the metadata makes of that."""
        report = Report(layer.prefix, layer.family)
        report.evidence["tensors"] = {
            field: {"dtype": info.dtype, "shape": list(info.shape)} for field, info in layer.fields.items()
        }
        if layer.family == "words":
            words.detect(self.checkpoint, layer, report)
        elif layer.family == "bitsandbytes 4-bit":
            blockwise.detect_4bit(self.checkpoint, layer, report)
        elif layer.family == "LLM.int8":
            blockwise.detect_rows(self.checkpoint, layer, report)
        else:
            _without_kernel(self.checkpoint, layer, report)
        against.judge(report, self.claims.for_layer(layer.prefix))
        return report

    def find(self, prefix: str) -> Layer:
        """Quantized layer of that name. Raises :class:`UsageError` when there is none."""
        for layer in self.quantized:
            if layer.prefix == prefix:
                return layer
        some = self.quantized[0].prefix if self.quantized else "none"
        raise UsageError(f"layer: expected a quantized layer such as {some!r}, found no {prefix!r}")


def detect(path: Path, config: Path | None = None) -> Detection:
    """Read headers and metadata of a file or folder; nothing of the tensors yet.

    Raises:
        UsageError: see :func:`open_checkpoint` and :func:`read_claims`; also a folder with
            quantized layers and no metadata file.
    """
    checkpoint = open_checkpoint(path, config)
    claims = read_claims(checkpoint.configs)
    layers = tuple(group(checkpoint.tensors))
    quantized = sum(layer.family != "float" for layer in layers)
    if quantized and not checkpoint.configs and path.is_dir():
        raise UsageError(
            f"{CONFIGS[0]} or {CONFIGS[1]}: expected in a folder with quantized layers ({quantized} here), "
            "found neither"
        )
    notes = [*checkpoint.notes, *claims.conflicts]
    files = ", ".join(checkpoint.configs)
    if quantized and checkpoint.configs and claims.method is None:
        notes.append(
            f"{files}: expected quantization_config, as {quantized} layers are quantized, found none"
        )
    if not quantized and claims.method in ("gptq", "awq", "compressed-tensors"):
        subject = (
            claims.says("method") if "method" in claims.where else f"{files}: the fields of {claims.method}"
        )
        notes.append(f"{subject}, but no layer is quantized")
    return Detection(checkpoint, layers, claims, tuple(notes))


def _without_kernel(checkpoint: Checkpoint, layer: Layer, report: Report) -> None:
    """Name formats that this project recognizes and has no kernel for."""
    packed = layer.fields.get("weight_packed")
    if packed is not None:
        kind = "pack-quantized" if packed.dtype == "int32" else f"packed as {packed.dtype}"
        report.hints.append(
            f"compressed-tensors, {kind}: recognized by its names; there is no kernel for it here"
        )
        if "weight_scale" not in layer.fields:
            report.damage.append("weight_scale: expected beside weight_packed, found none")
        elif "weight_shape" in layer.fields and packed.dtype == "int32" and len(packed.shape) == 2:
            _compressed(checkpoint.load(layer.name("weight_shape")).reshape(-1).tolist(), packed, report)
    elif layer.family == "compressed-tensors" and "weight" in layer.fields:
        dtype = layer.fields["weight"].dtype
        report.hints.append(
            f"a weight of {dtype} with scales (compressed-tensors or fp8): there is no kernel for it here"
        )
    elif layer.family == "compressed-tensors":
        report.damage.append(
            f"weight or weight_packed: expected beside {', '.join(layer.fields)}, found none"
        )
    else:
        info = layer.fields["weight"]
        report.undecidable.append(f"a weight of {info} without scales has no reading here")


def _compressed(shape: list[int], packed: Info, report: Report) -> None:
    """Width of pack-quantized codes: [N, ceil(K b / 32)] words for a weight [N, K]."""
    report.evidence["weight_shape"] = shape
    rows, words = packed.shape
    bits = [
        b for b in range(1, 9) if len(shape) == 2 and shape[0] == rows and -(-shape[1] * b // 32) == words
    ]
    report.admitted = [Reading("compressed-tensors", shape[1], rows, b) for b in bits]
    if not bits:
        report.damage.append(
            f"weight_packed: expected [{shape[0] if shape else 0}, K * bits / 32] for weight_shape {shape}, "
            f"found {list(packed.shape)}"
        )


def load_layer(path: Path, prefix: str, reading: Reading | None = None) -> PackedWeight:
    """Packed weight of one layer of a checkpoint, on the CPU.

    Args:
        path: file or folder.
        prefix: name of the layer.
        reading: how to read it; None where detection leaves one reading.

    Raises:
        UsageError: no such layer, damaged, or no single reading and none given.
    """
    found = detect(path)
    layer = found.find(prefix)
    if reading is None:
        report = found.report(layer)
        if report.damage:
            raise UsageError(f"{prefix}: {report.damage[0]}")
        if len(report.chosen) != 1:
            names = "; ".join(item.name for item in report.chosen) or f"no reading of {report.family}"
            raise UsageError(f"{prefix}: expected one reading, found {names}: name one")
        reading = report.chosen[0]
    return build(found.checkpoint, layer, reading)
