"""A run repeats from its seed, a failure from its id and from its bundle, in fresh processes."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.harness_runs import ROOT, pytest_run, python, records

KERNEL = "nf4=tests/planted.py:tail_of_previous_block"
BLOCKED = ("hypothesis", "bitsandbytes")


@pytest.fixture(scope="module")
def failing(tmp_path_factory):
    """A run of a user's kernel that ignores the last partial block: (process, results folder)."""
    folder = tmp_path_factory.mktemp("run") / "results"
    done = pytest_run(
        *("conformance/test_formats.py", "-k", "nf4 and words and fp16", "--hypothesis-seed", "3"),
        *(
            "--kernel",
            KERNEL,
            "--results",
            str(folder),
            f"--junitxml={folder}.xml",
            "-o",
            "junit_family=xunit2",
        ),
    )
    return done, folder


@pytest.fixture(scope="module")
def bundle(failing) -> Path:
    (found,) = (failing[1] / "bundles").iterdir()
    return found


@pytest.fixture
def copy(bundle, tmp_path) -> Path:
    return Path(shutil.copytree(bundle, tmp_path / "bundle"))


def failure_text(output: str) -> list[str]:
    """The lines of the one failure report."""
    body = output.split("= FAILURES =", 1)[1].split("= conformance =", 1)[0].split("\n")[1:-1]
    return [line for line in body if not re.fullmatch(r"[-_=]+ .* [-_=]+", line)]


def command(lines: list[str], label: str) -> list[str]:
    line = next(line for line in lines if line.startswith(f"{label} "))
    return shlex.split(line.removeprefix(label))


def test_failure_is_located_shrunk_and_short(failing):
    done, _ = failing
    assert done.returncode == 1
    lines = failure_text(done.stdout)
    assert 5 < len(lines) <= 25
    text = "\n".join(lines)
    assert text.startswith("MISMATCH  nf4:shape=")
    (record,) = [r for r in records(failing[1]) if r["case"] == lines[0].split()[1]][-1:]
    assert record["fields"]["blocksize"] == "64"
    assert 64 < record["elements"] < 128
    assert "tail-block-absmax-previous" in text
    assert "(the last, short one)" in text
    assert KERNEL.partition("=")[2] in text
    assert "Traceback" not in done.stdout


def test_rerun_command_fails_alike(failing):
    first = failure_text(failing[0].stdout)
    words = command(first, "rerun")
    assert words[0] == "pytest"
    again = pytest_run(*words[1:], "--results", str(failing[1].parent / "again"))
    assert again.returncode == 1
    second = failure_text(again.stdout)
    assert second[0] == first[0]
    assert second[1:8] == first[1:8]
    assert len(records(failing[1].parent / "again")) == 1


def test_replay_command_works_without_hypothesis_and_oracle(failing):
    words = command(failure_text(failing[0].stdout), "replay")
    assert words[:2] == ["python", "-m"]
    for blocked in ((), BLOCKED):
        done = python(*words[1:], "--device", "cpu", blocked=blocked)
        assert done.returncode == 1, done.stderr
        assert "identical to the case as built here" in done.stdout
        assert "MISMATCH  nf4:" in done.stdout
        assert "Traceback" not in done.stderr


def test_replay_with_a_right_kernel_passes(bundle):
    kernel = "tests.planted:right"
    done = python("-m", "conformance", "replay", str(bundle), "--device", "cpu", "--kernel", kernel)
    assert done.returncode == 0, done.stderr
    assert "EXACT  nf4:" in done.stdout


def test_bundle_holds_everything(bundle):
    info = json.loads((bundle / "case.json").read_text())
    assert info["verdict"]["verdict"] == "MISMATCH"
    assert info["seed"] == 3
    assert {"torch", "triton", "numpy", "device"} <= set(info["environment"])
    tensors = load_file(bundle / "tensors.safetensors")
    assert {"packed/packed", "packed/absmax", "packed/codebook", "want/spec", "got"} <= set(tensors)
    assert str(ROOT) not in (bundle / "case.json").read_text()


def test_junit_has_the_verdict(failing):
    tree = ElementTree.parse(f"{failing[1]}.xml")
    found = {p.get("name"): p.get("value") for p in tree.iter("property")}
    assert found["verdict"] == "MISMATCH"
    assert found["case"].startswith("nf4:shape=")
    assert found["cause"] == "tail-block-absmax-previous"
    assert Path(found["bundle"]).is_dir()


def test_json_lines(failing):
    found = records(failing[1])
    assert {"EXACT", "MISMATCH"} <= {record["verdict"] for record in found}
    for record in found:
        assert record["case"].startswith("nf4:")
        assert record["test"] == "test_words[nf4-fp16]"
        assert record["kernel"] == KERNEL.partition("=")[2]
        assert record["seconds"] >= 0


def test_a_second_run_overwrites_nothing(failing, bundle):
    """A folder with the results of another run is refused: old and new verdicts would be mixed."""
    before = {path: path.read_bytes() for path in bundle.iterdir()}
    lines = len(records(failing[1]))
    case = json.loads((bundle / "case.json").read_text())["id"]
    done = pytest_run("conformance", "--case", case, "--kernel", KERNEL, "--results", str(failing[1]))
    assert done.returncode == 4
    assert "--results: expected a folder without results of another run" in done.stdout + done.stderr
    assert {path: path.read_bytes() for path in bundle.iterdir()} == before
    assert len(records(failing[1])) == lines


