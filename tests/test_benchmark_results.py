"""What becomes of a run of the benchmarks: tables of the docs and of the terminal, and a picture."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import cli, docs
from benchmarks.cli import main
from benchmarks.results import OURS, read
from benchmarks.roofline import _lines

MACHINE = {"device": "Test Device", "torch": "2.11", "triton": "3.6.0", "date": "2026-01-31"}


def entry(
    variant: str, dtype: str, size: int, group: int, fraction: float, by: str = OURS, reason: str = ""
) -> dict:
    name, _, way = variant.partition("/")
    n_bytes = size * size * 3
    copy = n_bytes / 4e12
    return {
        "format": name,
        "variant": way,
        "dtype": dtype,
        "rows": size,
        "cols": size,
        "group": group,
        "by": by,
        "status": "ok",
        "reason": reason,
        "n_bytes": n_bytes,
        "copies": 2,
        "launch": {},
        "seconds": copy / fraction,
        "low": copy / fraction,
        "high": copy / fraction,
        "copy_seconds": copy,
    }


@pytest.fixture
def results(tmp_path) -> Path:
    wrong = {**entry("gptq/4bit", "fp16", 4096, 128, 0.5), "status": "wrong", "reason": "9 of 9 differ"}
    wrong.update(seconds=None, low=None, high=None, copy_seconds=None)
    found = [
        entry("nf4/plain", "fp16", 8192, 64, 0.9512),
        entry("gptq/4bit", "fp16", 8192, 128, 0.9),
        entry("nf4/plain", "fp16", 4096, 64, 0.8),
        wrong,
        entry("nf4/plain", "fp32", 8192, 64, 0.88),
        entry("nf4/plain", "fp16", 8192, 32, 0.94),
        entry("nf4/plain", "fp16", 8192, 64, 0.4756, "bitsandbytes"),
        entry("gptq/4bit", "fp16", 8192, 128, 0.45, "GPTQModel Triton", "7 of 9 elements differ, first"),
    ]
    overhead = {"format": "nf4", "variant": "plain", "rows": 64, "cols": 64, "reason": ""}
    compiled = {"format": "nf4", "variant": "plain", "dtype": "fp16", "reason": ""}
    content = {
        "schema": 1,
        "machine": MACHINE,
        "measurements": found,
        "overheads": [{**overhead, "host_seconds": 4.21e-5, "graph_seconds": 1.9e-6}],
        "compile_times": [{**compiled, "first_seconds": 0.53, "next_seconds": 1e-4}],
    }
    path = tmp_path / "results.json"
    path.write_text(json.dumps(content))
    return path


TABLES = """Test Device, torch 2.11, Triton 3.6.0, 2026-01-31. The fastest copy moved 4000 GB/s.

### Fraction of copy, fp16

| format | 8192x8192 | 4096x4096 |
|---|---|---|
| nf4, plain | 0.95 | 0.80 |
| gptq, 4bit | 0.90 | wrong |

### Fraction of copy, fp32

| format | 8192x8192 |
|---|---|
| nf4, plain | 0.88 |

### Group sizes, fp16, 8192x8192

| format | group or block size: fraction of copy |
|---|---|
| nf4, plain | 64: 0.95, 32: 0.94 |

### Others

Times faster is a ratio of seconds; each fraction is of a copy measured beside it.

| format | output | size | by | of copy | this repository | times faster | bits |
|---|---|---|---|---|---|---|---|
| nf4, plain | fp16 | 8192x8192 | bitsandbytes | 0.48 | 0.95 | 2.00 | same |
| gptq, 4bit | fp16 | 8192x8192 | GPTQModel Triton | 0.45 | 0.90 | 2.00 | 7 of 9 elements differ |

### Launches, 64x64, fp16

| format | called from Python, us | in a CUDA graph, us | first call, empty cache, s |
|---|---|---|---|
| nf4, plain | 42 | 1.9 | 0.5 |
"""


def test_tables_of_the_docs(results, tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text(f"# Title\n\n{docs.BEGIN}\nold\n{docs.END}\n\n## After\n")
    for _ in range(2):  # written again, nothing changes
        assert main(["--docs", str(results), "--output", str(page)]) == 0
        assert page.read_text() == f"# Title\n\n{docs.BEGIN}\n\n{TABLES}\n{docs.END}\n\n## After\n"
    page.write_text("# Title\n")
    assert main(["--docs", str(results), "--output", str(page)]) == 2
    assert "output: expected the markers" in capsys.readouterr().err


def test_the_page_of_the_docs_has_the_markers():
    text = cli.PAGE.read_text()
    assert text.count(docs.BEGIN) == text.count(docs.END) == 1


def test_tables_of_the_terminal(results, capsys):
    assert main(["--show", str(results)]) == 0
    shown = capsys.readouterr().out
    assert "nf4/plain/fp16/8192x8192/g64" in shown
    assert "0.951" in shown
    assert "wrong: 9 of 9 differ" in shown
    assert "5 ok, 1 wrong, 0 failed, 0 skipped" in shown


@pytest.mark.parametrize(("suffix", "start"), [(".png", b"\x89PNG"), (".svg", b"<?xml")])
def test_picture(results, tmp_path, suffix, start):
    pytest.importorskip("matplotlib")
    path = tmp_path / f"picture{suffix}"
    assert main(["--roofline", str(results), "--output", str(path)]) == 0
    first = path.read_bytes()
    assert first.startswith(start)
    assert len(first) > 10_000
    assert main(["--roofline", str(results), "--output", str(path)]) == 0
    assert path.read_bytes() == first


def test_picture_shows_what_was_measured(results):
    lines = _lines(read(results), "fp16")
    assert {name: [round(found.fraction, 3) for found in entries] for name, entries in lines.items()} == {
        "nf4 plain": [0.8, 0.951],  # by size; the further block size is left out
        "gptq 4bit": [0.9],
    }


def test_picture_without_matplotlib_or_with_an_unknown_suffix(results, tmp_path, monkeypatch, capsys):
    assert main(["--roofline", str(results), "--output", str(tmp_path / "picture.jpg")]) == 2
    assert "ends in .png, .svg, .pdf, found 'picture.jpg'" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["--roofline", str(results), "--output", str(tmp_path / "picture.png")]) == 2
    assert "expected matplotlib to be installed" in capsys.readouterr().err
