"""The mutation score: what it plants, how it counts, and that a crash of a mutant is none of its own."""

from __future__ import annotations

import ast
import dataclasses
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance.cli import main
from conformance.errors import UsageError
from conformance.mutation import isolate, jobs, listed, source, table
from conformance.mutation.score import Job, Outcome, Plan
from conformance.mutation.source import Mutant
from conformance.mutation.suite import suite
from conformance.mutation.summary import Summary
from tests.harness_runs import FORMATS, pytest_run, records

PLAN = Plan("cpu", 0, 3)
FUNCTION = """
@triton.jit
def kernel(out, x, n_rows, n_cols, BLOCK: tl.constexpr):
    \"\"\"Text 1.\"\"\"
    at = tl.max_contiguous(tl.arange(0, BLOCK), 1)
    w = tl.load(x + at, mask=(at < n_rows) & (at >= 2), other=0).to(tl.uint32, bitcast=True)
    w = (w >> 4) & 15
    left = tl.minimum(n_rows - 1, BLOCK)
    if BLOCK == 8:
        left += 1
    for r in range(0, BLOCK):
        tl.store(out + tl.join(at, w)[:, None], tl.where(at < left, w, 0).to(out.dtype.element_ty))
"""


def changes(text: str = FUNCTION) -> dict[str, set[str]]:
    """Statements as they are after each change, by operator."""
    (function,) = source.functions(ast.parse(text))
    found: dict[str, set[str]] = {}
    for operator, _, after, _, _ in source.mutations(function):
        found.setdefault(operator, set()).add(after)
    return found


LOAD = "w = tl.load(x + at, mask=(at < n_rows) & (at >= 2), other=0).to(tl.uint32, bitcast=True)"
STORE = "tl.store(out + tl.join(at, w)[:, None], tl.where(at < left, w, 0).to(out.dtype.element_ty))"


@pytest.mark.parametrize(
    ("operator", "after"),
    [
        ("index", "at = tl.max_contiguous(tl.arange(0, BLOCK) + 1, 1)"),
        ("index", "at = tl.max_contiguous(tl.arange(0, BLOCK) - 1, 1)"),
        ("index", LOAD.replace("x + at,", "x + at + 1,")),
        ("index", "for r in range(0, BLOCK - 1):"),
        ("mask", "w = tl.load(x + at).to(tl.uint32, bitcast=True)"),
        ("mask", LOAD.replace("(at < n_rows) & (at >= 2)", "at < n_rows")),
        ("other", LOAD.replace("other=0", "other=1")),
        ("shift", "w = w >> 5 & 15"),
        ("shift", "w = w << 4 & 15"),
        ("bits", "w = w >> 4"),
        ("bits", "w = w >> 4 & 7"),
        ("cast", LOAD.replace("uint32", "int32")),
        ("cast", LOAD.replace(", bitcast=True)", ")")),
        ("cast", STORE.replace(".to(", ".to(tl.float16).to(")),
        ("axis", STORE.replace("tl.join(at, w)", "tl.join(w, at)")),
        ("axis", STORE.replace("[:, None]", "[None, :]")),
        ("sizes", LOAD.replace("n_rows", "n_cols")),
        ("arithmetic", "left = tl.minimum(n_rows + 1, BLOCK)"),
        ("arithmetic", "left -= 1"),
        ("compare", LOAD.replace("at < n_rows", "at <= n_rows")),
        ("compare", LOAD.replace("at >= 2", "at > 2")),
        ("constant", LOAD.replace("at >= 2", "at >= 3")),
        ("condition", "if not BLOCK == 8:"),
        ("condition", STORE.replace("w, 0)", "0, w)")),
        ("clamp", "left = n_rows - 1"),
        ("statement", "pass"),
    ],
)
def test_operator_makes_the_change(operator: str, after: str):
    assert after in changes()[operator]


def test_hints_annotations_and_texts_are_left_alone():
    after = {text for texts in changes().values() for text in texts}
    assert not any("max_contiguous" in text and text.endswith((" 2)", " 0)")) for text in after)
    for _, _, _, _, changed in source.mutations(next(source.functions(ast.parse(FUNCTION)))):
        assert ast.get_docstring(changed) == "Text 1."
        assert "BLOCK: tl.constexpr" in ast.unparse(changed.args)


def test_a_hint_is_not_a_statement_to_leave_out():
    text = FUNCTION.replace("    left =", "    w = tl.multiple_of(w, 8)\n    left =")
    (function,) = source.functions(ast.parse(text))
    removed = {before for operator, before, *_ in source.mutations(function) if operator == "statement"}
    assert "w = w >> 4 & 15" in removed
    assert "w = tl.multiple_of(w, 8)" not in removed


