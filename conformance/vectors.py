"""Recorded vectors: frozen cases with upstream's answers, for machines without the upstream libraries.

One ``recorded/<format>.safetensors`` a format, written by ``python -m conformance record``. Its tensors
are named by their content, so that what is equal is stored once; its metadata has one entry,
``vectors``, the JSON of

======== ====================================================================================
schema   1
format   name of the format
oracles  of each oracle that answered: package, version, callable, kind, device, date
vectors  list, BASIC ones first: ``id``, ``case`` (all fields as text), ``flags``, ``weight``
         (tensor names, and the fields that are no tensors), ``digest`` of the weight,
         ``answers`` (output dtype -> tensor name -> the oracles that gave it), ``left_out``
         (output dtype -> oracle -> the known fault that it shows)
digest   SHA-256 over all of this and all tensors
======== ====================================================================================
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from conformance import bundle
from conformance.bits import DTYPES
from conformance.case import Case, parse_fields
from conformance.errors import UsageError
from conformance.registry import Format
from conformance.vector_flags import FLAGS
from kernels._packed import PackedWeight, named_tensors

SCHEMA = 1
FOLDER = Path(__file__).parent / "recorded"
FIELDS: dict[str, type] = {"format": str, "oracles": dict, "vectors": list, "digest": str}
VECTOR_FIELDS: dict[str, type] = {
    "id": str,
    "case": dict,
    "flags": list,
    "weight": dict,
    "digest": str,
    "answers": dict,
    "left_out": dict,
}
PROVENANCE = ("package", "version", "callable", "kind", "device", "date")


@dataclasses.dataclass(frozen=True)
class Vector:
    """One frozen case.

    Attributes:
        case: the case; its ``out`` is the default and says nothing.
        flags: names of :data:`conformance.vector_flags.FLAGS`.
        weight: packed weight, as recorded.
        answers: output dtype -> oracle -> what it answered.
        left_out: output dtype -> oracle -> known fault that its answer showed, which is not kept.
        digest: of the weight when it was recorded.
    """

    case: Case
    flags: tuple[str, ...]
    weight: PackedWeight
    answers: Mapping[str, Mapping[str, torch.Tensor]]
    left_out: Mapping[str, Mapping[str, str]]
    digest: str

    @property
    def id(self) -> str:
        return self.case.id


@dataclasses.dataclass(frozen=True)
class Vectors:
    """A file: the vectors in order, and where each oracle's answers are from."""

    format: str
    oracles: Mapping[str, Mapping[str, str]]
    vectors: tuple[Vector, ...]


def path_of(name: str, folder: Path = FOLDER) -> Path:
    """File of a format's vectors."""
    return folder / f"{name}.safetensors"


# --- writing ---------------------------------------------------------------------------------


def _key(tensor: torch.Tensor) -> str:
    """Name of a tensor by its content; 64 bits of SHA-256, and a collision is refused."""
    return bundle.digest({"": tensor})[:16]


class _Pool:
    """Tensors by name, equal ones once."""

    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}

    def add(self, tensor: torch.Tensor) -> str:
        tensor = tensor.detach().cpu().contiguous()
        key = _key(tensor)
        if key in self.tensors:
            assert bundle.digest({"": tensor}) == bundle.digest({"": self.tensors[key]})
        else:
            # safetensors refuses tensors that share memory.
            self.tensors[key] = tensor.clone()
        return key


