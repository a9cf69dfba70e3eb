"""The page in a real Chromium: fits a phone, works by keyboard, and without its script.

Skipped where Chromium or the package playwright is missing: ``pip install playwright`` and a Chromium
of the system (Debian: ``apt-get install chromium``).
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.matrix_runs import GPU, case, night, page_of

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CHROMIUM = next((path for name in NAMES if (path := shutil.which(name))), None)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Headless Chromium."""
    if CHROMIUM is None:
        pytest.skip(f"no Chromium is installed: none of {', '.join(NAMES)} is on the path")
    api = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed")
    with api.sync_playwright() as started:
        # As root, and in many containers, Chromium's own sandbox cannot start.
        running = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with many columns and long words."""
    folder = tmp_path_factory.mktemp("matrix")
    long = "nf4:blocksize=1024,shape=1x4094,absmax=nested,storage=int8,scales=ties(49),out=fp32,layout=padded"
    for number, triton in enumerate(("3.2.0", "3.5.1", "3.9.0"), 1):
        good = case("EXACT", "test_words[gptq-fp16]", case="gptq:g=32,K=32,N=8")
        bad = case("MISMATCH", case=long, reading="x" * 300)
        night(folder / f"cpu{number}", number, good, bad, triton=triton)
        night(folder / f"gpu{number}", number, good, triton=triton, device=GPU)
    page_of(folder / "site", folder, "--pictures", 0)
    return folder / "site" / "index.html"


def open_page(browser: Any, path: Path, **options: Any) -> tuple[Any, list[str]]:
    """The page, and what goes wrong on it from now on."""
    shown = browser.new_page(**options)
    wrong: list[str] = []
    shown.on("console", lambda message: wrong.append(message.text))
    shown.on("pageerror", lambda error: wrong.append(str(error)))
    shown.on("requestfailed", lambda request: wrong.append(request.url))
    shown.goto(path.as_uri())
    return shown, wrong


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_nothing_is_wider_than_the_screen(browser: Any, page: Path, width: int, scheme: str):
    shown, wrong = open_page(browser, page, viewport={"width": width, "height": 800}, color_scheme=scheme)
    shown.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true })")
    assert shown.evaluate("document.documentElement.scrollWidth") <= width
    dark = shown.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(18, 22, 27)"
    assert dark == (scheme == "dark")
    assert not wrong
    shown.close()


def test_the_keyboard_reaches_and_opens_everything(browser: Any, page: Path):
    shown, _ = open_page(browser, page, viewport={"width": 1280, "height": 800})
    focused = "(({tagName, className, id, hash}) => [tagName, className, id, hash])(document.activeElement)"
    shown.keyboard.press("Tab")
    assert shown.evaluate(focused)[:2] == ["A", "skip"]
    assert shown.evaluate("document.activeElement.getBoundingClientRect().left") >= 0
    seen = []
    for _ in range(60):
        shown.keyboard.press("Tab")
        tag, name, ident, link = shown.evaluate(focused)
        assert shown.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
        seen.append(ident or name or link or tag)
        if tag == "SUMMARY":
            break
    assert seen.index("#matrix") < seen.index("filter-format") < seen.index("open-all") < seen.index("scroll")
    assert seen.index("scroll") < seen.index("state") < seen.index("SUMMARY")
    shown.keyboard.press("Enter")
    assert shown.evaluate("document.activeElement.parentElement.open")
    shown.close()


def test_a_cell_leads_to_its_findings(browser: Any, page: Path):
    shown, _ = open_page(browser, page, viewport={"width": 360, "height": 800})
    link = shown.locator("td a.state").first
    link.focus()
    shown.keyboard.press("Enter")
    target = shown.evaluate("location.hash.slice(1)")
    assert shown.evaluate("id => document.getElementById(id).getBoundingClientRect().top < 800", target)
    shown.close()


def test_the_filter_leaves_what_matches(browser: Any, page: Path):
    shown, wrong = open_page(browser, page)
    rows = shown.locator("tr[data-format]")
    assert rows.count() == 2
    shown.fill("#filter-format", "GPT")
    assert [row.get_attribute("data-format") for row in rows.all() if row.is_visible()] == ["gptq"]
    assert shown.inner_text("#filter-count") == "1 of 2 formats"
    shown.fill("#filter-format", "")
    shown.select_option("#filter-status", "fail")
    assert [row.get_attribute("data-format") for row in rows.all() if row.is_visible()] == ["nf4"]
    shown.click("#open-all")
    assert shown.evaluate("[...document.querySelectorAll('details')].every(one => one.open)")
    assert not wrong
    shown.close()


def test_without_the_script_all_of_it_is_there(browser: Any, page: Path):
    context = browser.new_context(java_script_enabled=False)
    shown = context.new_page()
    shown.goto(page.as_uri())
    assert not shown.locator("#filter").is_visible()
    assert all(row.is_visible() for row in shown.locator("tr[data-format]").all())
    shown.locator("summary").first.click()
    assert shown.locator("details dd").first.is_visible()
    context.close()
