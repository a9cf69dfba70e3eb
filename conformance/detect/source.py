"""Safetensors checkpoints, headers first: what is in them, without reading tensors.

Headers are parsed here and not by safetensors, because a broken file is to be named with what
was expected and found. Tensors are read one at a time, on request.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from conformance.errors import UsageError

INDEX = "model.safetensors.index.json"
CONFIGS = ("config.json", "quantize_config.json", "quant_config.json")
# safetensors itself refuses longer headers.
LONGEST_HEADER = 100_000_000
DTYPES = {
    "F64": ("float64", 8),
    "F32": ("float32", 4),
    "F16": ("float16", 2),
    "BF16": ("bfloat16", 2),
    "I64": ("int64", 8),
    "I32": ("int32", 4),
    "I16": ("int16", 2),
    "I8": ("int8", 1),
    "U8": ("uint8", 1),
    "BOOL": ("bool", 1),
}


@dataclasses.dataclass(frozen=True)
class Info:
    """What a header says of one tensor. ``dtype`` is torch's name where torch has that dtype."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    n_bytes: int
    file: Path

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}"


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """Headers and metadata files of a checkpoint.

    Attributes:
        path: file or folder that was asked for.
        tensors: every tensor by name, in file order.
        configs: contents of the metadata files by file name; empty for a single file.
        notes: what the shards and their index contradict each other in.
    """

    path: Path
    tensors: Mapping[str, Info]
    configs: Mapping[str, dict[str, Any]]
    notes: tuple[str, ...] = ()

    def load(self, name: str) -> torch.Tensor:
        """One tensor, on the CPU.

        Raises:
            UsageError: no such tensor, or the file cannot be read.
        """
        return self._read(name, None)

    def head(self, name: str, rows: int) -> torch.Tensor:
        """The first ``rows`` rows of one tensor."""
        return self._read(name, rows)

    def _read(self, name: str, rows: int | None) -> torch.Tensor:
        if name not in self.tensors:
            raise UsageError(f"tensor: expected one of {self.path.name}, found no {name!r} in it")
        file = self.tensors[name].file
        try:
            with safe_open(file, "pt") as handle:
                return handle.get_tensor(name) if rows is None else handle.get_slice(name)[:rows]
        except (SafetensorError, OSError) as error:
            raise UsageError(f"{file.name}: expected to read {name!r}, found: {error}") from error


def open_checkpoint(path: Path, config: Path | None = None) -> Checkpoint:
    """Headers of a file, or of the shards of a folder with its metadata files.

    Args:
        path: a ``*.safetensors`` file, or a folder with one or more.
        config: metadata file to use instead of those in the folder; the only way to have
            metadata with a single file.

    Raises:
        UsageError: missing, truncated or foreign file, or metadata that is no JSON object.
    """
    notes: list[str] = []
    if os.path.isdir(path):  # of any name, however long
        shards, listed = _shards(path)
        found = [path / name for name in CONFIGS if (path / name).is_file()]
    elif os.path.isfile(path):
        shards, listed, found = [path], None, []
    else:
        raise UsageError(f"path: expected a safetensors file or a folder with some, found nothing at {path}")
    tensors: dict[str, Info] = {}
    for shard in shards:
        for name, info in read_header(shard).items():
            if name in tensors:
                first = tensors[name].file.name
                raise UsageError(
                    f"{shard.name}: expected each tensor in one shard, found {name!r} in {first} too"
                )
            tensors[name] = info
    if listed is not None:
        notes += _against_index(tensors, listed)
    if config is not None:
        found = [config]
    return Checkpoint(path, tensors, {file.name: read_json(file) for file in found}, tuple(notes))


def _shards(folder: Path) -> tuple[list[Path], dict[str, Any] | None]:
    index = folder / INDEX
    if not index.is_file():
        shards = sorted(folder.glob("*.safetensors"))
        if not shards:
            raise UsageError(f"path: expected a folder with *.safetensors files, found none in {folder}")
        return shards, None
    listed = read_json(index).get("weight_map")
    if not isinstance(listed, dict) or not all(isinstance(file, str) for file in listed.values()):
        raise UsageError(f"{INDEX}: expected an object 'weight_map' of file names, found {listed!r:.60}")
    shards = [folder / name for name in sorted(set(listed.values()))]
    for shard in shards:
        if not shard.is_file():
            raise UsageError(f"{INDEX}: expected the shard {shard.name} that it names, found no such file")
    return shards, listed