# --- seeds ------------------------------------------------------------------------------------


def test_same_seed_same_cases(tmp_path):
    runs = []
    for number in (1, 2):
        folder = tmp_path / str(number)
        done = pytest_run(
            *("conformance/test_formats.py", "-k", "llm_int8 and words", "--max-examples", "5"),
            *("--hypothesis-seed", "1", "--results", str(folder)),
        )
        assert done.returncode == 0, done.stdout
        assert "conformance seed: 1 (given" in done.stdout
        runs.append([record["case"] for record in records(folder)])
    assert len(runs[0]) >= 15
    assert runs[0] == runs[1]


def test_a_chosen_seed_is_printed(tmp_path):
    case = "llm_int8:shape=3x17"
    done = pytest_run("conformance", "--case", case, "--results", str(tmp_path / "r"))
    assert done.returncode == 0, done.stdout
    found = re.search(r"conformance seed: (\d+) \(--hypothesis-seed=(\d+) draws the same", done.stdout)
    assert found
    assert found[1] == found[2]
    assert f"seed {found[1]};" in done.stdout
    assert [record["case"] for record in records(tmp_path / "r")] == [case]


# --- damaged bundles --------------------------------------------------------------------------


def truncate(path: Path) -> None:
    file = path / "tensors.safetensors"
    file.write_bytes(file.read_bytes()[:-7])


def alter(path: Path) -> None:
    file = path / "tensors.safetensors"
    tensors = load_file(file)
    tensors["packed/absmax"] = tensors["packed/absmax"] * 2
    save_file(tensors, file)


def edit(change):
    def function(path: Path) -> None:
        info = json.loads((path / "case.json").read_text())
        change(info)
        (path / "case.json").write_text(json.dumps(info))

    return function


DAMAGES = [
    ("truncated", truncate, "expected a whole safetensors file"),
    ("altered", alter, "expected the tensors that were written, found others"),
    ("no tensors", lambda p: (p / "tensors.safetensors").unlink(), "expected a file tensors.safetensors"),
    ("no case", lambda p: (p / "case.json").unlink(), "expected a file case.json"),
    ("half a case", lambda p: (p / "case.json").write_text('{"schema": 1, '), "expected JSON"),
    ("list", lambda p: (p / "case.json").write_text("[1]"), "expected schema 1 .*found list"),
    ("foreign", lambda p: (p / "case.json").write_text('{"name": "x"}'), "expected schema 1 .*found None"),
    ("newer", edit(lambda i: i.update(schema=99)), "expected schema 1 .*found 99"),
    ("no digest", edit(lambda i: i.pop("digest")), "expected a field 'digest'"),
    ("no environment", edit(lambda i: i.pop("environment")), "expected a field 'environment'"),
    ("no format", edit(lambda i: i["case"].pop("format")), "format"),
    ("case is text", edit(lambda i: i.update(case="nf4:")), "case"),
    ("unknown format", edit(lambda i: i["case"].update(format="nf5")), "format: expected one of"),
    ("wrong value", edit(lambda i: i["case"]["fields"].update(out="fp8")), "out: expected one of"),
    ("unknown field", edit(lambda i: i["case"]["fields"].update(size="1")), "expected fields among"),
    (
        "other case",
        edit(lambda i: i["case"]["fields"].update(words="random(5)")),
        "expected the tensors of nf4",
    ),
    ("no blocksize", edit(lambda i: i["fields"].pop("blocksize")), "expected the fields of NF4Weight"),
    ("kernel gone", edit(lambda i: i.update(kernel="no_such_module:f")), "kernel: expected 'no_such_module'"),
    ("unknown gate", edit(lambda i: i.update(gate="loose")), "gate: expected one of"),
]


@pytest.mark.parametrize(("damage", "words"), [d[1:] for d in DAMAGES], ids=[d[0] for d in DAMAGES])
def test_damaged_bundle(copy, damage, words, capsys):
    """One sentence and exit code 2, in this process: the command line is a function."""
    from conformance.cli import main

    damage(copy)
    assert main(["replay", str(copy), "--device", "auto"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert re.search(words, error)


def test_no_bundle(tmp_path, capsys):
    from conformance.cli import main

    assert main(["replay", str(tmp_path / "nothing")]) == 2
    assert "found nothing at" in capsys.readouterr().err


def test_bits_survive_a_bundle(tmp_path):
    """NaN payloads and signs of zero included."""
    from conformance import bundle as bundles
    from conformance.materialize import materialize
    from conformance.registry import find_format, parse_case

    case = parse_case("nf4:shape=3x65,absmax=nested,scales=nan(1),storage=int8,blocksize=32")
    weight, _ = materialize(find_format("nf4"), case)
    odd = torch.tensor([0x7FC12345, -0x80000000, 0x7F800001], dtype=torch.int64).to(torch.int32)
    info = {
        "case": case.to_json(),
        "kernel": "k",
        "gate": "exact",
        "verdict": {"verdict": "EXACT"},
        "environment": {"device": "cpu"},
    }
    path = bundles.write(tmp_path / "b", weight, info, {"got": odd.view(torch.float32)})
    stored = bundles.read(path)
    again = bundles.rebuild(type(weight), stored)
    assert bundles.weight_digest(again) == bundles.weight_digest(weight)
    assert torch.equal(stored.tensors["got"].view(torch.int32), odd)
