"""What the metadata says: the quantization fields of config.json and its relatives, one form."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from conformance.errors import UsageError

# Names that writers gave the same field. AutoAWQ wrote w_bit and q_group_size; GPTQModel calls
# the checkpoint format "format" in its own file.
SYNONYMS = {
    "method": ("quant_method", "method"),
    "bits": ("bits", "w_bit"),
    "group_size": ("group_size", "q_group_size"),
    "desc_act": ("desc_act",),
    "sym": ("sym",),
    "checkpoint_format": ("checkpoint_format", "format"),
    "version": ("version",),
    "zero_point": ("zero_point",),
    "load_in_4bit": ("load_in_4bit", "_load_in_4bit"),
    "load_in_8bit": ("load_in_8bit", "_load_in_8bit"),
    "quant_type": ("bnb_4bit_quant_type",),
    "double_quant": ("bnb_4bit_use_double_quant",),
    "skipped": ("modules_to_not_convert", "llm_int8_skip_modules"),
    "dynamic": ("dynamic",),
}
TYPES: dict[str, type] = {
    "method": str,
    "bits": int,
    "group_size": int,
    "desc_act": bool,
    "sym": bool,
    "checkpoint_format": str,
    "version": str,
    "zero_point": bool,
    "load_in_4bit": bool,
    "load_in_8bit": bool,
    "quant_type": str,
    "double_quant": bool,
    "skipped": list,
    "dynamic": dict,
}
OVERRIDES = ("bits", "group_size", "desc_act", "sym")


@dataclasses.dataclass(frozen=True)
class Claims:
    """Fields of the metadata under one name each, and where each was read.

    Attributes:
        values: field to value, for the fields that are there.
        where: field to "file: path of the field".
        conflicts: fields on which two files differ.
        files: metadata files that were there; none for a file without metadata.
        not_quantized: pattern by which ``dynamic`` says that this layer is not quantized.
    """

    values: Mapping[str, Any]
    where: Mapping[str, str]
    conflicts: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    not_quantized: str = ""

    def get(self, field: str) -> Any:
        return self.values.get(field)

    @property
    def method(self) -> str | None:
        """quant_method in lower case, or what the other fields imply when it is missing."""
        if "method" in self.values:
            return str(self.values["method"]).lower()
        if self.get("load_in_4bit") or self.get("load_in_8bit"):
            return "bitsandbytes"
        if "version" in self.values or "zero_point" in self.values:
            return "awq"
        return "gptq" if "bits" in self.values else None

    def says(self, field: str) -> str:
        """The field as a sentence's subject: where it is and what it says."""
        return f"{self.where[field]}: {self.values[field]!r}"

    def for_layer(self, prefix: str) -> Claims:
        """With the overrides of GPTQModel's ``dynamic`` for one layer: the first pattern decides."""
        for pattern, override in (self.get("dynamic") or {}).items():
            kind, bare = (pattern[:1], pattern[2:]) if pattern[:2] in ("+:", "-:") else ("+", pattern)
            try:
                if not re.match(bare, prefix):
                    continue
            except re.error as error:
                raise UsageError(
                    f"{self.where['dynamic']}: expected patterns, found {pattern!r}: {error}"
                ) from error
            if kind == "-":
                return dataclasses.replace(self, not_quantized=f"{self.where['dynamic']}[{pattern!r}]")
            if not isinstance(override, dict):
                raise UsageError(
                    f"{self.where['dynamic']}[{pattern!r}]: expected an object, found {override!r:.60}"
                )
            found = {key: override[key] for key in OVERRIDES if override.get(key) is not None}
            where = {key: f"{self.where['dynamic']}[{pattern!r}].{key}" for key in found}
            for key, value in found.items():
                _check(where[key], key, value)
            return dataclasses.replace(self, values={**self.values, **found}, where={**self.where, **where})
        return self


def read_claims(configs: Mapping[str, Mapping[str, Any]]) -> Claims:
    """Claims of the metadata files of a checkpoint.

    Raises:
        UsageError: a field of another type than it must have; names file and field.
    """
    values: dict[str, Any] = {}
    where: dict[str, str] = {}
    conflicts: list[str] = []
    for file, content in configs.items():
        section, at = _section(file, content)
        for field, names in SYNONYMS.items():
            for name in names:
                if section.get(name) is None:
                    continue
                value, place = section[name], f"{at}{name}"
                _check(place, field, value)
                if field not in values:
                    values[field], where[field] = value, place
                elif values[field] != value:
                    conflicts.append(
                        f"{place}: expected {values[field]!r} as {where[field]} says, found {value!r}"
                    )
                break
    return Claims(values, where, tuple(conflicts), tuple(configs))


def _section(file: str, content: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    """The part of a file with quantization fields. A config.json is about more than those."""
    for name in ("quantization_config", "compression_config"):
        if content.get(name) is not None:
            if not isinstance(content[name], dict):
                raise UsageError(f"{file}: {name}: expected an object, found {content[name]!r:.60}")
            return content[name], f"{file}: {name}."
    if any(name in content for name in ("model_type", "architectures")) or file == "config.json":
        return {}, f"{file}: "
    return content, f"{file}: "


def _check(place: str, field: str, value: Any) -> None:
    expected = TYPES[field]
    if not isinstance(value, expected) or (expected is int and isinstance(value, bool)):
        raise UsageError(f"{place}: expected {expected.__name__}, found {value!r:.60}")
    if field == "group_size" and isinstance(value, int) and value != -1 and value < 1:
        raise UsageError(f"{place}: expected -1 or at least 1, found {value}")
