"""The page as HTML: whole by itself, safe with what kernels say, and never in place of other files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from conformance.cli import main
from conformance.matrix.shown import is_link
from conformance.matrix.site import TEMPLATES
from conformance.verdict import Cause, Located
from tests.matrix_runs import case, night, page_of

PAYLOAD = "<script>alert(1)</script><img src=x onerror='alert(2)'>\"'&"
STYLE = (TEMPLATES / "page.css").read_text(encoding="utf-8")


@pytest.fixture
def rich(tmp_path: Path) -> list[Path]:
    """Two nights with a new, a lasting, a fixed and a lost failure."""
    failing = [case("MISMATCH", f"test_{name}[nf4-fp16]") for name in ("still", "fixed", "lost")]
    later = [case("MISMATCH", f"test_{name}[nf4-fp16]") for name in ("still", "new")]
    good = case("EXACT", "test_fixed[nf4-fp16]")
    return [night(tmp_path / "a", 1, *failing), night(tmp_path / "b", 2, *later, good)]


def test_nothing_is_loaded_from_elsewhere(tmp_path: Path, rich: list[Path]):
    page = page_of(tmp_path / "site", *rich)
    assert page.all("script")
    for attributes in page.all("script", "link", "img", "iframe", "source", "object"):
        for name in ("src", "href", "data"):
            assert not re.match(r"(https?:)?//", attributes.get(name) or "")
    assert "url(" not in STYLE
    assert "@import" not in STYLE


def test_links_lead_somewhere_and_ids_are_unique(tmp_path: Path, rich: list[Path]):
    page = page_of(tmp_path / "site", *rich)
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = [attributes["href"] or "" for attributes in page.all("a")]
    assert targets
    for target in targets:
        assert target.removeprefix("#") in ids
    labels = [attributes.get("aria-labelledby") for _, attributes in page.elements]
    assert all(label in ids for label in labels if label)


def test_tables_and_landmarks_are_marked_up(tmp_path: Path, rich: list[Path]):
    page = page_of(tmp_path / "site", *rich)
    assert all(attributes.get("scope") in ("col", "row") for attributes in page.all("th"))
    for landmark in ("main", "header", "nav", "footer"):
        assert len(list(page.all(landmark))) == 1
    first = next(attributes for tag, attributes in page.elements if tag == "a")
    assert first == {"class": "skip", "href": "#main"}
    # What scrolls can be scrolled with the keyboard.
    for attributes in page.all("div"):
        if attributes.get("class") == "scroll":
            assert attributes.get("tabindex") == "0"
            assert attributes.get("aria-label") or attributes.get("aria-labelledby")


def test_each_change_is_on_the_page(tmp_path: Path, rich: list[Path]):
    text = page_of(tmp_path / "site", *rich).text
    for words in (
        "1 new",
        "1 still",
        "1 fixed",
        "1 not run again",
        "new MISMATCH test_new[nf4-fp16]",
        "fixed test_fixed[nf4-fp16] MISMATCH: swapped-nibbles",
        "not run again test_lost[nf4-fp16]",
    ):
        assert words in text


@pytest.mark.parametrize("where", ["summary", "cause", "located", "kernel", "test", "options", "device"])
def test_what_a_run_says_is_text_and_no_markup(tmp_path: Path, where: str):
    record, more = case("MISMATCH"), {}
    if where == "cause":
        record = case("MISMATCH", causes=(Cause(PAYLOAD, PAYLOAD, PAYLOAD, PAYLOAD),))
    elif where == "located":
        record = case("MISMATCH", located=(Located((0,), PAYLOAD, PAYLOAD, PAYLOAD),))
    elif where == "options":
        more = {"options": {"kernel": [f"nf4={PAYLOAD}"]}, "profile": PAYLOAD, "commit": PAYLOAD}
    elif where == "device":
        more = {"device": f"cuda:0 ({PAYLOAD})"}
    else:
        record[where] = PAYLOAD
    page = page_of(tmp_path / "site", night(tmp_path / "a", 1, record, **more))
    assert len(list(page.all("script"))) == 1
    assert not list(page.all("img"))
    assert "alert(1)" in page.text


def test_a_link_is_one_to_the_web(tmp_path: Path):
    links = ("https://github.com/a/b/issues/1", "javascript:alert(1)", "data:text/html,x", " https://x.y")
    record = case("MISMATCH", causes=(Cause("a", "b", links=links),))
    page = page_of(tmp_path / "site", night(tmp_path / "a", 1, record))
    outside = [a["href"] for a in page.all("a") if not (a["href"] or "").startswith("#")]
    assert outside == [links[0]]
    assert not is_link(None)


# --- colours -----------------------------------------------------------------------------------


def luminance(colour: str) -> float:
    """Relative luminance as WCAG 2 defines it."""
    channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_the_contrast_that_wcag_aa_asks_for(scheme: str):
    light, dark = re.findall(r":root \{(.*?)\}", STYLE, re.DOTALL)
    colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", light if scheme == "light" else dark))
    pairs = [(text, back) for text in ("text", "soft", "link") for back in ("back", "raised", "fail-back")]
    pairs += [("fail", "fail-back"), ("fail", "back"), ("pass", "back"), ("new", "fail-back")]
    pairs += [("still", "still-back"), ("fixed", "fixed-back")]
    for text, back in pairs:
        low, high = sorted((luminance(colours[text]), luminance(colours[back])))
        assert (high + 0.05) / (low + 0.05) >= 4.5, (text, back)


# --- the folder --------------------------------------------------------------------------------


def test_a_page_is_replaced_only_with_force(tmp_path: Path, rich: list[Path], capsys):
    out = tmp_path / "site"
    page_of(out, rich[0])
    (out / "CNAME").write_text("mine", encoding="utf-8")
    (out / "pictures").mkdir()
    (out / "pictures" / "old.svg").touch()
    before = (out / "index.html").read_bytes()
    assert main(["matrix", str(rich[1]), "--out", str(out)]) == 2
    assert "--out: expected --force to replace the page" in capsys.readouterr().err
    assert (out / "index.html").read_bytes() == before
    page_of(out, rich[1], "--force")
    assert (out / "index.html").read_bytes() != before
    assert (out / "CNAME").read_text(encoding="utf-8") == "mine"
    assert not (out / "pictures" / "old.svg").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "site"]


@pytest.mark.parametrize("force", [[], ["--force"]])
@pytest.mark.parametrize("name", ["thesis.tex", "index.html"])
def test_a_folder_of_other_things_is_refused(tmp_path: Path, rich: list[Path], capsys, force, name: str):
    out = tmp_path / "site"
    out.mkdir()
    (out / name).write_text("<html>mine</html>", encoding="utf-8")
    assert main(["matrix", str(rich[0]), "--out", str(out), *force]) == 2
    assert "--out: expected a new folder, an empty one or an earlier page" in capsys.readouterr().err
    assert [(path.name, path.read_text(encoding="utf-8")) for path in out.iterdir()] == [
        (name, "<html>mine</html>")
    ]


def test_a_file_is_no_folder(tmp_path: Path, rich: list[Path], capsys):
    (tmp_path / "file").touch()
    assert main(["matrix", str(rich[0]), "--out", str(tmp_path / "file")]) == 2
    assert "--out: expected a folder, found the file" in capsys.readouterr().err
    assert main(["matrix", str(rich[0]), "--out", str(tmp_path / "file" / "below")]) == 2
    assert "--out: expected a folder that can be written" in capsys.readouterr().err


def test_equal_results_give_equal_pages(tmp_path: Path, rich: list[Path]):
    def text(out: Path) -> str:
        page_of(out, *rich)
        return re.sub(r"Made <time.*?</time>", "", (out / "index.html").read_text(encoding="utf-8"))

    assert text(tmp_path / "one") == text(tmp_path / "two")


def test_names_that_are_alike_as_ids_stay_apart(tmp_path: Path):
    record = case("MISMATCH", "test_a[nf4-fp16]")
    folder = night(tmp_path / "a", 1, record, {**record, "format": "nf4_x"}, {**record, "format": "nf4-x"})
    ids = [a["id"] for _, a in page_of(tmp_path / "site", folder).elements if "id" in a]
    assert len(ids) == len(set(ids))
