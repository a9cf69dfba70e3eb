"""``python -m benchmarks.harness``: what it counts, and what it refuses to time."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from benchmarks.harness import STAGES, Profile


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own: it chooses the device."""
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.harness", "--device", "cpu", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


def test_stages_add_up_and_are_all_there(tmp_path):
    file = tmp_path / "speed.json"
    done = run("--format", "nf4", "--format", "llm_int8", "--cases", "6", "--json", str(file))
    assert done.returncode == 0, done.stderr
    record = json.loads(file.read_text())
    assert [entry["format"] for entry in record["formats"]] == ["nf4", "llm_int8"]
    for entry in record["formats"]:
        assert tuple(entry["seconds"]) == STAGES
        assert entry["cases"] == 6
        assert entry["elements"] > 0
        measured = [stage for stage in STAGES if stage not in ("oracles", "asking")]  # may be missing here
        assert all(entry["seconds"][stage] > 0 for stage in measured), entry
        assert entry["cases_per_s"] == 6 / entry["whole"]
    assert {"dtype", "cases", "seed", "date"} <= set(record["about"])
    assert "nf4" in done.stdout
    assert "own share" in done.stdout


def test_own_share_leaves_kernel_and_oracles_out():
    seconds = {"draw": 1, "input": 1, "kernel": 3, "guards": 1, "oracles": 2, "asking": 1, "comparison": 1}
    found = Profile("nf4", "fp16", 20, 1, 5.0, seconds)
    assert found.rate == 4
    assert found.own == 1 - 5 / 10
    assert found.without_asking == pytest.approx(4 / 10)


def test_what_cannot_be_timed_is_refused():
    unknown = run("--format", "nf5")
    assert unknown.returncode == 2
    assert "error: format: expected one of" in unknown.stderr
    none = run("--format", "nf4", "--cases", "0")
    assert none.returncode == 2
    assert "error: --cases: expected at least 1, found 0" in none.stderr


def test_a_file_that_cannot_be_written_is_named_before_anything_is_timed(tmp_path):
    file = tmp_path / "speed.json"
    file.write_text("kept")
    arguments = ("--format", "nf4", "--cases", "2", "--json")
    there = run(*arguments, str(file))
    assert there.returncode == 2
    assert f"--json: expected no file yet, found {file}; --force writes it again" in there.stderr
    assert file.read_text() == "kept"
    folder = run(*arguments, str(tmp_path))
    assert folder.returncode == 2
    assert "error: --json: " in folder.stderr
    assert run(*arguments, str(file), "--force").returncode == 0
    assert json.loads(file.read_text())["formats"]
    fresh = tmp_path / "new" / "speed.json"
    assert run(*arguments, str(fresh)).returncode == 0
    assert fresh.exists()
