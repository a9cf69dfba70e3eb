"""Files of results: many of one run, the same twice, cut off, empty, foreign."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conformance.cli import main
from conformance.matrix.read import read
from tests.matrix_runs import END, begin, case, night, page_of, write

BAD, GOOD = case("MISMATCH"), case("EXACT")


def test_processes_of_a_run_are_one_run(tmp_path: Path):
    for worker in ("gw0", "gw1"):
        write(tmp_path / f"results-{worker}.jsonl", {**begin("one"), "worker": worker}, GOOD, END)
    (run,) = read([tmp_path], "results")[0]
    assert run.cases == 2
    assert run.state == "finished"


@pytest.mark.parametrize("copied", [False, True])
def test_a_run_that_is_given_twice_counts_once(tmp_path: Path, copied: bool):
    first = night(tmp_path / "a", 1, GOOD) / "results.jsonl"
    again = first
    if copied:
        again = tmp_path / "copy.jsonl"
        again.write_bytes(first.read_bytes())
    runs, notes = read([first, again], "results")
    assert [run.cases for run in runs] == [1]
    assert "given twice" in notes[0]


def test_a_last_line_that_was_cut_off_is_told_and_the_others_count(tmp_path: Path):
    path = write(tmp_path / "results.jsonl", begin("a"), GOOD, BAD)
    path.write_text(path.read_text(encoding="utf-8") + '{"verdict": "EXA', encoding="utf-8")
    page = page_of(tmp_path / "site", path)
    assert f"{path} line 4 was cut off" in page.text
    assert "was cut off in its processes main" in page.text
    assert "1 EXACT" in page.text


@pytest.mark.parametrize("status", [2, 3])
def test_a_run_that_was_stopped_is_told(tmp_path: Path, status: int):
    write(tmp_path / "a.jsonl", begin("a"), GOOD, {**END, "status": status})
    assert f"stopped (pytest exit code {status})" in page_of(tmp_path / "site", tmp_path / "a.jsonl").text


def test_results_of_unknown_origin_are_told(tmp_path: Path):
    page = page_of(tmp_path / "site", write(tmp_path / "results.jsonl", GOOD))
    assert "does not say which environment it is from" in page.text
    assert "Triton not recorded" in page.text


def test_an_empty_file_beside_others_is_told(tmp_path: Path):
    night(tmp_path / "a", 1, GOOD)
    (tmp_path / "a" / "results-gw1.jsonl").touch()
    assert "results-gw1.jsonl is empty" in page_of(tmp_path / "site", tmp_path / "a").text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "results: expected at least one case, found none in 1 files"),
        (json.dumps(begin("a")) + "\n", "results: expected at least one case, found none in 1 files"),
        ("not json\n{}\n", "results: expected JSON in {} line 1, found: "),
        ("[" * 100_000 + "\n", "results: expected JSON in {} line 1, found: "),
        ("\n[1]\n", "results: expected an object in {} line 2, found list"),
        ("{}\n", "results: expected a field 'verdict' in {} line 1, found none"),
        (
            '{"verdict": "EXACT", "case": 1, "format": "x"}\n',
            "results: expected case to be a str in {} line 1",
        ),
        (
            '{"verdict": "FINE", "case": "", "format": ""}\n',
            "results: expected a verdict that this version has in {} line 1, found 'FINE'",
        ),
        (
            '{"verdict": "EXACT", "case": "", "format": "", "elements": "many"}\n',
            "results: expected elements to be a int in {} line 1, found str",
        ),
        (
            json.dumps({**begin("a"), "schema": 2}) + "\n",
            "results: expected schema 1 in {} line 1, found 2; was it written by another version?",
        ),
        (
            '{"record": "run", "schema": 1, "run": "a"}\n',
            "results: expected a field 'environment' in {} line 1",
        ),
        (
            json.dumps(begin("a", options={"kernel": "nf4=x"})) + "\n",
            "results: expected kernel to be a list of texts in {} line 1, found 'nf4=x'",
        ),
        (json.dumps(begin("a", options=[])) + "\n", "results: expected options to be a dict in {} line 1"),
        (
            '{"record": "walk"}\n',
            "results: expected a record of a run, finding or end in {} line 1, found 'walk'",
        ),
        ("\xff\n", "results: expected JSON in {} line 1, found: "),
    ],
)
def test_bad_results_are_one_sentence(tmp_path: Path, capsys, text: str, message: str):
    path = tmp_path / "results.jsonl"
    path.write_text(text, encoding="latin-1")
    assert main(["matrix", str(path), "--out", str(tmp_path / "site")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: results: expected")
    assert message.format(path) in error
    assert not (tmp_path / "site").exists()


@pytest.mark.parametrize("field", ["causes", "located", "votes", "notes", "measures", "bundle", "reading"])
@pytest.mark.parametrize("value", [[None], [{}], [{"index": 3, "gates": [], "links": "x"}], [[1]]])
def test_parts_of_a_record_that_are_not_as_written_do_not_stop_the_page(tmp_path: Path, field: str, value):
    page = page_of(tmp_path / "site", night(tmp_path / "a", 1, {**BAD, field: value}))
    assert "1 failing" in page.text


@pytest.mark.parametrize("what", ["results", "--before"])
def test_paths_without_results_are_refused(tmp_path: Path, capsys, what: str):
    good, empty = night(tmp_path / "a", 1, GOOD), tmp_path / "empty"
    empty.mkdir()
    for path, message in (
        (empty, "results (*.jsonl) in the folder"),
        (tmp_path / "gone", "found nothing at"),
    ):
        given = [str(path)] if what == "results" else [str(good), "--before", str(path)]
        assert main(["matrix", *given, "--out", str(tmp_path / "site")]) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"error: {what}: expected")
        assert message in error
