"""``mutants --resume``: what earlier runs said is counted, and only the rest is run."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from conformance.cli import main
from conformance.errors import UsageError
from conformance.mutation import isolate, resume
from conformance.mutation.score import Outcome

CAUGHT = Outcome("catalogue", "nf4:a", "nf4", "MISMATCH", "t", "nf4:N=1", 3, ("b", "a"), "a", seconds=0.5)
SURVIVED = Outcome("source", "_x.f:cast:012345", "nf4", change="q  ->  r")
BROKEN = Outcome("catalogue", "nf4:b", "nf4", error="Traceback")


def written(path: Path, *outcomes: Outcome, end: str = "\n") -> Path:
    path.write_text("\n".join(outcome.to_json() for outcome in outcomes) + end, encoding="utf-8")
    return path


def test_outcomes_come_back_as_they_were(tmp_path):
    path = written(tmp_path / "a.jsonl", CAUGHT, SURVIVED, BROKEN)
    assert resume.read([path]) == {CAUGHT.name: CAUGHT, SURVIVED.name: SURVIVED}  # BROKEN is to be run again


def test_the_later_of_two_counts(tmp_path):
    later = dataclasses.replace(CAUGHT, examples=9)
    paths = [written(tmp_path / "a.jsonl", CAUGHT), written(tmp_path / "b.jsonl", later)]
    assert resume.read(paths) == {CAUGHT.name: later}


def test_a_last_line_that_is_cut_off_is_left_out(tmp_path):
    path = written(tmp_path / "a.jsonl", CAUGHT, SURVIVED, end="")
    path.write_text(path.read_text()[:-20])
    assert resume.read([path]) == {CAUGHT.name: CAUGHT}


@pytest.mark.parametrize("line", ["{", "[]", '{"kind": "source"}', "null"])
def test_another_line_is_an_error_with_its_number(line, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(CAUGHT.to_json() + "\n" + line + "\n")
    with pytest.raises(UsageError, match=r"--resume: expected an outcome of a mutant in .*a\.jsonl line 2"):
        resume.read([path])


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(UsageError, match="--resume: expected a file that --json wrote"):
        resume.read([tmp_path / "none.jsonl"])


@pytest.mark.interpreter
def test_only_the_rest_is_run(tmp_path, capsys, monkeypatch):
    command = [
        "mutants",
        "--device",
        "cpu",
        "--jobs",
        "1",
        "--max-examples",
        "2",
        "--only",
        "llm_int8:no-127",
    ]
    first = tmp_path / "first.jsonl"
    assert main([*command, "--json", str(first)]) == 0
    ran: list[str] = []
    real = isolate.run_all

    def watched(jobs, *arguments, **options):
        ran.extend(job.name for job in jobs)
        return real(jobs, *arguments, **options)

    monkeypatch.setattr(isolate, "run_all", watched)
    second = tmp_path / "second.jsonl"
    assert main([*command, "--resume", str(first), "--json", str(second)]) == 0
    assert ran == []
    assert second.read_text() == first.read_text()
    assert "1 outcomes of earlier runs" in capsys.readouterr().out
    # One that survived is run again: the suite may have a case for it since.
    fields = json.loads(first.read_text())
    first.write_text(json.dumps({**fields, "verdict": "", "causes": []}) + "\n")
    assert main([*command, "--resume", str(first)]) == 0
    assert ran == ["llm_int8:no-127"]
