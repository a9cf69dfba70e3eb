"""From a run with workers to the page: what is recorded of the run, and what the page makes of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conformance.results import Summary, read_results
from conformance.run_record import commit
from tests.harness_runs import pytest_run
from tests.matrix_runs import page_of

KERNEL = '''
from kernels import nf4

def dequantize(weight, *, dtype, out=None):
    """Twice the right value in the second half."""
    result = nf4.dequantize(weight, dtype=dtype).clone()
    flat = result.reshape(-1)
    flat[flat.numel() // 2 :] *= 2
    result = flat.reshape(result.shape)
    return result if out is None else out.copy_(result)
'''


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two workers that judges a wrong nf4 kernel, and the right one of fp4."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "wrong.py").write_text(KERNEL, encoding="utf-8")
    done = pytest_run(
        *("conformance", "-n", "2", "-q", "-k", "tiles and fp16 and (nf4 or fp4)"),
        *("--kernel", f"nf4={folder / 'wrong.py'}:dequantize", "--results", str(folder / "results")),
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return folder / "results"


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_every_process_says_where_it_was_and_that_it_ended(results: Path):
    files = {path.stem: lines(path) for path in results.glob("results*.jsonl")}
    assert sorted(files) == ["results", "results-gw0", "results-gw1"]
    first = [records[0] for records in files.values()]
    assert len({record["run"] for record in first}) == 1
    assert {record["worker"] for record in first} == {"", "gw0", "gw1"}
    for record in first:
        assert record["record"] == "run"
        assert record["interpreter"] is True
        assert {"device", "torch", "triton", "python", "numpy"} <= record["environment"].keys()
        assert record["profile"] == "default"
        assert record["options"]["kernel"][0].startswith("nf4=")
        assert record["commit"] == commit()
    assert [records[-1].get("record") for records in files.values()] == ["end"] * 3


def test_lines_about_the_run_are_no_cases(results: Path):
    summary = Summary(read_results(results))
    assert set(summary.verdicts) == {"nf4", "fp4"}
    assert summary.cases == sum(sum(counts.values()) for counts in summary.verdicts.values())
    assert summary.failures.total() == 1


def test_the_page_shows_what_was_found_with_its_picture(results: Path, tmp_path: Path):
    page = page_of(tmp_path / "site", results)
    for words in ("1 failing", "got = 2 * want", "largest absolute error", "SNR (dB)", "✓ pass", "finished"):
        assert words in page.text
    assert f"--kernel nf4={results.parent / 'wrong.py'}:dequantize --device cpu" in page.text
    assert f"python -m conformance replay {results / 'bundles' / 'nf4-mismatch'}" in page.text
    (image,) = page.all("img")
    picture = tmp_path / "site" / str(image["src"])
    assert picture.read_text(encoding="utf-8").lstrip().startswith("<?xml")
    assert image["alt"]


def test_pictures_that_are_left_out_are_counted(results: Path, tmp_path: Path):
    page = page_of(tmp_path / "site", results, "--pictures", 0)
    assert not list(page.all("img"))
    assert "1 more findings have a bundle, but no picture: --pictures is 0" in page.text


def test_results_without_their_bundles_still_tell_the_causes(results: Path, tmp_path: Path):
    """As they are when only the JSON lines are kept."""
    for path in results.glob("*.jsonl"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    page = page_of(tmp_path / "site", *sorted(tmp_path.glob("*.jsonl")))
    assert "got = 2 * want" in page.text
    assert "replay" not in page.text


@pytest.mark.parametrize("damage", ["case.json", "tensors.safetensors"])
def test_a_damaged_bundle_is_told_and_the_page_is_made(results: Path, tmp_path: Path, damage: str):
    copy = tmp_path / "run"
    for path in results.rglob("*"):
        if path.is_file():
            target = copy / path.relative_to(results)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    (file,) = copy.rglob(damage)
    file.write_bytes(file.read_bytes()[:40])
    page = page_of(tmp_path / "site", copy)
    assert "no picture: bundle: expected" in page.text
    assert "1 failing" in page.text
