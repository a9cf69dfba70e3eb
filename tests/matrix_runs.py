"""Results of runs that were never run, for the tests of the result page."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np

from conformance.cli import main
from conformance.compare import Comparison
from conformance.registry import parse_case
from conformance.verdict import Cause, Located, Verdict

INTERPRETER = "cpu (Triton interpreter: no GPU code is tested)"
GPU = "cuda:0 (NVIDIA H200)"


def begin(run: str, started: str = "2026-01-02T03:04:05Z", **more: Any) -> dict[str, Any]:
    """First line of a run; ``triton``, ``device``, ``torch`` and ``python`` go into its environment."""
    environment = {
        "device": more.pop("device", INTERPRETER),
        "triton": more.pop("triton", "3.6.0"),
        "torch": more.pop("torch", "2.13.0"),
        "python": more.pop("python", "3.11.7"),
    }
    return {
        "record": "run",
        "schema": 1,
        "run": run,
        "started": started,
        "environment": environment,
        "interpreter": environment["device"] == INTERPRETER,
        "seed": 7,
        "profile": "nightly",
        "options": {"kernel": [], "gate": "exact", "device": "cpu"},
        "commit": "0123456789abcdef0123456789abcdef01234567",
        "worker": "",
        **more,
    }


WRONG = Comparison("spec", 65, np.arange(65) == 64, 0, 30720, 2.0, False, False, False)
END = {"record": "end", "finished": "2026-01-02T03:05:05Z", "status": 0}


def verdict(kind: str = "EXACT", case: str = "nf4:shape=65", **fields: Any) -> Verdict:
    """A verdict of the built-in kernel; a failing one has a cause, elements and a vote."""
    fields.setdefault("summary", f"summary of {kind}")
    if kind == "MISMATCH":
        fields.setdefault("causes", (Cause("swapped-nibbles", "reads the other nibble", "noise", "swap"),))
        fields.setdefault("located", (Located((64,), "block 1", "-1 (0xbc00)", "1 (0x3c00)"),))
        fields.setdefault("votes", (WRONG,))
    return Verdict(kind, parse_case(case), "kernels.nf4:dequantize", "cpu", elements=65, **fields)


def case(kind: str = "EXACT", test: str = "test_words[nf4-fp16]", **fields: Any) -> dict[str, Any]:
    """The record of a case."""
    return {**verdict(kind, **fields).to_json(), "seconds": 0.01, "test": test}


def write(path: Path, *records: Mapping[str, Any]) -> Path:
    """A file of results."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def night(folder: Path, number: int, *records: Mapping[str, Any], **more: Any) -> Path:
    """A finished run on a day; ``more`` as for :func:`begin`."""
    first = begin(folder.name, f"2026-01-0{number}T00:00:00Z", **more)
    write(folder / "results.jsonl", first, *records, END)
    return folder


class Html(HTMLParser):
    """What the tests ask of a page: its elements with their attributes, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._raw = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._raw = tag if tag in ("script", "style") else self._raw

    def handle_endtag(self, tag: str) -> None:
        self._raw = "" if tag == self._raw else self._raw

    def handle_data(self, data: str) -> None:
        if not self._raw:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def all(self, *tags: str) -> Iterable[dict[str, str | None]]:
        return [attributes for tag, attributes in self.elements if tag in tags]


def page_of(out: Path, *arguments: object) -> Html:
    """The page that the command writes for these arguments."""
    assert main(["matrix", *map(str, arguments), "--out", str(out)]) == 0
    return Html((out / "index.html").read_text(encoding="utf-8"))
