"""A wrong option ends in one sentence and a red exit; a looser or empty run says so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from conformance import setup as run_setup
from conformance.errors import UsageError
from conformance.known_faults import BUILTIN
from conformance.known_faults import load as load_faults
from tests.harness_runs import CPU, FORMATS, pytest_run, python, records

QUICK = ("conformance/test_formats.py", "-k", "llm_int8 and words and fp16", "--max-examples", "3")

# (arguments, what the one sentence says)
WRONG = [
    (
        ("--kernel", "nf4=no_such_module:f"),
        r"kernel: expected 'no_such_module' to import, found ModuleNotFound",
    ),
    (
        ("--known-faults", "no/such/file.toml"),
        r"known-faults: expected a readable text file, found no/such/file.toml",
    ),
    (("--oracle", "nobody"), r"--oracle: expected one of .*bitsandbytes.*, found 'nobody'"),
    (("--model", "no/such.safetensors"), r"model: expected a safetensors file, found nothing at no/such"),
    (("--gate", "loose"), r"--gate: invalid choice: '?loose"),
    (("conformance", "--case", "nf4:out=fp8"), r"out: expected one of fp16, bf16, fp32, found 'fp8'"),
    (("--device", "tpu"), r"device: expected auto, cpu, cuda or cuda:N, found 'tpu'"),
]


@pytest.mark.parametrize(("arguments", "words"), WRONG, ids=[" ".join(arguments) for arguments, _ in WRONG])
def test_wrong_option_of_a_run(arguments, words, tmp_path):
    quick = () if "--case" in arguments else QUICK
    done = pytest_run(*quick, "--results", str(tmp_path / "r"), *arguments)
    output = done.stdout + done.stderr
    assert done.returncode not in (0, 1, 5), output
    assert re.search(words, output)
    assert "Traceback" not in output
    assert "INTERNALERROR" not in output
    assert len([line for line in output.splitlines() if re.search(words, line)]) == 1


# The same sentences without a process for each.
BUILD = [
    ({"kernels": ["nf4"]}, "--kernel: expected FORMAT=MODULE:FUNCTION, found 'nf4'"),
    ({"kernels": ["nf4="]}, "--kernel: expected FORMAT=MODULE:FUNCTION, found 'nf4='"),
    ({"kernels": ["nf5=a:b"]}, "--kernel: expected a format among .*nf4.*, found 'nf5'"),
    ({"kernels": ["nf4=json:dumps", "nf4=json:loads"]}, ".*"),
    (
        {"kernels": ["nf4=tests.planted:right", "nf4=tests.planted:raises"]},
        "one kernel for nf4, found a second",
    ),
    ({"kernels": ["nf4=planted"]}, "kernel: expected module:function or file.py:function, found 'planted'"),
    ({"kernels": ["nf4=tests/nothing.py:f"]}, "kernel: expected a file, found nothing at 'tests/nothing.py'"),
    ({"kernels": ["nf4=tests/planted.py:nothing"]}, "kernel: expected a function 'nothing'"),
    ({"kernels": ["nf4=tests.planted:TABLES"]}, "kernel: expected a function 'TABLES'"),
    ({"kernels": ["nf4=tests.harness_runs:records"]}, "to take .weight, .*dtype, out=None., found no dtype"),
    ({"oracles": ["nobody"]}, "--oracle: expected one of"),
]


@pytest.mark.parametrize(("options", "words"), BUILD, ids=[str(*options.values()) for options, _ in BUILD])
def test_wrong_option_value(options, words):
    with pytest.raises(UsageError, match=words) as info:
        run_setup.build(CPU, **options)
    assert "\n" not in str(info.value)


def test_module_that_fails_at_import(tmp_path):
    file = tmp_path / "broken.py"
    file.write_text("import os\nraise OSError('no\\nlibrary')\n")
    with pytest.raises(UsageError, match="to import, found OSError") as info:
        run_setup.build(CPU, kernels=[f"nf4={file}:f"])
    assert "\n" not in str(info.value)


def test_module_that_goes_elsewhere(tmp_path):
    file = tmp_path / "walks.py"
    file.write_text(f"import os\nos.chdir({str(tmp_path)!r})\ndef f(weight, *, dtype): ...\n")
    here = Path.cwd()
    run_setup.build(CPU, kernels=[f"nf4={file}:f"])
    assert Path.cwd() == here


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("torch.set_default_dtype(torch.float64)", "default dtype as float32, found it set to float64"),
        ("torch.set_default_device('meta')", "default device as cpu, found it set to meta"),
        ("torch.device('meta').__enter__()", "as they were, found DeviceContext entered and not left"),
        (
            "from torch.overrides import BaseTorchFunctionMode as Base\nBase().__enter__()",
            "modes as they were, found BaseTorchFunctionMode entered and not left",
        ),
    ],
)
def test_module_that_changes_what_tensors_are_made_as(tmp_path, line, words, fails):
    file = tmp_path / "rude.py"
    file.write_text(
        f"import torch\n{line}\n{'raise OSError' if fails else ''}\ndef f(weight, *, dtype): ...\n"
    )
    with pytest.raises(UsageError, match="found OSError" if fails else words):
        run_setup.build(CPU, kernels=[f"nf4={file}:f"])
    made = torch.empty(0)
    assert (made.dtype, made.device) == (torch.float32, CPU.device)


def test_kernel_of_a_file_and_of_a_module():
    for path in ("tests/planted.py:right", "tests.planted:right"):
        kernel = run_setup.build(CPU, kernels=[f"nf4={path}"]).kernels["nf4"]
        assert (kernel.name, kernel.builtin, kernel.takes_out) == (path, False, True)
    builtin = run_setup.build(CPU, kernels=["nf4=kernels.nf4:dequantize"]).kernels["nf4"]
    assert builtin.builtin


# --- known-faults file ------------------------------------------------------------------------

ENTRY = """
[[fault]]
id = "x"
oracle = "bitsandbytes"
package = "bitsandbytes"
versions = ">=0"
where = "device == 'cpu'"
formats = ["nf4"]
condition = "rows == 4"
signature = "values"
effect = ""
link = ""
expires = 2100-01-01
case = "nf4:shape=4x64"
"""

FAULTS = [
    ("a = [", "expected TOML"),
    ("a = 1", r"expected \[\[fault\]\] tables, found 'a'"),
    (ENTRY.replace('id = "x"', ""), "entry 1: expected a field 'id', found none"),
    (ENTRY + "colour = 1", "entry 1: expected fields among .*, found 'colour'"),
    (ENTRY.replace(">=0", "new"), "entry 1: expected a version range, found 'new'"),
    (ENTRY.replace('["nf4"]', '"nf4"'), "entry 1: expected formats to be a list"),
    (ENTRY.replace("2100-01-01", '"soon"'), "entry 1: expected expires to be a date"),
    (ENTRY.replace('"values"', '"all"'), "entry 1: expected signature to be one of"),
    (ENTRY.replace("rows == 4", "rows =="), "entry 1: expected expressions in where and condition"),
    (ENTRY.replace("device == 'cpu'", "device =="), "entry 1: expected expressions in where and condition"),
    (ENTRY.replace("device == 'cpu'", "planet == 3"), "entry 1: expected expressions in where and condition"),
    (ENTRY + ENTRY, "expected distinct ids, found 'x' twice"),
    (ENTRY.replace('["nf4"]', '["nf5"]'), "x: expected a format among"),
    (ENTRY.replace("nf4:shape=4x64", "nf4:shape=four"), "shape: expected sizes"),
    (ENTRY.replace('id = "x"', "id = 7"), "entry 1: expected id to be a str"),
]


@pytest.mark.parametrize(("text", "words"), FAULTS, ids=[words[:40] for _, words in FAULTS])
def test_malformed_known_faults(text, words, tmp_path):
    file = tmp_path / "faults.toml"
    file.write_text(text)
    with pytest.raises(UsageError, match=words) as info:
        run_setup.build(CPU, known_faults=file)
    assert "\n" not in str(info.value)


def test_empty_known_faults_are_allowed(tmp_path):
    file = tmp_path / "faults.toml"
    file.write_text("")
    assert run_setup.build(CPU, known_faults=file).known_faults == ()


def test_builtin_known_faults_load():
    assert len(load_faults(BUILTIN)) >= 6
    assert {entry.signature for entry in load_faults()} >= {"values", "sign of zero", "shape"}


def test_entry_that_is_not_true_turns_the_run_red(tmp_path):
    """On an odd number of columns upstream is right."""
    file = tmp_path / "faults.toml"
    file.write_text(ENTRY.replace("4x64", "4x65"))
    missing = FORMATS["nf4"].oracles[0].missing(CPU.device)
    if missing:
        pytest.skip(missing)
    folder = tmp_path / "r"
    done = pytest_run(
        "conformance/test_known_faults.py", "--known-faults", str(file), "--results", str(folder)
    )
    assert done.returncode == 1
    assert "FIXED_FAULT  nf4:shape=4x65" in done.stdout
    assert [record["verdict"] for record in records(folder)][-1] == "FIXED_FAULT"


# --- what a run says of itself ------------------------------------------------------------------


def test_looser_gate_is_in_the_header_and_in_the_rerun_command(tmp_path):
    done = pytest_run(
        *("conformance", "--case", "nf4:shape=4x64,out=fp32", "--gate", "coarse"),
        *("--kernel", "nf4=tests/planted.py:nibbles_swapped", "--results", str(tmp_path / "r")),
    )
    assert "gate: coarse (LOOSER than exact, as asked for)" in done.stdout
    assert done.returncode == 1
    assert "--gate coarse" in done.stdout


def test_nothing_compared_is_red(tmp_path):
    folder = tmp_path / "r"
    kernel = "llm_int8=tests/planted.py:unsupported"
    done = pytest_run(*QUICK, "--kernel", kernel, "--results", str(folder))
    assert done.returncode == 1
    assert "VACUOUS: no element was compared" in done.stdout
    assert "UNSUPPORTED: not written yet" in done.stdout
    assert {record["verdict"] for record in records(folder)} == {"UNSUPPORTED"}


def test_rerun_of_an_oracle_fault_names_the_known_faults_file(tmp_path):
    file = tmp_path / "none.toml"
    file.write_text("")
    entry = load_faults()[0]
    oracle = FORMATS["nf4"].oracles[0]
    reason = oracle.missing(CPU.device) or entry.applies_here(
        oracle.provenance().version, CPU.device, entry.expires
    )
    if reason:
        pytest.skip(reason)
    arguments = ("--known-faults", str(file), "--oracle", entry.oracle)
    done = pytest_run("conformance", "--case", entry.case, *arguments, "--results", str(tmp_path / "r"))
    assert done.returncode == 1
    assert "ORACLE_FAULT" in done.stdout
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("rerun"))
    for argument in arguments:
        assert argument in line


def test_list():
    done = python("-m", "conformance", "list", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    for name in FORMATS:
        assert name in done.stdout
    assert "bnb-cpu-avx512-blocks-per-row" in done.stdout


def test_wrong_command():
    done = python("-m", "conformance", "replay", "no/such/folder")
    assert done.returncode == 2
    assert done.stderr == "error: bundle: expected a folder with case.json, found nothing at no/such/folder\n"
