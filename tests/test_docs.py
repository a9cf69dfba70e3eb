"""The documents name what exists: formats, verdicts, known faults, files and anchors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance.known_faults import load
from conformance.registry import formats
from conformance.verdict import KINDS

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))]
ENTRIES = load()


def prose(path: Path) -> str:
    """The text of a page without its code, where # begins no heading and [a](b) is no link."""
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"(`+)(?!`).*?\1", lambda code: code[0].replace("](", "] ("), text)


def slug(heading: str) -> str:
    """Anchor that GitHub gives a heading: lower case, no punctuation, hyphens for spaces."""
    words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", words.strip().lower()).replace(" ", "-")


def sections(path: Path) -> dict[str, str]:
    """Text of each section by its anchor, up to the next heading."""
    found: dict[str, str] = {}
    parts = re.split(r"^#{1,6} +(.+?) *$", prose(path), flags=re.MULTILINE)
    for heading, body in zip(parts[1::2], parts[2::2], strict=True):
        anchor = slug(heading)
        assert anchor not in found, f"{path.name}: {heading!r} twice"
        found[anchor] = body
    return found


def links(path: Path) -> Iterator[str]:
    text = prose(path)
    for target in re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(
        r"^\[[^\]]+\]: *(\S+)", text, re.MULTILINE
    ):
        if not re.match(r"[a-z]+:", target):
            yield target


def broken(target: str, start: Path) -> str:
    """Why a relative link on the page ``start`` leads nowhere, or an empty string."""
    name, _, anchor = target.partition("#")
    path = (start.parent / name).resolve() if name else start
    if not path.exists():
        return f"{start.name}: {target}: no such file"
    if anchor and (path.suffix != ".md" or anchor not in sections(path)):
        return f"{start.name}: {target}: no such section"
    return ""


def test_slugs_are_those_of_github():
    assert slug("`UNSUPPORTED`, and what to do") == "unsupported-and-what-to-do"
    assert slug("int8_affine") == "int8_affine"
    assert slug("See [this](other.md)") == "see-this"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(page: Path):
    assert not list(filter(None, (broken(target, page) for target in links(page))))


def test_a_broken_link_is_seen(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text("# One\n```\n# no heading, [no](link)\n```\n[a](#one) [b](#two) [c](gone.md) `[d](x)`\n")
    assert list(links(page)) == ["#one", "#two", "gone.md"]
    assert [bool(broken(target, page)) for target in links(page)] == [False, True, True]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.id)
def test_known_fault_is_described(entry):
    page = DOCS / "known-faults.md"
    assert f"[{entry.id}](#" in prose(page), "no row in the table"
    if "://" not in entry.link:
        assert not broken(entry.link, ROOT / "README.md")
    name, _, anchor = entry.link.partition("#")
    if name == "docs/known-faults.md":
        assert anchor == entry.id or f"`{entry.id}`" in sections(page)[anchor]


@pytest.mark.parametrize("name", formats())
def test_format_has_a_section(name: str):
    assert sections(DOCS / "formats.md")[name].strip()


@pytest.mark.parametrize("kind", KINDS)
def test_verdict_is_explained(kind: str):
    assert sections(DOCS / "interpreting-results.md")[slug(kind)].strip()


def test_fields_of_cases_are_explained():
    text = sections(DOCS / "interpreting-results.md")["case-ids"]
    described = set(re.findall(r"`(\w+)`", "\n".join(re.findall(r"^\|([^|]*)\|", text, re.MULTILINE))))
    for fmt in formats().values():
        missing = {dim.name for dim in fmt.all_dims} - described
        assert not missing, f"{fmt.name}: {sorted(missing)}"
