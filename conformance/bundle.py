"""Bundles: a failing case with its tensors, to be replayed anywhere, without Hypothesis or oracle.

A bundle is a folder: ``case.json`` (case, kernel, gate, environment, verdict, checksums) and
``tensors.safetensors`` (the packed tensors, ``want`` of every reference and ``got``).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from conformance.compare import GATES
from conformance.errors import UsageError
from kernels._packed import PackedWeight, named_tensors
from oracles.spec.rounding import numpy_bytes

SCHEMA = 1
FIELDS: dict[str, type] = {
    "case": dict,
    "kernel": str,
    "gate": str,
    "fields": dict,
    "digest": str,
    "tensors_digest": str,
    "verdict": dict,
    "environment": dict,
}


@dataclasses.dataclass(frozen=True)
class Bundle:
    """A bundle as read: ``info`` is case.json, ``tensors`` everything in the other file."""

    path: Path
    info: Mapping[str, Any]
    tensors: Mapping[str, torch.Tensor]

    def packed(self) -> dict[str, torch.Tensor]:
        return {
            name.removeprefix("packed/"): t for name, t in self.tensors.items() if name.startswith("packed/")
        }


def digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 over names, dtypes, shapes and bytes, in order of name."""
    total = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        total.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        total.update(numpy_bytes(tensor).tobytes())
    return total.hexdigest()


def weight_digest(weight: PackedWeight) -> str:
    """Digest of a packed weight: equal for equal bytes, in any process."""
    return digest(dict(named_tensors(weight)))


def plain_fields(weight: Any) -> dict[str, Any]:
    """The fields of a packed weight that are no tensors, nested ones included."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(weight):
        value = getattr(weight, field.name)
        if isinstance(value, torch.Tensor):
            continue
        if dataclasses.is_dataclass(value):
            found[field.name] = plain_fields(value)
        else:
            found[field.name] = list(value) if isinstance(value, tuple) else value
    return found


def write(
    folder: Path,
    weight: PackedWeight,
    info: Mapping[str, Any],
    outputs: Mapping[str, torch.Tensor],
) -> Path:
    """Write a bundle into a new folder next to ``folder`` if that name is taken; return its path."""
    number = 1
    target = folder
    while True:
        try:
            target.mkdir(parents=True)
            break
        except FileExistsError:
            number += 1
            target = folder.with_name(f"{folder.name}-{number}")
    tensors = {f"packed/{name}": tensor.contiguous() for name, tensor in named_tensors(weight)}
    tensors |= {name: tensor.contiguous() for name, tensor in outputs.items()}
    # safetensors refuses tensors that share memory (a codebook used twice, say).
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    save_file(tensors, target / "tensors.safetensors")
    record = {
        "schema": SCHEMA,
        **info,
        "fields": plain_fields(weight),
        "digest": weight_digest(weight),
        "tensors_digest": digest(tensors),
    }
    (target / "case.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return target


def read(path: Path) -> Bundle:
    """Read a bundle.

    Raises:
        UsageError: no such folder, a file missing, truncated or foreign, or altered tensors.
    """
    if path.name == "case.json":
        path = path.parent
    if not path.is_dir():
        raise UsageError(f"bundle: expected a folder with case.json, found nothing at {path}")
    case_file, tensor_file = path / "case.json", path / "tensors.safetensors"
    for file in (case_file, tensor_file):
        if not file.is_file():
            raise UsageError(f"bundle: expected a file {file.name} in {path}, found none")
    try:
        info = json.loads(case_file.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise UsageError(f"bundle: expected JSON in {case_file}, found {error}") from error
    if not isinstance(info, dict) or info.get("schema") != SCHEMA:
        found = info.get("schema") if isinstance(info, dict) else type(info).__name__
        raise UsageError(f"bundle: expected schema {SCHEMA} in {case_file}, found {found}")
    for field, kind in FIELDS.items():
        if field not in info:
            raise UsageError(f"bundle: expected a field {field!r} in {case_file}, found none")
        if not isinstance(info[field], kind):
            found = type(info[field]).__name__
            raise UsageError(
                f"bundle: expected {field} in {case_file} to be a {kind.__name__}, found {found}"
            )
    for outer, inner in (
        ("case", "format"),
        ("case", "fields"),
        ("verdict", "verdict"),
        ("environment", "device"),
    ):
        if inner not in info[outer]:
            raise UsageError(f"bundle: expected a field {inner!r} in {outer} of {case_file}, found none")
    if info["gate"] not in GATES:
        raise UsageError(f"gate: expected one of {', '.join(GATES)} in {case_file}, found {info['gate']!r}")
    try:
        tensors = load_file(tensor_file)
    except (SafetensorError, OSError) as error:
        raise UsageError(
            f"bundle: expected a whole safetensors file, found {tensor_file}: {error}"
        ) from error
    if digest(tensors) != info["tensors_digest"]:
        raise UsageError(f"bundle: expected the tensors that were written, found others in {tensor_file}")
    return Bundle(path, info, tensors)


def rebuild(weight_type: type[PackedWeight], bundle: Bundle) -> PackedWeight:
    """The packed weight of a bundle, from its tensors alone: no case, no oracle needed.

    Raises:
        UsageError: fields that the packed type does not have or lacks.
    """
    try:
        weight = assemble(weight_type, bundle.info["fields"], bundle.packed())
        weight.validate()
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"bundle: expected the fields of {weight_type.__name__}, found {error}") from error
    return weight


def assemble(kind: Any, plain: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> Any:
    """A packed type from its tensors by dotted name and its other fields; nothing is checked."""
    import typing

    hints = typing.get_type_hints(kind)
    values: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        inner = [t for t in typing.get_args(hints[field.name]) if dataclasses.is_dataclass(t)]
        prefix = field.name + "."
        if field.name in tensors:
            values[field.name] = tensors[field.name]
        elif inner and isinstance(plain.get(field.name), dict):
            part = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
            values[field.name] = assemble(inner[0], plain[field.name], part)
        else:
            value = plain.get(field.name)
            values[field.name] = tuple(value) if isinstance(value, list) else value
    return kind(**values)