def _vector_json(vector: Vector, pool: _Pool) -> dict[str, Any]:
    answers: dict[str, dict[str, list[str]]] = {}
    for out, by_oracle in vector.answers.items():
        found = answers.setdefault(out, {})
        for oracle, tensor in by_oracle.items():
            found.setdefault(pool.add(tensor), []).append(oracle)
    return {
        "id": vector.id,
        "case": vector.case.to_json(),
        "flags": list(vector.flags),
        "weight": {
            "tensors": {name: pool.add(tensor) for name, tensor in named_tensors(vector.weight)},
            "fields": bundle.plain_fields(vector.weight),
        },
        "digest": vector.digest,
        "answers": answers,
        "left_out": {out: dict(faults) for out, faults in vector.left_out.items()},
    }


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _total_digest(info: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> str:
    plain = {name: value for name, value in info.items() if name != "digest"}
    return hashlib.sha256((_compact(plain) + bundle.digest(tensors)).encode()).hexdigest()


def to_bytes(file: Vectors) -> bytes:
    """The file of some vectors: equal bytes for equal vectors."""
    pool = _Pool()
    # BASIC first: a reader who sees one of them fail need not look at the others.
    ordered = sorted(file.vectors, key=lambda vector: "BASIC" not in vector.flags)
    info: dict[str, Any] = {
        "schema": SCHEMA,
        "format": file.format,
        "oracles": {name: dict(file.oracles[name]) for name in sorted(file.oracles)},
        "vectors": [_vector_json(vector, pool) for vector in ordered],
    }
    info["digest"] = _total_digest(info, pool.tensors)
    # A single entry: safetensors writes several in no fixed order.
    return save(pool.tensors, {"vectors": _compact(info)})


def write(path: Path, file: Vectors) -> int:
    """Write a file, whole or not at all; return its size. Raises :class:`UsageError` where it cannot."""
    data = to_bytes(file)
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(data)
        os.replace(part, path)
    except OSError as error:
        raise unwritable(path, error) from error
    return len(data)


def unwritable(path: Path, error: OSError) -> UsageError:
    return UsageError(f"record: expected a place to write {path} to, found {error.strerror or error}")


# --- reading ---------------------------------------------------------------------------------


def read_info(path: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Metadata and tensors of a file, as stored.

    Raises:
        UsageError: no such file, a damaged or foreign one, or another schema.
    """
    if not path.is_file():
        raise UsageError(
            f"vectors: expected a file {path.name}, found none; write it with "
            f"python -m conformance record --format {path.stem}"
        )
    try:
        with safe_open(path, "pt") as stored:
            info = json.loads((stored.metadata() or {}).get("vectors", "null"))
            tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118 - no mapping
    except (SafetensorError, OSError, ValueError) as error:
        raise UsageError(f"vectors: expected a whole safetensors file, found {path.name}: {error}") from error
    if not isinstance(info, dict) or info.get("schema") != SCHEMA:
        found = info.get("schema") if isinstance(info, dict) else "none"
        raise UsageError(f"vectors: expected schema {SCHEMA} in {path.name}, found {found}")
    _expect(info, FIELDS, path.name)
    for vector in info["vectors"]:
        _expect(vector, VECTOR_FIELDS, path.name)
    if _total_digest(info, tensors) != info["digest"]:
        raise UsageError(f"vectors: expected what was recorded, found {path.name} altered")
    return info, tensors


def _expect(entry: Any, fields: Mapping[str, type], where: str) -> None:
    for name, kind in fields.items():
        if not isinstance(entry, dict) or not isinstance(entry.get(name), kind):
            raise UsageError(f"vectors: expected a {kind.__name__} {name!r} in {where}, found another entry")


def read(fmt: Format, path: Path | None = None) -> Vectors:
    """The recorded vectors of a format.

    Raises:
        UsageError: as :func:`read_info`, or a vector that this format cannot have.
    """
    path = path or path_of(fmt.name)
    info, tensors = read_info(path)
    if info["format"] != fmt.name:
        raise UsageError(f"vectors: expected format {fmt.name} in {path.name}, found {info['format']}")
    try:
        vectors = tuple(_vector(fmt, path, entry, tensors) for entry in info["vectors"])
        file = Vectors(fmt.name, info["oracles"], vectors)
        wrong = next(iter(problems(file)), None)
    except (KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"vectors: expected entries as `record` writes them in {path.name}, found a damaged one "
            f"({type(error).__name__}: {error})"
        ) from error
    if wrong is not None:
        raise UsageError(f"vectors: {path.name}: {wrong}")
    return file


def _vector(fmt: Format, path: Path, entry: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> Vector:
    packed = {f"packed/{name}": tensors[key] for name, key in entry["weight"]["tensors"].items()}
    stored = bundle.Bundle(path, {"fields": entry["weight"]["fields"]}, packed)
    answers = {
        out: {oracle: tensors[key] for key, oracles in found.items() for oracle in oracles}
        for out, found in entry["answers"].items()
    }
    return Vector(
        parse_fields(fmt.name, fmt.all_dims, entry["case"]["fields"]),
        tuple(entry["flags"]),
        bundle.rebuild(fmt.weight_type, stored),
        answers,
        entry["left_out"],
        entry["digest"],
    )


# --- lint ------------------------------------------------------------------------------------


def problems(file: Vectors) -> Iterable[str]:
    """What is wrong with vectors that can be read, one sentence each."""
    for oracle, provenance in file.oracles.items():
        if sorted(provenance) != sorted(PROVENANCE):
            yield f"{file.format}: {oracle}: expected the provenance {', '.join(PROVENANCE)}"
    if not file.vectors:
        yield f"{file.format}: expected vectors, found none"
    for out in DTYPES:
        if not any(vector.answers.get(out) for vector in file.vectors):
            yield f"{file.format}: expected answers in {out}, found none"
    ids = [vector.id for vector in file.vectors]
    if len(set(ids)) != len(ids):
        yield f"{file.format}: a case is there twice"
    basic = ["BASIC" in vector.flags for vector in file.vectors]
    if not any(basic) or basic != sorted(basic, reverse=True):
        yield f"{file.format}: BASIC vectors are not first"
    for vector in file.vectors:
        unknown = set(map(str, vector.flags)) - set(FLAGS)
        if unknown or not vector.flags:
            yield f"{vector.id}: expected described flags, found {sorted(unknown) or 'none'}"
        if not vector.answers or not all(vector.answers.values()):
            yield f"{vector.id}: expected an answer for each output dtype that it lists, found none"
        if bundle.weight_digest(vector.weight) != vector.digest:
            yield f"{vector.id}: the packed tensors are not those of the digest"
        named = {oracle for found in vector.answers.values() for oracle in found}
        if not named or not named <= set(file.oracles):
            yield f"{vector.id}: expected answers of oracles with a provenance, found {sorted(named)}"
