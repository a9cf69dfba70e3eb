"""Read a packed weight from files, for ``python -m conformance diagnose``."""

from __future__ import annotations

import dataclasses
import os
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from conformance import bundle
from conformance.detect.build import build
from conformance.detect.core import Detection, detect
from conformance.detect.layers import Layer
from conformance.detect.model import KERNEL_FORMATS, Reading
from conformance.detect.source import Checkpoint, open_checkpoint
from conformance.errors import UsageError
from conformance.given_output import listed
from conformance.registry import Format
from kernels._packed import PackedWeight


def read_weight(
    fmt: Format,
    path: Path,
    *,
    prefix: str | None = None,
    settings: Sequence[str] = (),
    config: Path | None = None,
) -> PackedWeight:
    """Packed weight of a bundle, of a file with the packed type's tensors, or of a checkpoint's layer.

    Args:
        fmt: format that the weight has.
        path: folder of a bundle; or a safetensors file whose tensors are named as the fields of the
            packed type, or ``packed/`` and those names; or a checkpoint as ``detect`` reads it.
        prefix: layer in a file with several.
        settings: texts ``field=value`` for fields that are no tensors.
        config: metadata file of a checkpoint.

    Raises:
        UsageError: names what is missing, or the readings that are left.
    """
    given = _settings(fmt, settings)
    if os.path.isfile(path / "case.json") or path.name == "case.json":
        stored = bundle.read(path)
        if stored.info["case"]["format"] != fmt.name:
            raise UsageError(
                f"--format: expected {stored.info['case']['format']}, as the bundle, found {fmt.name}"
            )
        return _with(bundle.rebuild(fmt.weight_type, stored), given)
    checkpoint = open_checkpoint(path, config)
    start = f"{prefix}." if prefix else ""
    names = {
        name.removeprefix(start).removeprefix("packed/"): name
        for name in checkpoint.tensors
        if name.startswith(start)
    }
    if not names:
        raise UsageError(f"--prefix: expected a layer {prefix!r}, found {listed(list(checkpoint.tensors))}")
    tensors, plain = _fields(fmt.weight_type)
    missing = [name for name in tensors if name not in names]
    unset = [name for name in plain if name not in given]
    if not missing and not unset:
        return _direct(fmt, checkpoint, names, given)
    if fmt.name in KERNEL_FORMATS:
        found = detect(path, config)
        if found.quantized:
            return _detected(fmt, found, prefix, given)
    kind = fmt.weight_type.__name__
    if missing:
        raise UsageError(
            f"--weight: expected tensors {', '.join(tensors)} of {kind}, found no {', '.join(missing)} "
            f"(there are {listed(list(names))})"
        )
    raise UsageError(f"--set: expected {', '.join(unset)} of {kind}, which no tensor tells, found none")


def _fields(kind: type) -> tuple[list[str], list[str]]:
    """Names of the tensors, and of the other fields, that a packed type cannot do without."""
    hints = typing.get_type_hints(kind)
    tensors, plain = [], []
    for field in dataclasses.fields(kind):
        optional = type(None) in typing.get_args(hints[field.name])
        if hints[field.name] is torch.Tensor:
            tensors.append(field.name)
        elif field.default is dataclasses.MISSING and not optional:
            plain.append(field.name)
    return tensors, plain


def _settings(fmt: Format, texts: Sequence[str]) -> dict[str, Any]:
    hints = typing.get_type_hints(fmt.weight_type)
    allowed = {
        field.name: hints[field.name]
        for field in dataclasses.fields(fmt.weight_type)
        if not any(
            kind is torch.Tensor or dataclasses.is_dataclass(kind) for kind in _kinds(hints[field.name])
        )
    }
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or name not in allowed:
            raise UsageError(
                f"--set: expected field=value with a field among {', '.join(allowed)}, found {text!r}"
            )
        found[name] = _parse(name, value, _kinds(allowed[name]))
    return found


def _kinds(hint: Any) -> tuple[Any, ...]:
    """The members of a union, or the type itself."""
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return typing.get_args(hint) if union else (hint,)


def _parse(name: str, text: str, kinds: tuple[Any, ...]) -> Any:
    for kind in kinds:
        if kind is type(None) and text.lower() == "none":
            return None
        if kind is bool and text.lower() in ("true", "false"):
            return text.lower() == "true"
        if kind is int and text.removeprefix("-").isdecimal():
            return int(text)
        parts = text.replace(",", "x").split("x")
        if typing.get_origin(kind) is tuple and all(part.isdecimal() for part in parts):
            return tuple(int(part) for part in parts)
        if typing.get_origin(kind) is typing.Literal and text in typing.get_args(kind):
            return text
    wanted = " or ".join(_words(kind) for kind in kinds)
    raise UsageError(f"--set {name}: expected {wanted}, found {text!r}")


