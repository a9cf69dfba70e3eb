"""The fault catalogue as a document: complete, used, and what is in docs/ is what is in the code."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from conformance.cli import main
from conformance.faults import KINDS, catalogue
from conformance.verdict import KINDS as VERDICTS
from tests.harness_runs import FORMATS
from tests.test_docs import sections, slug

DOC = Path(__file__).resolve().parents[1] / "docs" / "faults.md"
ENTRIES = catalogue.gather(FORMATS)
USES = [pytest.param(use, id=f"{entry.name}-{use.formats[0]}") for entry in ENTRIES for use in entry.uses]
LINK = re.compile(r"https://github\.com/[\w.-]+/[\w.-]+/(issues|pull)/\d+")


def test_the_document_is_what_the_command_writes(capsys):
    assert main(["faults", "--markdown"]) == 0
    assert capsys.readouterr().out == DOC.read_text(encoding="utf-8")


@pytest.mark.parametrize("use", USES)
def test_every_fault_is_described(use: catalogue.Use):
    fault = use.fault
    assert fault.kind in KINDS
    for text in (fault.arithmetic, fault.trigger, fault.effect, fault.fix):
        assert text == text.strip()
        assert "\n" not in text
        assert len(text) >= 5
        assert not text.endswith(".")
    assert len({fault.arithmetic, fault.trigger, fault.effect, fault.fix}) == 4
    assert len(fault.links) == len(set(fault.links))


def test_links_are_issues_and_pull_requests():
    links = [link for entry in ENTRIES for use in entry.uses for link in use.fault.links]
    links += [link for outside in catalogue.NOT_DECODERS for link in outside.links]
    assert len(set(links)) > 50
    assert [link for link in links if not LINK.fullmatch(link)] == []


def test_every_fault_of_every_format_is_there_once():
    found = [(entry.name, name) for entry in ENTRIES for use in entry.uses for name in use.formats]
    assert len(found) == len(set(found))
    assert set(found) == {(fault.name, name) for name, fmt in FORMATS.items() for fault in fmt.faults}


def test_names_and_anchors_are_unique():
    names = catalogue.names(ENTRIES)
    assert len(names) == len(set(names))
    anchors = sections(DOC)  # fails on an anchor that is there twice
    outside = {slug(entry.name) for entry in catalogue.NOT_DECODERS}
    assert {slug(entry.name) for entry in ENTRIES} | outside <= set(anchors)


def test_a_name_with_two_meanings_has_both():
    entry = next(entry for entry in ENTRIES if entry.name == "slots-reversed")
    assert [use.formats for use in entry.uses] == [
        ("awq_cols", "awq_quads", "awq_rows", "gptq"),
        ("squeezellm",),
    ]
    text = sections(DOC)["slots-reversed"]
    assert text.count("**instead**") == 2
    assert "\nsqueezellm\n" in text


def test_a_name_of_two_kinds_is_refused():
    fmt = FORMATS["llm_int8"]
    other = dataclasses.replace(fmt, name="other", faults=(dataclasses.replace(fmt.faults[0], kind="zeros"),))
    with pytest.raises(
        ValueError, match=r"expected one of zeros.* for scale-prescaled, found precision, zeros"
    ):
        catalogue.gather({"llm_int8": fmt, "other": other})
    unknown = dataclasses.replace(fmt, faults=(dataclasses.replace(fmt.faults[0], kind="misc"),))
    with pytest.raises(ValueError, match="found misc"):
        catalogue.gather({"llm_int8": unknown})


def test_markdown_characters_are_text():
    text = DOC.read_text(encoding="utf-8")
    assert r"2\*\*bits" in text
    assert not re.search(r"(?<!\\)\*\*bits", text)
    assert r"w0 >> 30 \| (w1 & 1) \<\< 2" in text


def test_not_decoders_name_verdicts_or_say_that_they_are_not_seen():
    for outside in catalogue.NOT_DECODERS:
        assert set(outside.verdicts) <= set(VERDICTS)
        assert outside.check.startswith("not seen") == (not outside.verdicts)


# --- the command ------------------------------------------------------------------------------


def test_the_table_has_every_name(capsys):
    assert main(["faults"]) == 0
    text = capsys.readouterr().out
    assert [entry.name for entry in ENTRIES if entry.name not in re.sub(r"\s*│\n│\s*", "", text)] == []
    assert f"{len(ENTRIES)} faults" in text
    assert "scales[g, n + 1]" in text  # no markup


def test_only_the_faults_of_a_format(capsys):
    assert main(["faults", "--format", "squeezellm", "--format", "nf4"]) == 0
    text = re.sub(r"\s*│\n│\s*", "", capsys.readouterr().out)
    mine = {fault.name for name in ("squeezellm", "nf4") for fault in FORMATS[name].faults}
    assert f"{len(mine)} faults" in text
    assert "gptq" not in text
    assert main(["faults", "slots-reversed", "--format", "squeezellm"]) == 0
    text = capsys.readouterr().out
    assert re.search(r"^  formats +squeezellm$", text, re.MULTILINE)
    assert "awq" not in text
    assert main(["faults", "nibble-swap", "--format", "gptq"]) == 2
    assert "expected a name of the catalogue of gptq, found 'nibble-swap'" in capsys.readouterr().err
    assert main(["faults", "--format", "nf5"]) == 2
    assert "format: expected one of" in capsys.readouterr().err
    assert main(["faults", "--markdown", "--format", "nf4"]) == 2
    assert "markdown: expected no --format beside it, found 'nf4'" in capsys.readouterr().err


def test_one_entry_is_shown_whole(capsys):
    assert main(["faults", "zero-plus-one"]) == 0
    text = capsys.readouterr().out
    for use in next(entry for entry in ENTRIES if entry.name == "zero-plus-one").uses:
        fault = use.fault
        for part in (fault.arithmetic, fault.trigger, fault.effect, fault.fix, *use.formats, *fault.links):
            assert part in text


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("int32-offset", "widen to int64"),
        ("store-mask-missing", "(OOB_WRITE)"),
        ("signed-shift-with-mask", "copies of the sign bit"),
    ],
)
def test_what_is_no_decoder_is_shown_too(name, part, capsys):
    assert main(["faults", name]) == 0
    assert part in capsys.readouterr().out


def test_an_unknown_name_is_answered_with_close_ones(capsys):
    assert main(["faults", "nible-swap"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("error: fault: expected a name of the catalogue, found 'nible-swap'; close")
    assert "nibble-swap" in shown.err
    assert main(["faults", "?"]) == 2
    assert "close" not in capsys.readouterr().err


def test_a_name_and_the_document_exclude_each_other(capsys):
    assert main(["faults", "nibble-swap", "--markdown"]) == 2
    assert "markdown: expected no name beside it, found 'nibble-swap'" in capsys.readouterr().err
