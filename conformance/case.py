"""Case: which packed tensors, which output, which launch. Its id is itself an argument.

``nf4:shape=3x65,blocksize=64,words=random(7),out=bf16``: values equal to the default are
left out. Tensors are a pure function of the case (on the pack route, of the case and of
the upstream packer).
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterable, Mapping
from typing import Any

from conformance.dims import Dim
from conformance.errors import UsageError


@dataclasses.dataclass(frozen=True)
class Case:
    """A format's name and a value for each of its dimensions, in the format's order."""

    format: str
    dims: tuple[Dim, ...] = dataclasses.field(repr=False, compare=False, hash=False)
    values: tuple[Any, ...]

    @classmethod
    def build(cls, format_name: str, dims: tuple[Dim, ...], values: Mapping[str, Any]) -> Case:
        """A case with ``values`` where given and the defaults elsewhere."""
        unknown = values.keys() - (dim.name for dim in dims)
        if unknown:
            names = ", ".join(dim.name for dim in dims)
            raise UsageError(f"{format_name}: expected fields among {names}, found {min(unknown)!r}")
        return cls(format_name, dims, tuple(values.get(dim.name, dim.default) for dim in dims))

    @functools.cached_property
    def _by_name(self) -> dict[str, Any]:
        return {dim.name: value for dim, value in zip(self.dims, self.values, strict=True)}

    def __getitem__(self, name: str) -> Any:
        return self._by_name[name]

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def replace(self, **changes: Any) -> Case:
        """The same case with some dimensions changed."""
        return Case.build(self.format, self.dims, {**self.as_mapping(), **changes})

    def as_mapping(self) -> dict[str, Any]:
        return dict(self._by_name)

    @property
    def id(self) -> str:
        parts = [
            f"{dim.name}={dim.format(value)}"
            for dim, value in zip(self.dims, self.values, strict=True)
            if value != dim.default
        ]
        return f"{self.format}:{','.join(parts)}"

    def to_json(self) -> dict[str, Any]:
        """All dimensions as text, defaults included: a later default cannot change an old case."""
        fields = {dim.name: dim.format(value) for dim, value in zip(self.dims, self.values, strict=True)}
        return {"format": self.format, "fields": fields}

    def __str__(self) -> str:
        return self.id


def split_id(text: str) -> tuple[str, dict[str, str]]:
    """Format name and field texts of a case id.

    Raises:
        UsageError: not of the form ``format:field=value,field=value``, or a field given twice.
    """
    name, colon, rest = text.strip().partition(":")
    if not colon or not name:
        raise UsageError(f"case: expected FORMAT:field=value,..., found {text!r}")
    fields: dict[str, str] = {}
    for part in re.split(r",(?![^(]*\))", rest) if rest else []:
        key, equals, value = part.partition("=")
        if not equals:
            raise UsageError(f"case: expected field=value, found {part!r} in {text!r}")
        if key in fields:
            raise UsageError(f"case: expected each field once, found {key!r} twice in {text!r}")
        fields[key] = value
    return name, fields


def parse_fields(format_name: str, dims: Iterable[Dim], fields: Mapping[str, str]) -> Case:
    """Case out of field texts. Raises :class:`UsageError` that names the field."""
    dims = tuple(dims)
    known = {dim.name: dim for dim in dims}
    values = {}
    for key, text in fields.items():
        if key not in known:
            raise UsageError(f"{format_name}: expected fields among {', '.join(known)}, found {key!r}")
        values[key] = known[key].parse(text)
    return Case.build(format_name, dims, values)
