"""Write the page into a folder: ``index.html`` with its style and script, and the pictures beside it."""

from __future__ import annotations

import base64
import hashlib
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from conformance.errors import UsageError
from conformance.matrix.view import Page

TEMPLATES = Path(__file__).parent / "templates"
# By this a page is known as one that may be replaced.
GENERATOR = "quant-kernel-conformance matrix"
PICTURES = "pictures"
# Cells that are listed above the table.
TOP = 10


def check(out: Path, force: bool) -> None:
    """Raise :class:`UsageError` where a page must not be written."""
    if not out.exists():
        return
    if not out.is_dir():
        raise UsageError(f"--out: expected a folder, found the file {out}")
    if not any(out.iterdir()):
        return
    index = out / "index.html"
    ours = index.is_file() and GENERATOR in index.read_text(encoding="utf-8", errors="replace")[:1000]
    if not ours:
        raise UsageError(f"--out: expected a new folder, an empty one or an earlier page, found {out}")
    if not force:
        raise UsageError(f"--out: expected --force to replace the page in {out}, found none")


def render(page: Page, now: str) -> str:
    """The whole page as HTML; ``now`` is when it was made, UTC as ISO 8601."""
    loader = FileSystemLoader(TEMPLATES)
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["date"] = lambda text: text.replace("T", " ").removesuffix("Z")
    style, script = ((TEMPLATES / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.get_template("page.html").render(
        page=page,
        now=now,
        generator=GENERATOR,
        pictures=PICTURES,
        shown_at_top=TOP,
        # Both are files of this package, not of any run.
        style=Markup(style),
        script=Markup(script),
        script_digest=digest,
    )


def write(out: Path, build: Callable[[Path], str], *, force: bool = False) -> Path:
    """Write what ``build`` gives, and return the path of the page.

    Nothing of an earlier page is touched before the new one is complete; only files that a page
    consists of are replaced.

    Args:
        build: puts pictures into the folder that it is given, and returns the HTML.

    Raises:
        UsageError: as of :func:`check`, or the folder cannot be written.
    """
    check(out, force)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out.parent, prefix=".matrix-") as scratch:
            drawn = Path(scratch) / PICTURES
            drawn.mkdir()
            text = build(drawn)
            ready = Path(scratch) / "index.html"
            ready.write_text(text, encoding="utf-8")
            out.mkdir(exist_ok=True)
            for old in (out / PICTURES).glob("*.svg"):
                old.unlink()
            for picture in sorted(drawn.iterdir()):
                (out / PICTURES).mkdir(exist_ok=True)
                shutil.move(picture, out / PICTURES / picture.name)
            return Path(shutil.move(ready, out / "index.html"))
    except OSError as error:
        raise UsageError(
            f"--out: expected a folder that can be written, found {out}: {error.strerror}"
        ) from error
