"""Known faults of upstream oracles: where an oracle may be outvoted without alarm.

The file is TOML, one ``[[fault]]`` table an entry; ``--known-faults FILE`` replaces the
built-in one. An entry names exactly where upstream is wrong, and is pinned to a case that
is run every time: if upstream is right there, the entry is out of date (FIXED_FAULT).
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from simpleeval import SimpleEval, simple_eval

from conformance.bits import to_float
from conformance.case import Case
from conformance.errors import UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

BUILTIN = Path(__file__).parent / "known_faults.toml"
FIELDS = (
    "id", "oracle", "package", "versions", "where", "formats", "condition", "signature", "effect", "link",
    "expires", "case",
)  # fmt: skip
# What the oracle may get wrong under an entry, and no more.
SIGNATURES = ("values", "sign of zero", "subnormal flushed", "shape")


@dataclasses.dataclass(frozen=True)
class KnownFault:
    """One entry.

    Attributes:
        id: short name.
        oracle: name of the oracle that is wrong.
        package, versions: distribution and the version range that has the fault.
        where: condition on the machine: ``device`` ("cpu", "cuda"), ``cpu_capability`` (as
            torch names it, "AVX512", "AVX2", ...) and ``avx512_bf16`` (bool).
        formats: formats affected.
        condition: condition on the case: its dimensions by name, ``rank``, ``rows``, ``cols``
            and ``numel`` of the output shape, ``itemsize`` of the storage dtype, the machine's
            variables, and what the format's ``facts`` say of the weight.
        signature: what the oracle gets wrong there, one of :data:`SIGNATURES`; a difference
            of another kind is not excused.
        effect: what comes out.
        link: where it is reported or explained.
        expires: date after which the entry no longer excuses anything.
        case: pinned case id that shows the fault.
    """

    id: str
    oracle: str
    package: str
    versions: str
    where: str
    formats: tuple[str, ...]
    condition: str
    signature: str
    effect: str
    link: str
    expires: datetime.date
    case: str

    def applies_here(self, version: str | None, device: torch.device, today: datetime.date) -> str | None:
        """None when the entry is in force on this machine, else the reason why not."""
        if version is None:
            return f"{self.package} is not installed"
        if not _among(version, self.versions):
            return f"{self.package} {version} is outside {self.versions}"
        if not _true_of_machine(self.where, device):
            return f"not on this machine ({self.where})"
        if today > self.expires:
            return f"expired on {self.expires}: verify it again and extend or remove it"
        return None

    def covers(
        self,
        case: Case,
        shape: tuple[int, ...],
        device: torch.device,
        facts: Mapping[str, Any] | None = None,
    ) -> bool:
        """Whether the entry speaks of its oracle on this case; ``facts`` are names about its weight."""
        if case.format not in self.formats:
            return False
        names = {**case_names(case, shape), **machine_names(device), **(facts or {})}
        return bool(SimpleEval(names=names).eval(self.condition, _parsed(self.condition)))

    def explains(self, got: np.ndarray | None, want: np.ndarray, dtype: torch.dtype) -> np.ndarray | bool:
        """Which elements the signature allows to be wrong in the way they are: a mask, or a bool
        for all. ``got`` is None when the oracle returned another shape or dtype."""
        if got is None:
            return self.signature == "shape"
        if self.signature == "values":
            return True
        g, w = to_float(got, dtype), to_float(want, dtype)
        if self.signature == "sign of zero":
            return (g == 0) & (w == 0)
        if self.signature == "subnormal flushed":
            # Of the float32 product: float32 and bfloat16 share the exponent range, and a product just
            # below the smallest normal number rounds to it in bfloat16.
            least, size = torch.finfo(torch.float32).smallest_normal, np.abs(w)
            return (g == 0) & ((size < least) | ((size == least) & (dtype is torch.bfloat16)))
        return False


# A fault that every case of a format shows is asked for with every case.
_parsed = functools.cache(SimpleEval.parse)


@functools.cache
def _among(version: str, versions: str) -> bool:
    return version in SpecifierSet(versions, prereleases=True)


@functools.cache
def _true_of_machine(where: str, device: torch.device) -> bool:
    return bool(simple_eval(where, names=machine_names(device)))


def _cpu_flags() -> frozenset[str]:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return frozenset()
    line = next((line for line in text.splitlines() if line.startswith("flags")), "")
    return frozenset(line.partition(":")[2].split())


@functools.cache
def machine_names(device: torch.device) -> dict[str, Any]:
    """Names that speak of the machine."""
    return {
        "device": device.type,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "avx512_bf16": "avx512_bf16" in _cpu_flags(),
    }


def case_names(case: Case, shape: tuple[int, ...]) -> dict[str, Any]:
    """Names that speak of a case: its dimensions, and what follows from its shape."""
    numel = math.prod(shape)
    cols = shape[-1] if shape else 1
    plain = {name: getattr(value, "name", value) for name, value in case.as_mapping().items()}
    sizes = {"fp16": 2, "bf16": 2, "fp32": 4, "int32": 4, "int16": 2}
    return {
        **plain,
        "rank": len(shape),
        "cols": cols,
        "rows": numel // cols if cols else 0,
        "numel": numel,
        "itemsize": sizes.get(plain.get("storage", ""), 1),
    }


def load(path: Path = BUILTIN) -> tuple[KnownFault, ...]:
    """Read a known-faults file.

    Raises:
        UsageError: missing file, bad TOML, missing or unknown fields, a condition that does
            not parse; names entry and field.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"known-faults: expected a readable text file, found {path} ({error})") from error
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"known-faults: expected TOML, found {path}: {error}") from error
    unknown = set(data) - {"fault"}
    if unknown:
        raise UsageError(f"known-faults: expected [[fault]] tables, found {min(unknown)!r}")
    if not isinstance(data.get("fault", []), list) or not all(
        isinstance(t, dict) for t in data.get("fault", [])
    ):
        raise UsageError(f"known-faults: expected [[fault]] tables, found fault = {data['fault']!r}")
    entries = [_entry(number, table) for number, table in enumerate(data.get("fault", []), 1)]
    ids = [entry.id for entry in entries]
    for identifier in ids:
        if ids.count(identifier) > 1:
            raise UsageError(f"known-faults: expected distinct ids, found {identifier!r} twice")
    return tuple(entries)