def test_no_mutant_twice_and_none_like_the_original():
    for module in source.modules():
        names = [mutant.name for mutant in source.mutants(module)]
        assert len(names) == len(set(names))
        assert len({mutant.text for mutant in source.mutants(module)}) == len(names)


def test_a_function_under_a_condition_is_found():
    text = "if hasattr(tl, 'gather'):\n" + FUNCTION.replace("\n", "\n    ") + "\nelse:\n    kernel = None\n"
    assert changes(text) == changes()


def test_every_triton_function_of_a_format_has_mutants():
    mutated = {(job.mutant.module, job.mutant.function) for job in jobs.sources(FORMATS, FORMATS)}
    for name, fmt in FORMATS.items():
        used = {
            (module, function)
            for module, function in source.reached(fmt.kernel)
            if (module, function) in mutated
        }
        assert used, name
    # Named by other modules than their own.
    for module, function, names in (
        ("_lanes", "spread", ["awq_rows", "awq_quads", "blockwise8", "fp4", "int8_affine", "nf4"]),
        ("_gptq_kernel", "_code", ["gptq", "squeezellm"]),
        ("_blockwise", "_codes", ["blockwise8", "fp4", "nf4"]),
    ):
        found = next(m for m in source.mutants(module) if m.function == function)
        assert source.users(FORMATS, found) == names


@pytest.mark.interpreter
def test_the_cases_are_those_of_the_real_run(tmp_path: Path):
    run = pytest_run(
        "conformance/test_formats.py", "-k", "test_words and llm_int8", "--hypothesis-seed", "7",
        "--max-examples", "9", "--results", str(tmp_path), "--oracle", "bitsandbytes",
    )  # fmt: skip
    if "expected bitsandbytes to be usable" in run.stdout + run.stderr:
        pytest.skip("bitsandbytes is not installed")
    assert run.returncode == 0, run.stdout
    real = [(record["test"], record["case"]) for record in records(tmp_path)]
    assert real == [tuple(item) for item in suite("llm_int8", 7, 9) if item.test.startswith("test_words")]
    assert len(real) == 3 * (9 + 1)


# --- processes -------------------------------------------------------------------------------------


def dies(job: Job, plan: Plan, begun) -> Outcome:
    begun("nf4", 1, suite("llm_int8", 0, 3)[0])
    begun("nf4", 2, suite("llm_int8", 0, 3)[1])
    os.kill(os.getpid(), signal.SIGSEGV)
    raise AssertionError


def never_ends(job: Job, plan: Plan, begun) -> Outcome:
    begun("nf4", 1, suite("llm_int8", 0, 3)[0])
    while True:
        time.sleep(1)


def fails(job: Job, plan: Plan, begun) -> Outcome:
    raise ValueError("the harness is broken")


def eats_memory(job: Job, plan: Plan, begun) -> Outcome:
    try:
        bytearray(4 * isolate.MORE_MEMORY)
    except MemoryError:
        return Outcome(job.kind, job.name, "nf4", verdict="CRASH_LAUNCH")
    return Outcome(job.kind, job.name, "nf4")


def does_not_leave(job: Job, plan: Plan, begun) -> Outcome:
    threading.Thread(target=time.sleep, args=(60,)).start()
    return Outcome(job.kind, job.name, "nf4", "MISMATCH")


def _write(begun, part: bytes) -> None:
    """Into the pipe to the parent, which ``begun`` writes to. A process of pytest-xdist has others."""
    (pipe,) = (cell.cell_contents for cell in begun.__closure__ if hasattr(cell.cell_contents, "fileno"))
    os.write(pipe.fileno(), part)


def sends_a_part(job: Job, plan: Plan, begun) -> Outcome:
    begun("nf4", 1, suite("llm_int8", 0, 3)[0])
    _write(begun, b"\x00\x00\x00\x64abc")
    os._exit(3)


def sends_a_part_and_stays(job: Job, plan: Plan, begun) -> Outcome:
    begun("nf4", 1, suite("llm_int8", 0, 3)[0])
    _write(begun, b"\x00\x00\x00\x64abc")
    time.sleep(60)
    raise AssertionError


def sends_nonsense(job: Job, plan: Plan, begun) -> Outcome:
    begun("nf4", 1, suite("llm_int8", 0, 3)[0])
    _write(begun, b"\x00\x00\x00\x03abc")
    os._exit(3)


def one(run, silence: float = 60.0) -> Outcome:
    job = Job("source", "name", ("llm_int8",))
    (outcome,) = isolate.run_all([job], PLAN, interpreter=True, parallel=1, silence=silence, run=run)
    return outcome