def _against_index(tensors: Mapping[str, Info], listed: Mapping[str, str]) -> list[str]:
    for name, file in listed.items():
        if name not in tensors:
            raise UsageError(f"{INDEX}: expected tensor {name!r} in {file}, found no such tensor there")
        if tensors[name].file.name != file:
            raise UsageError(
                f"{INDEX}: expected tensor {name!r} in {file}, found it in {tensors[name].file.name}"
            )
    extra = [name for name in tensors if name not in listed]
    if not extra:
        return []
    return [
        f"{INDEX}: expected every tensor of the shards, found {len(extra)} not listed, the first {extra[0]!r}"
    ]


def read_json(file: Path) -> dict[str, Any]:
    """A metadata file's object. Raises :class:`UsageError` when it is none."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{file.name}: expected a readable file, found: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{file.name}: expected JSON, found: {error}") from error
    if not isinstance(value, dict):
        raise UsageError(f"{file.name}: expected a JSON object, found a {type(value).__name__}")
    return value


def read_header(file: Path) -> dict[str, Info]:
    """What the header of a safetensors file says, checked against the file's size.

    Raises:
        UsageError: truncated, or not a safetensors file; says which, and where.
    """
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            head = stream.read(8)
            length = struct.unpack("<Q", head)[0] if len(head) == 8 else 0
            text = stream.read(length) if length <= min(size, LONGEST_HEADER) else b""
    except OSError as error:
        raise UsageError(f"{file.name}: expected a readable file, found: {error.strerror}") from error
    if len(head) < 8:
        raise UsageError(f"{file.name}: expected a safetensors file (8 bytes or more), found {size} bytes")
    if length > LONGEST_HEADER or (8 + length > size and not text.startswith(b"{")):
        if length <= LONGEST_HEADER:
            raise UsageError(f"{file.name}: expected a header of {length} bytes, found {size - 8}: truncated")
        raise UsageError(
            f"{file.name}: expected a safetensors header, found a length of {length} bytes: foreign"
        )
    if len(text) < length:
        raise UsageError(f"{file.name}: expected a header of {length} bytes, found {len(text)}: truncated")
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{file.name}: expected a JSON header, found another kind of file: {error}"
        ) from error
    if not isinstance(entries, dict):
        raise UsageError(f"{file.name}: expected a JSON object as header, found a {type(entries).__name__}")
    entries.pop("__metadata__", None)
    end = 0
    infos: dict[str, Info] = {}
    for name, entry in entries.items():
        infos[name], last = _info(file, name, entry)
        end = max(end, last)
    if 8 + length + end > size:
        raise UsageError(
            f"{file.name}: expected {8 + length + end} bytes by its header, found {size}: truncated"
        )
    if 8 + length + end < size:
        raise UsageError(
            f"{file.name}: expected {8 + length + end} bytes by its header, found {size}: foreign data"
        )
    return infos


def _info(file: Path, name: str, entry: Any) -> tuple[Info, int]:
    try:
        code, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        good = (
            isinstance(code, str)
            and all(type(n) is int and n >= 0 for n in (*shape, begin, end))
            and begin <= end
        )
    except (KeyError, TypeError, ValueError):
        good = False
    if not good:
        raise UsageError(
            f"{file.name}: expected dtype, shape and data_offsets of {name!r}, found {entry!r:.80}"
        )
    dtype, width = DTYPES.get(code, (code, 0))
    if width and math.prod(shape) * width != end - begin:
        raise UsageError(
            f"{file.name}: expected {math.prod(shape) * width} bytes of {name!r} ({dtype} {list(shape)}), "
            f"found {end - begin}"
        )
    return Info(name, dtype, shape, end - begin, file), end
