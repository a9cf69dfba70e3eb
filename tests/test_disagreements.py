"""The table of disagreements: what is in docs/ is what the libraries do, and every side can be asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance import disagreements
from conformance.errors import UsageError
from conformance.registry import find_format, parse_case

DOC = Path(__file__).resolve().parents[1] / "docs" / "disagreements.md"


def need(entry: disagreements.Entry) -> None:
    for text, side in entry.sides:
        answer = disagreements.decode(parse_case(text), side)
        if isinstance(answer, str):
            pytest.skip(f"{side}: {answer}")
    for oracle in find_format(parse_case(entry.sides[0][0]).format).oracles:
        found = oracle.provenance()
        if found.version != found.tested:
            pytest.skip(f"written with {found.package} {found.tested}, here is {found.version}")


@pytest.mark.parametrize("entry", disagreements.ENTRIES, ids=lambda entry: entry.title.replace(" ", "-"))
def test_the_sides_differ(entry):
    need(entry)
    _, rows = disagreements.compare(entry.sides, entry.element)
    assert len({row.value for row in rows}) > 1
    assert len(entry.reason.splitlines()) == 1


def test_the_document_is_what_the_command_prints():
    for entry in disagreements.ENTRIES:
        need(entry)
    assert DOC.read_text(encoding="utf-8") == disagreements.markdown()


def test_the_first_three_readings_of_maxq():
    entry = disagreements.ENTRIES[0]
    need(entry)
    values = [row.value for row in disagreements.compare(entry.sides, entry.element)[1]]
    assert values == ["0", "0", "0", "-16", "-15", "-15"]


def test_an_unknown_side_is_named():
    with pytest.raises(
        UsageError, match=r"side: expected one of spec, autoawq, .*unpack_reorder_pack, found 'x'"
    ):
        disagreements.decode(parse_case("awq_cols:K=8"), "x")
