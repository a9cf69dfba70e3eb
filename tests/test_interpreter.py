"""Triton's interpreter: what it gets wrong today, and that the correction makes it right."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
import triton

from conformance import interpreter
from tests.harness_runs import python

PROBE = (
    "import os; os.environ['TRITON_INTERPRET'] = '1'\n"
    "import numpy as np, torch\n"
    "from conformance import interpreter as i\n"
    "with np.errstate(all='ignore'):\n"
)


def run(*lines: str) -> list[str]:
    done = python("-c", PROBE + "".join(f"    {line}\n" for line in lines))
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.skipif(
    tuple(int(part) for part in triton.__version__.split(".")[:2]) > (3, 9),
    reason="written for the interpreter of Triton 3.9 and older",
)
def test_uncorrected_interpreter_is_wrong_and_corrected_it_is_right():
    """When this fails on a new Triton, upstream is fixed: raise the version above."""
    before = "print(i._casts_right(torch.bfloat16), i._arithmetic_right(), i._casts_right(torch.float16))"
    after = before + "; print(i.probe().corrected == (), i.probe().unjudged, sep=' ')"
    assert run(before, "i.correct()", "i.correct()", after) == [
        *("False", "False", "True"),
        *("True", "True", "True"),
        *("True", "()"),
    ]


def test_truncation_is_what_is_wrong():
    """bfloat16 has 1 and 1 + 2**-7 here; 1 + 3 * 2**-9 is nearer to the second."""
    assert run(
        "x = torch.tensor([1 + 3 * 2.0**-9]); out = torch.zeros(1, dtype=torch.bfloat16)",
        "i._probe_cast[(1,)](out, x, 1, BLOCK=1); print(float(out[0]))",
        "i.correct(); i._probe_cast[(1,)](out, x, 1, BLOCK=1); print(float(out[0]), float(x.bfloat16()[0]))",
    ) == ["1.0", "1.0078125", "1.0078125"]


def test_loops_over_an_argument_are_corrected():
    """As Triton up to 3.6 has it: NumPy 2.4 converts no array of one dimension to a number."""
    assert run(
        "from triton.runtime import interpreter as t; patch = t._patch_lang_tensor",
        "def old(tensor, *scope):",
        "    patch(tensor, *scope)",
        "    tensor.__index__ = lambda self: [][0]",
        "t._patch_lang_tensor = old",
        "print(i._loops_right()); report = i.probe(); print(i._loops_right(), len(report.caveats))",
        "print('loops' in report.corrected[-1], 'loops' in str(i.probe().corrected))",
        "t._patch_lang_tensor = old; i.correct_loops = lambda: None",
        "report = i.probe(); print('loops' in str(report.corrected), 'loops' in report.caveats[-1])",
    ) == ["False", "True", "0", "True", "False", "False", "True"]


@pytest.mark.interpreter
def test_probe_of_this_process_judges_everything():
    report = interpreter.probe()
    assert report.unjudged == ()
    assert report.caveats == ()
    assert report.reason("bf16") is None


@pytest.mark.interpreter
def test_what_the_probe_cannot_correct_is_unjudged(monkeypatch):
    monkeypatch.setattr(interpreter, "_casts_right", lambda dtype: dtype is not torch.bfloat16)
    monkeypatch.setattr(interpreter, "_arithmetic_right", lambda: False)
    report = interpreter.probe()
    assert [name for name, _ in report.unjudged] == ["bf16"]
    assert "rounds casts to bf16 wrongly" in str(report.reason("bf16"))
    assert "is accused falsely" in report.caveats[0]


def test_garbage_is_an_error(monkeypatch):
    monkeypatch.setattr(interpreter, "_casts_right", lambda dtype: False)
    with pytest.raises(RuntimeError, match=f"Triton {triton.__version__}.*nothing can be judged"):
        interpreter.probe()


def test_samples_hold_ties_and_edges():
    bits = interpreter._samples().view(torch.int32).numpy().view(np.uint32)
    low = set((bits & 0xFFFF).tolist())
    assert low == {0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF}
    values = interpreter._samples()
    assert bool(torch.isnan(values).any())
    assert bool((values.abs() > 3.39e38).any())
    assert bool(((values != 0) & (values.abs() < 1.17e-38)).any())


def test_reports_are_values():
    assert dataclasses.replace(interpreter.Report(), unjudged=(("bf16", "why"),)).reason("bf16") == "why"
