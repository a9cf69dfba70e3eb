"""Which formats, dtypes, cases and known faults each test of ``conformance/`` runs over."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from conformance.bits import DTYPES
from conformance.harness import Harness
from conformance.known_faults import KnownFault
from conformance.registry import FUSED, Format, parse_case


def _faults(harness: Harness) -> list[tuple[KnownFault, Format]]:
    return [(entry, harness.formats[parse_case(entry.case).format]) for entry in harness.known_faults]


def _fused(harness: Harness, name: str) -> bool:
    return harness.kernels[name].name.startswith(FUSED)


def parametrize(metafunc: pytest.Metafunc, harness: Harness, cases: Sequence[str]) -> None:
    """Ids carry the format's name, so that ``-k nf4`` selects its tests and no others."""
    names = metafunc.fixturenames
    if "given_case" in names:
        parsed = [parse_case(text) for text in cases]
        # Without --case the one placeholder is taken out again at collection.
        metafunc.parametrize("given_case", parsed or [None], ids=[case.id for case in parsed] or ["none"])
        return
    if "given_product" in names:
        parsed = [case for case in map(parse_case, cases) if _fused(harness, case.format)]
        metafunc.parametrize("given_product", parsed or [None], ids=[case.id for case in parsed] or ["none"])
        return
    if "fused_fmt" in names:
        # Without --fused the one placeholder is taken out again at collection.
        wanted = [
            (fmt, out) for fmt in harness.formats.values() if _fused(harness, fmt.name) for out in DTYPES
        ]
        metafunc.parametrize(
            ("fused_fmt", "out"),
            wanted or [(None, None)],
            ids=[f"{fmt.name}-{out}" for fmt, out in wanted] or ["none"],
        )
        return
    if "fault" in names:
        entries = _faults(harness)
        ids = [f"{entry.id}-{fmt.name}" for entry, fmt in entries]
        metafunc.parametrize("fault", [entry for entry, _ in entries], ids=ids)
        return
    formats = list(harness.formats.values())
    if "out" in names:
        metafunc.parametrize(
            ("fmt", "out"),
            [(fmt, out) for fmt in formats for out in DTYPES],
            ids=[f"{fmt.name}-{out}" for fmt in formats for out in DTYPES],
        )
    else:
        metafunc.parametrize("fmt", formats, ids=[fmt.name for fmt in formats])
