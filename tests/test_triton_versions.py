"""The page of Triton's versions says what is in the results."""

from __future__ import annotations

from pathlib import Path

from conformance.ahead import expect
from conformance.ahead.expect import Excuse
from conformance.ahead.result import Compiled, write
from conformance.cli import main
from tests.matrix_runs import GPU, case, night

RIGHT = {"corrected": ["casts to bfloat16 (it truncates)"], "unjudged": [], "caveats": []}
WRONG = {
    "corrected": ["casts to bfloat16 (it truncates)"],
    "unjudged": [["fp16", "rounded wrongly"]],
    "caveats": ["loops are wrong"],
}


def results(folder: Path) -> list[str]:
    night(folder / "new", 2, case(), case("KNOWN_FAULT"), triton="3.10.0", interpreter_report=RIGHT)
    night(folder / "old", 3, case(), case("MISMATCH"), triton="3.9.0", interpreter_report=WRONG)
    night(folder / "older", 1, case("OOB_WRITE"), triton="3.9.0", interpreter_report=WRONG)
    night(folder / "gpu", 4, case("UNWRITTEN"), triton="3.10.0", device=GPU)
    return [str(folder / name) for name in ("new", "old", "older", "gpu")]


def variant(triton: str, kernel: str = "blockwise_kernel", **fields: object) -> Compiled:
    about = ("sm_90", "nf4", "nf4:shape=256x512", "ordinary", kernel, "")
    return Compiled(triton, *about, **{"registers": 32, "stores": {"out": {16: 1}}, **fields})


def test_verdicts_and_faults_of_the_interpreter(tmp_path, capsys):
    assert main(["versions", *results(tmp_path)]) == 0
    page = capsys.readouterr().out
    # In the order of versions, not of letters; the newest run of each; not the GPU's.
    assert "| format | 3.9.0 | 3.10.0 |" in page
    assert "| nf4 | 1 EXACT, 1 MISMATCH | 1 EXACT, 1 KNOWN_FAULT |" in page
    assert "- 3.9.0: nf4: 1 tests, MISMATCH: swapped-nibbles summary of MISMATCH\n" in page
    assert "| casts to bfloat16 (it truncates) | corrected | corrected |" in page
    assert "| casts to fp16: rounded wrongly | not judged | right |" in page
    assert "| loops are wrong | wrong | right |" in page
    assert "Machine code" not in page
    assert "UNWRITTEN" not in page


def test_versions_that_agree_share_a_column(tmp_path, capsys):
    night(tmp_path / "a", 1, case(), triton="3.9.0")
    night(tmp_path / "b", 1, case(), triton="3.8.0")
    assert main(["versions", str(tmp_path)]) == 0
    page = capsys.readouterr().out
    assert "The same in 3.8.0, 3.9.0:\n" in page
    assert "| nf4 | 1 EXACT |\n" in page
    assert "No case has one of the failing verdicts" in page


def test_machine_code(tmp_path, capsys, monkeypatch):
    reason = "this compiler fetches its words through shared memory"
    excuse = Excuse(reason, {"shared": 512}, kernels=("blockwise_kernel",), triton="<3.9")
    monkeypatch.setattr(expect, "EXCUSES", (*expect.EXCUSES, excuse))
    monkeypatch.setattr("conformance.triton_versions.EXCUSES", expect.EXCUSES)
    write(tmp_path / "8.jsonl", [variant("3.8.0", shared=512), variant("3.8.0", "x")], "3.8.0")
    write(tmp_path / "9.jsonl", [variant("3.9.0", registers=40, spills=2)], "3.9.0")
    write(tmp_path / "10.jsonl", [variant("3.10.0", error="no"), variant("3.10.0")], "3.10.0")
    files = [str(tmp_path / f"{n}.jsonl") for n in (8, 9, 10)]
    night(tmp_path / "run", 1, case(), triton="3.9.0")
    assert main(["versions", str(tmp_path / "run"), "--compiled", *files]) == 0
    page = capsys.readouterr().out
    assert "## Machine code for sm_90\n" in page
    assert "| format | 3.8.0 | 3.9.0 | 3.10.0 |" in page
    cells = (
        "2 ok, 32 registers, 1 worse",
        "1 ok, 40 registers, 1 worse",
        "1 ok, 1 refused, 32 registers, 1 worse",
    )
    assert f"| nf4 | {' | '.join(cells)} |" in page
    assert page.count("expected no spills, found 2") == 1
    assert "shared memory, found 512" not in page
    assert f"| `<3.9` | blockwise_kernel | shared 512 | {reason} |" in page


def test_wrong_arguments(tmp_path, capsys):
    night(tmp_path / "gpu", 1, case(), device=GPU)
    assert main(["versions", str(tmp_path / "gpu")]) == 2
    assert capsys.readouterr().err == "error: results: expected a run in Triton's interpreter, found none\n"
    night(tmp_path / "run", 1, case())
    assert main(["versions", str(tmp_path / "run"), "--compiled", str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err.startswith("error: --compiled: expected a file that can be read, found ")