def _words(kind: Any) -> str:
    if typing.get_origin(kind) is typing.Literal:
        return " or ".join(typing.get_args(kind))
    if typing.get_origin(kind) is tuple:
        return "sizes such as 64x128"
    return {int: "an integer", bool: "true or false", type(None): "none"}.get(kind, str(kind))


def _direct(
    fmt: Format, checkpoint: Checkpoint, names: Mapping[str, str], given: Mapping[str, Any]
) -> PackedWeight:
    """The packed type from tensors of its own fields' names."""
    kind = fmt.weight_type
    plain: dict[str, Any] = {
        field.name: field.default
        for field in dataclasses.fields(kind)
        if field.default is not dataclasses.MISSING
    }
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        for inner in _kinds(hints[field.name]):
            if dataclasses.is_dataclass(inner) and any(name.startswith(field.name + ".") for name in names):
                plain[field.name] = {
                    item.name: item.default
                    for item in dataclasses.fields(inner)
                    if item.default is not dataclasses.MISSING
                }
    tensors = {short: checkpoint.load(full) for short, full in names.items()}
    weight = bundle.assemble(kind, {**plain, **given}, tensors)
    try:
        weight.validate()
    except (TypeError, ValueError) as error:
        raise UsageError(f"--weight: {error}") from error
    return weight


def _detected(fmt: Format, found: Detection, prefix: str | None, given: Mapping[str, Any]) -> PackedWeight:
    """A checkpoint's layer, by the one reading of the format that tensors, metadata and settings leave."""
    layer = _layer(found, prefix)
    report = found.report(layer)
    if report.damage:
        raise UsageError(f"{layer.prefix or '--weight'}: {report.damage[0]}")
    mine = [reading for reading in report.chosen if reading.format == fmt.name]
    if not mine:
        names = "; ".join(reading.name for reading in report.chosen) or report.family
        why = next((f", against which speaks {e.why}" for e in report.excluded if fmt.name in e.reading), "")
        raise UsageError(
            f"--format: expected one that the tensors admit ({names}), found {fmt.name}{why}; "
            "with --set for every field that is no tensor they are taken as they are"
        )
    left = [reading for reading in mine if _allows(reading, given)]
    if len(left) != 1:
        names = "; ".join(reading.name for reading in left or mine)
        verb = "leave one of" if left else "name one of"
        raise UsageError(
            f"--set: expected values that {verb}: {names}; found {_shown(given)}{_choices(left or mine)}"
        )
    reading = left[0]
    if "group_size" in given:
        reading = dataclasses.replace(reading, group_size=given["group_size"])
    return _with(build(found.checkpoint, layer, reading), given)


def _layer(found: Detection, prefix: str | None) -> Layer:
    if prefix is not None:
        return found.find(prefix)
    if len(found.quantized) != 1:
        names = listed([layer.prefix for layer in found.quantized])
        raise UsageError(f"--prefix: expected one of the {len(found.quantized)} layers, found none ({names})")
    return found.quantized[0]


def _allows(reading: Reading, given: Mapping[str, Any]) -> bool:
    return (
        given.get("bits", reading.bits) == reading.bits
        and given.get("zeros", reading.zeros) == reading.zeros
        and ("group_size" not in given or reading.allows_group_size(given["group_size"]))
    )


def _shown(given: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in given.items()) or "none"


def _choices(readings: Sequence[Reading]) -> str:
    """What to write after ``--set``: the fields in which readings differ, with their values."""
    found = []
    for name in ("bits", "group_size", "zeros"):
        values = dict.fromkeys(getattr(reading, name) for reading in readings)
        if len(values) > 1:
            found.append(f"{name}={'|'.join(map(str, values))}")
    return f"; --set takes {' and '.join(found)}" if found else ""


def _with(weight: PackedWeight, given: Mapping[str, Any]) -> PackedWeight:
    """The weight with fields replaced that were given and are others."""
    changed = {name: value for name, value in given.items() if getattr(weight, name) != value}
    if not changed:
        return weight
    weight = dataclasses.replace(weight, **changed)
    try:
        weight.validate()
    except (TypeError, ValueError) as error:
        raise UsageError(f"--set: {error}") from error
    return weight
