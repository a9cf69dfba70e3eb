"""``python -m conformance matrix``: which runs are compared, and what the page says of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.matrix.compare import Cell, columns, unmatched
from conformance.matrix.read import read
from conformance.matrix.runs import MOST
from conformance.rerun import rerun
from conformance.verdict import KINDS
from tests.matrix_runs import GPU, case, night, page_of, verdict

WORDS, TILES = "test_words[nf4-fp16]", "test_tiles[nf4-fp16]"


def only_cell(*folders: Path, before: Path | None = None) -> Cell:
    """The one cell of the matrix of some results."""
    earlier = None if before is None else read([before], "--before")[0]
    (column,) = columns(read(folders, "results")[0], earlier)
    (cell,) = column.cells.values()
    return cell


# --- changes -----------------------------------------------------------------------------------


BAD, GOOD = case("MISMATCH"), case("EXACT")
SKIPPED = case("NO_ORACLE")
OTHER = case("EXACT", TILES)


@pytest.mark.parametrize(
    ("then", "now", "status"),
    [
        ([GOOD], [BAD], "new"),
        ([OTHER], [BAD], "new"),
        ([BAD], [BAD], "still"),
        ([BAD], [GOOD], "fixed"),
        ([BAD], [OTHER], "not run again"),
        ([BAD], [SKIPPED, OTHER], "not run again"),
    ],
)
def test_change_against_the_run_before(tmp_path: Path, then, now, status: str):
    runs = [night(tmp_path / "a", 1, *then), night(tmp_path / "b", 2, *now)]
    assert [(change.status, change.test) for change in only_cell(*runs).changes] == [(status, WORDS)]
    # Order of the arguments does not matter: the dates do.
    assert [change.status for change in only_cell(*reversed(runs)).changes] == [status]


def test_without_an_earlier_run_a_failure_is_neither_new_nor_old(tmp_path: Path):
    cell = only_cell(night(tmp_path / "a", 1, BAD))
    assert [change.status for change in cell.changes] == ["failing"]
    assert cell.before is None


def test_another_failure_of_the_same_test_is_told(tmp_path: Path):
    first = night(tmp_path / "a", 1, case("CRASH_LAUNCH", summary="boom"))
    text = page_of(tmp_path / "site", first, night(tmp_path / "b", 2, BAD)).text
    assert "It failed before, in another way: CRASH_LAUNCH" in text


def test_a_run_of_some_formats_does_not_hide_the_others(tmp_path: Path):
    """Shards of a night, or ``-k gptq`` run after the whole suite."""
    gptq = case("EXACT", "test_words[gptq-fp16]", case="gptq:g=32,K=32,N=8")
    whole = night(tmp_path / "a", 1, BAD, gptq)
    part = night(tmp_path / "b", 2, gptq)
    (column,) = columns(read([whole, part], "results")[0])
    assert column.cells["nf4"].run.started.startswith("2026-01-01")
    assert column.cells["gptq"].run.started.startswith("2026-01-02")
    assert column.cells["gptq"].before is not None


def test_before_is_matched_by_environment(tmp_path: Path):
    before = tmp_path / "before"
    night(before / "cpu", 1, BAD)
    night(before / "gpu", 2, GOOD, device=GPU)
    night(before / "old", 3, GOOD, triton="3.2.0")
    now = night(tmp_path / "now", 4, BAD)
    assert [change.status for change in only_cell(now, before=before).changes] == ["still"]
    runs, earlier = read([now], "results")[0], read([before], "--before")[0]
    assert len(unmatched(earlier, columns(runs, earlier))) == 2


def test_a_newer_torch_is_still_the_same_column(tmp_path: Path):
    before = night(tmp_path / "before", 1, BAD, torch="2.12.0", python="3.10.1")
    assert only_cell(night(tmp_path / "now", 2, BAD), before=before).count("still") == 1


def test_what_the_earlier_run_did_otherwise_is_told(tmp_path: Path):
    first = night(tmp_path / "a", 1, BAD, profile="smoke")
    assert "there: profile smoke" in page_of(tmp_path / "site", first, night(tmp_path / "b", 2, BAD)).text


def test_columns_are_in_order_of_versions_and_name_the_device(tmp_path: Path):
    for number, (triton, device) in enumerate([("3.10.0", GPU), ("3.9.0", GPU), ("3.9.0", None)], 1):
        more = {} if device is None else {"device": device}
        night(tmp_path / str(number), number, GOOD, triton=triton, **more)
    found = [column.environment for column in columns(read([tmp_path], "results")[0])]
    assert [(place.triton, place.device) for place in found] == [
        ("3.9.0", "CPU, Triton's interpreter"),
        ("3.9.0", "NVIDIA H200"),
        ("3.10.0", "NVIDIA H200"),
    ]


def test_python_is_named_where_it_tells_columns_apart(tmp_path: Path):
    night(tmp_path / "a", 1, GOOD, python="3.11.7")
    night(tmp_path / "b", 1, GOOD, python="3.12.1")
    text = page_of(tmp_path / "site", tmp_path / "a", tmp_path / "b").text
    assert "Python 3.11" in text
    assert "Python 3.12" in text
    assert "torch 2.13.0 " not in text.partition("Runs")[0]


# --- what a cell and a finding say -------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_every_verdict_is_counted_and_shown(tmp_path: Path, kind: str):
    page = page_of(tmp_path / "site", night(tmp_path / "a", 1, case(kind), case(kind)))
    assert f"2 {kind}" in page.text


def test_shrinking_leaves_the_smallest_case_of_a_test(tmp_path: Path):
    """Hypothesis judges the smallest one last."""
    tries = [case("MISMATCH", case=f"nf4:shape={size}") for size in (900, 90, 9)]
    text = page_of(tmp_path / "site", night(tmp_path / "a", 1, *tries, GOOD)).text
    assert "nf4:shape=9 " in text
    assert "nf4:shape=90" not in text
    assert "3 MISMATCH" in text


def test_a_finding_replaces_the_record_of_its_case(tmp_path: Path):
    looked_into = verdict(
        "MISMATCH", apart="told by a second input", neighbour="K=64 passes", reading="SNR 3"
    )
    found = {"record": "finding", **looked_into.to_json(), "test": WORDS, "bundle": None, "flaky": True}
    folder = night(tmp_path / "a", 1, BAD, found, case("MISMATCH", TILES))
    assert only_cell(folder).tally.verdicts == {"MISMATCH": 2}
    text = page_of(tmp_path / "site", folder).text
    for words in ("told by a second input", "K=64 passes", "SNR 3", "Flaky", "swapped-nibbles", "noise"):
        assert words in text
    assert "Index Got Want Where it is 64 -1 (0xbc00) 1 (0x3c00) block 1" in text


def test_measures_are_a_table(tmp_path: Path):
    axis = {
        "axis": "slot",
        "method": "draws",
        "verdict": "concentrated",
        "touched": 4,
        "labels": 8,
        "p": 0.001,
    }
    measures = {"wrong": 1234, "snr_db": "inf", "max_abs": 0.25, "axes": [axis, {"axis": "row"}]}
    folder = night(tmp_path / "a", 1, case("MISMATCH", measures=measures))
    text = page_of(tmp_path / "site", folder).text
    assert "wrong 1,234 SNR (dB) inf largest absolute error 0.25" in text
    assert "by slot concentrated, in 4 of 8 (p 0.001)" in text
    assert "by row" not in text


def test_commands_have_the_options_of_the_run():
    options = {
        "kernel": ["nf4=my file.py:f", "gptq=other:g"],
        "oracle": ["bitsandbytes"],
        "gate": "element",
        "known_faults": "faults.toml",
        "device": "cuda:1",
        "split_k": 2,
    }
    assert rerun("nf4", "nf4:scales=ties(1)", options) == (
        "pytest conformance --case 'nf4:scales=ties(1)' --kernel 'nf4=my file.py:f' --oracle bitsandbytes "
        "--split-k 2 --gate element --known-faults faults.toml --device cuda:1"
    )
    assert rerun("nf4", "nf4:shape=1", {}) == "pytest conformance --case nf4:shape=1"
    # Else it would kill the pytest that is to show it.
    crash = rerun("nf4", "nf4:shape=1", {}, verdict="CRASH_WORKER")
    assert crash == "pytest conformance --case nf4:shape=1 -n 1"


def test_findings_beyond_the_most_are_counted(tmp_path: Path):
    failing = [case("MISMATCH", f"test_{number:02}[nf4-fp16]") for number in range(7)]
    page = page_of(tmp_path / "site", night(tmp_path / "a", 1, *failing), "--most", 3)
    assert len(page.all("details")) == 3
    assert "4 more failing tests are left out" in page.text
    assert "7 failing" in page.text


def test_what_is_kept_grows_with_tests_and_not_with_cases(tmp_path: Path):
    same = [case("MISMATCH")] * 2000
    many = [case("MISMATCH", f"test_{number}[nf4-fp16]") for number in range(MOST + 50)]
    assert only_cell(night(tmp_path / "a", 1, *same)).tally.kept == 1
    tally = only_cell(night(tmp_path / "b", 1, *many)).tally
    assert sum(test.record is not None for test in tally.tests.values()) == MOST
    assert len(tally.failing) == MOST + 50


def test_cases_that_were_not_judged_are_shown_with_the_reason(tmp_path: Path):
    text = page_of(
        tmp_path / "site", night(tmp_path / "a", 1, case("NO_ORACLE", summary="no packer here"))
    ).text
    assert "not judged" in text
    assert "1 cases of nf4, Triton 3.6.0, CPU, Triton's interpreter: NO_ORACLE: no packer here" in text