def _entry(number: int, table: Mapping[str, Any]) -> KnownFault:
    where = f"known-faults: entry {number}"
    for field in FIELDS:
        if field not in table:
            raise UsageError(f"{where}: expected a field {field!r}, found none")
    for field in table:
        if field not in FIELDS:
            raise UsageError(f"{where}: expected fields among {', '.join(FIELDS)}, found {field!r}")
    for field in FIELDS:
        kind = {"formats": list, "expires": datetime.date}.get(field, str)
        if not isinstance(table[field], kind) or isinstance(table[field], datetime.datetime):
            raise UsageError(f"{where}: expected {field} to be a {kind.__name__}, found {table[field]!r}")
    try:
        SpecifierSet(table["versions"])
    except InvalidSpecifier as error:
        raise UsageError(f"{where}: expected a version range, found {table['versions']!r}") from error
    if table["signature"] not in SIGNATURES:
        raise UsageError(
            f"{where}: expected signature to be one of {', '.join(SIGNATURES)}, found {table['signature']!r}"
        )
    try:
        simple_eval(table["where"], names=machine_names(torch.device("cpu")))
        compile(table["condition"], "condition", "eval")
    except Exception as error:  # of an expression somebody wrote: 1/0 is as wrong as a bad name
        raise UsageError(f"{where}: expected expressions in where and condition, found {error}") from error
    return KnownFault(**{**table, "formats": tuple(table["formats"])})