@pytest.mark.interpreter
@pytest.mark.parametrize(
    ("run", "verdict", "examples"),
    [(dies, "CRASH (signal 11)", 2), (never_ends, "TIMEOUT", 1), (eats_memory, "CRASH_LAUNCH", 0)],
)
def test_wild_mutants_are_caught(run, verdict: str, examples: int):
    outcome = one(run, silence=1.0)
    assert (outcome.verdict, outcome.examples, outcome.caught) == (verdict, examples, True)


@pytest.mark.interpreter
@pytest.mark.parametrize(
    ("run", "verdict"),
    [
        (does_not_leave, "MISMATCH"),
        (sends_a_part, "CRASH (exit code 3)"),
        (sends_a_part_and_stays, "CRASH (signal 9)"),
        (sends_nonsense, "CRASH (exit code 3)"),
    ],
)
def test_a_process_with_broken_messages_stops_no_other(run, verdict: str, monkeypatch):
    monkeypatch.setattr(isolate, "LEAVE", 0.5)
    began = time.monotonic()
    work = [Job("source", name, ("llm_int8",)) for name in ("first", "second")]

    def first_only(job: Job, plan: Plan, begun) -> Outcome:
        return run(job, plan, begun) if job.name == "first" else Outcome(job.kind, job.name, "nf4", "RIGHT")

    found = isolate.run_all(work, PLAN, interpreter=True, parallel=1, silence=1.0, run=first_only)
    assert [(outcome.name, outcome.verdict) for outcome in found] == [
        ("first", verdict),
        ("second", "RIGHT"),
    ]
    assert time.monotonic() - began < 30


@pytest.mark.interpreter
def test_an_error_of_the_harness_is_not_a_catch():
    outcome = one(fails)
    assert not outcome.caught
    assert "the harness is broken" in outcome.error
    assert not summary([outcome]).passed


# --- whole jobs ------------------------------------------------------------------------------------


def mutant(operator: str, before: str, after: str) -> Mutant:
    (found,) = (
        m
        for m in source.mutants("llm_int8")
        if m.operator == operator and before in m.before and after in m.after
    )
    return found


def outcomes(work: list[Job]) -> Iterator[Outcome]:
    return isolate.run_all(work, PLAN, interpreter=True, parallel=1)


@pytest.mark.interpreter
def test_a_mutated_kernel_is_judged_and_the_kernel_here_stays_right():
    scale = Job("source", "s", ("llm_int8",), mutant=mutant("arithmetic", "value =", "scale + INV"))
    tile = Job("source", "t", ("llm_int8",), mutant=mutant("sizes", "col_tiles =", "n_rows"))
    read = Job("source", "r", ("llm_int8",), mutant=mutant("mask", "absmax", "tl.load(absmax + row)"))
    right = Job("control", "c", ("llm_int8",), builtin=True)
    found = {outcome.name: outcome for outcome in outcomes([scale, tile, read, right])}
    assert found["s"].verdict in ("MISMATCH", "NONFINITE_CLASS")
    assert found["t"].test.startswith("test_tiles")
    assert found["r"].verdict == "OOB_READ"
    assert found["c"] == dataclasses.replace(found["c"], verdict="", error="")


@pytest.mark.interpreter
@pytest.mark.parametrize("name", FORMATS)
def test_a_right_kernel_is_never_accused(name: str):
    (outcome,) = outcomes(jobs.controls({name: FORMATS[name]}, ["catalogue"]))
    assert (outcome.verdict, outcome.error) == ("", "")


@pytest.mark.interpreter
def test_a_fault_is_caught_and_named():
    (outcome,) = outcomes([Job("catalogue", "f", ("nf4",), fault="nibble-swap")])
    assert outcome.named in ("alone", "first", "among")
    assert next(iter(table.catalogue_rows([outcome])))[:3] == ("nf4", "nibble-swap", "yes")


# --- counting --------------------------------------------------------------------------------------


def summary(found: list[Outcome], controls: list[Outcome] = []) -> Summary:  # noqa: B006
    return Summary(found, controls, [], [], "nothing")


CAUGHT = Outcome("catalogue", "nf4:a", "nf4", "MISMATCH", examples=3, causes=("b", "a"), fault="a")
ALONE = dataclasses.replace(CAUGHT, causes=("a",), examples=5)
UNNAMED = dataclasses.replace(CAUGHT, causes=("unknown",), examples=40)
SURVIVED = Outcome("catalogue", "nf4:c", "nf4", fault="c")


def test_the_score_counts_what_was_caught_and_named():
    tally = summary([CAUGHT, ALONE, UNNAMED, SURVIVED]).tally("catalogue")
    assert (tally.planted, tally.caught, tally.named, tally.first, tally.alone) == (4, 3, 2, 1, 1)
    assert (tally.median, tally.ninth) == (5, 40)


def test_only_a_run_without_survivors_and_accusations_passes():
    right = Outcome("control", "nf4:right", "nf4")
    assert summary([CAUGHT, UNNAMED], [right]).passed
    assert not summary([CAUGHT, SURVIVED]).passed
    assert not summary([CAUGHT], [dataclasses.replace(right, verdict="MISMATCH")]).passed
    assert not dataclasses.replace(summary([CAUGHT]), wrongly_excused=[ALONE]).passed
    assert not summary([]).passed


@pytest.mark.interpreter
def test_a_survivor_without_a_reason_ends_the_command_with_1(monkeypatch, tmp_path, capsys):
    survivor = mutant("cast", "value =", "q.to(tl.float16)")
    command = ["mutants", "--device", "cpu", "--jobs", "1", "--max-examples", "2", "--only", survivor.name]
    assert listed.load(FORMATS).reason(Job("source", "n", ("llm_int8",), mutant=survivor)) is not None
    assert main([*command, "--listed"]) == 1  # nothing but what need not be caught
    (tmp_path / "none.toml").write_text("", encoding="utf-8")
    monkeypatch.setattr(listed, "FILE", tmp_path / "none.toml")
    assert main([*command, "--json", str(tmp_path / "out.jsonl")]) == 1
    assert f"SURVIVED  {survivor.name}" in capsys.readouterr().out
    assert '"caught": false' in (tmp_path / "out.jsonl").read_text(encoding="utf-8")


@pytest.mark.interpreter
def test_the_command_says_what_it_ran(capsys):
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
    assert main(command) == 0
    text = capsys.readouterr().out
    assert "ran        awq_cols, " in text
    assert "2 drawn cases a test, seed 0" in text
    assert "catalogue  1 of 1 caught (100.0 %), 1 named" in text
    assert main([*command, "--markdown"]) == 0
    assert "| llm_int8 | 1 | 1 | 1 |" in capsys.readouterr().out


@pytest.mark.interpreter
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "nothing*"], "--only: expected the name of a mutant, found 'nothing*'"),
        (["--format", "nf5"], "format: expected one of"),
        (["--sample", "0"], "--sample: expected at least 1, found 0"),
        (["--max-examples", "-1"], "--max-examples: expected at least 1, found -1"),
    ],
)
def test_wrong_usage_is_said(arguments: list[str], message: str, capsys):
    assert main(["mutants", "--device", "cpu", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_only_entries_of_the_run_can_be_stale(tmp_path: Path):
    path = tmp_path / "listed.toml"
    path.write_text(
        '[[source]]\nmodule = "_gptq_kernel"\nfunction = "_code"\nwhy = "equivalent"\n'
        'changes = ["cast: a  ->  b"]\nreason = "r"\n'
        '[[catalogue]]\nformats = ["gptq"]\nfaults = ["gone"]\nreason = "r"\n',
        encoding="utf-8",
    )
    listed.load(FORMATS, path, chosen=["nf4"])
    for name, kind, message in (
        ("squeezellm", "source", "expected a mutant of _gptq_kernel._code"),
        ("gptq", "catalogue", "expected a fault of gptq"),
    ):
        with pytest.raises(UsageError, match=message):
            listed.load(FORMATS, path, chosen=[name], kinds=[kind])
    listed.load(FORMATS, path, chosen=["squeezellm"], kinds=["catalogue"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '[[source]]\nmodule = "llm_int8"\nfunction = "_llm_int8_kernel"\nwhy = "equivalent"\n'
            'changes = ["cast: a  ->  b"]\nreason = "r"\n',
            "found none (stale?): cast: a  ->  b",
        ),
        ('[[source]]\nmodule = "llm_int8"\n', "source entry 1: expected changes, function, module"),
        (
            '[[source]]\nmodule = "m"\nfunction = "f"\nwhy = "tired"\nchanges = []\nreason = "r"\n',
            "expected why to be equivalent or beyond or chance, found 'tired'",
        ),
        (
            '[[catalogue]]\nformats = ["nf4"]\nfaults = ["gone"]\nreason = "r"\n',
            "expected a fault of nf4, found 'gone' (stale?)",
        ),
        (
            '[[catalogue]]\nformats = ["nf4"]\nfaults = ["nibble-swap"]\nreason = " "\n',
            "catalogue entry 1: expected a reason, found none",
        ),
        ("[[", "expected a TOML file"),
    ],
)
def test_stale_or_ill_formed_entries_are_errors(text: str, message: str, tmp_path: Path):
    path = tmp_path / "listed.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError) as error:
        listed.load(FORMATS, path)
    assert message in str(error.value)
