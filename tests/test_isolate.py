"""A black box with one step wrong: the step is found. A right one is accused of none."""

import functools
import json
import shlex

import numpy as np
import pytest
import torch

from conformance.errors import UsageError
from conformance.isolation import ACTIVATIONS, OPERANDS, first_wrong, isolate, steps_of
from conformance.outliers import look
from conformance.report import LINES
from kernels import Unsupported
from tests.black_boxes import WRONG, dynamic, gemm, half_away
from tests.harness_runs import FORMATS, harness, planted, python


def found_by(kernel, name=OPERANDS, fields=(), outs=("fp32",)):
    return tuple(isolate(harness(), FORMATS[name], planted(kernel), fields, outs))


@pytest.mark.parametrize("name", WRONG)
def test_the_wrong_step_is_found(name):
    wrong, step = WRONG[name]
    found = found_by(functools.partial(gemm, **wrong))
    assert first_wrong(found).step.name == step
    if name == "one token":
        assert first_wrong(found).rows == "with M = 1 alone"


@pytest.mark.parametrize("order", ["a-w", "w-a", "product", "absmax"])
def test_a_right_black_box_is_accused_of_nothing(order):
    found = found_by(gemm, fields=(f"order={order}",))
    assert [one.state for one in found] == ["right"] * len(steps_of(OPERANDS))


def test_the_order_of_the_scales_is_a_step():
    assert first_wrong(found_by(lambda w, **k: gemm(_as(w, "w-a"), **k))).step.name == "order of the scales"


def _as(weight, order):
    import dataclasses

    return dataclasses.replace(weight, order=order)


@pytest.mark.parametrize(
    ("wrong", "step"),
    [
        ({"rounding": half_away}, "quantization"),
        ({"rounding": torch.trunc}, "quantization"),
        ({"depth": lambda k: k // 4 * 4}, "accumulation"),
        ({"channel": lambda s: s.roll(1)}, "weight scale"),
        ({"bias_first": True}, "bias"),
    ],
)
def test_the_wrong_step_of_float_activations(wrong, step):
    found = found_by(functools.partial(dynamic, **wrong), ACTIVATIONS)
    assert first_wrong(found).step.name == step


def test_a_right_product_of_float_activations():
    assert first_wrong(found_by(dynamic, ACTIVATIONS)) is None


def test_what_a_kernel_does_not_do_is_no_pass():
    def per_tensor(w, *, dtype, out=None):
        if w.a_zero is not None:
            raise Unsupported("no zero points")
        return gemm(w, dtype=dtype, out=out)

    found = {one.step.name: one for one in found_by(per_tensor)}
    assert found["zero point"].state == "not shown"
    assert found["zero point"].unsupported == ("no zero points",)
    assert found["bias"].state == "right"


def test_every_case_is_one_of_the_format():
    for name in (OPERANDS, ACTIVATIONS):
        for step in steps_of(name):
            for text in step.cases:
                case = FORMATS[name].parse(text)
                FORMATS[name].words(case).validate(deep=True)


# --- the command -----------------------------------------------------------------------------


def run(*arguments):
    return python("-m", "conformance", "isolate", "--device", "cpu", *arguments)


def test_the_command_names_step_and_cause_in_25_lines(tmp_path):
    kernel = tmp_path / "mine.py"
    kernel.write_text("from tests.black_boxes import gemm\n\n\ndef wrong(w, *, dtype, out=None):\n"
                      "    return gemm(w, dtype=dtype, out=out, sign=1)\n")  # fmt: skip
    done = run("--gemm", f"{kernel}:wrong", "--json", str(tmp_path / "found.json"))
    assert done.returncode == 1
    assert "first wrong step: zero point" in done.stdout
    assert "zero-sign-flipped" in done.stdout
    assert len(done.stdout.splitlines()) <= 25
    assert f"--kernel gemm_int8={kernel}:wrong" in done.stdout
    record = json.loads((tmp_path / "found.json").read_text())
    assert record["first_wrong"] == "zero point"
    assert {step["step"]: step["state"] for step in record["steps"]}["accumulation"] == "right"


def written(path, body):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        "import os\nimport time\n\nimport torch\n\nfrom tests.black_boxes import gemm\n\n\n"
        f"def mine(w, *, dtype, out=None):\n    {body}\n",
        encoding="utf-8",
    )
    return f"{path}:mine"


def test_wrong_usage_of_the_command(tmp_path):
    assert "expected a field of gemm_int8" in run("--set", "nothing=1").stderr
    assert run("--gemm", "nothing:here").returncode == 2
    empty = run("--gemm", "")
    assert (empty.returncode, empty.stdout) == (2, "")
    assert "--json: expected a file that can be written" in run("--json", str(tmp_path)).stderr


@pytest.mark.parametrize("field", ["K=64", "a=random(1)", "bias=fp16", "scales=one", "aper=token", "M=0"])
def test_a_field_that_shows_a_step_is_not_given(field):
    done = run("--set", field)
    assert done.returncode == 2
    assert "--set: expected a field that no step is shown by (" in done.stderr
    assert f"found {field!r}" in done.stderr


def test_the_kernel_is_not_overwritten(tmp_path):
    kernel = written(tmp_path / "mine.py", "return gemm(w, dtype=dtype, out=out)")
    before = (tmp_path / "mine.py").read_text()
    done = run("--gemm", kernel, "--json", str(tmp_path / "mine.py"), "--force")
    assert done.returncode == 2
    assert "expected another file than the input" in done.stderr
    (tmp_path / "found.json").write_text("mine")
    assert "expected no file yet" in run("--gemm", kernel, "--json", str(tmp_path / "found.json")).stderr
    assert (tmp_path / "mine.py").read_text() == before
    assert (tmp_path / "found.json").read_text() == "mine"


def test_a_kernel_that_ends_the_process_is_no_pass(tmp_path):
    done = run("--gemm", written(tmp_path / "mine.py", "os._exit(0)"))
    assert done.returncode == 1
    assert "os._exit(0), which would have ended the run" in done.stdout


def test_a_kernel_that_never_ends(tmp_path):
    done = run("--gemm", written(tmp_path / "mine.py", "time.sleep(1000)"), "--timeout", "2")
    assert done.returncode == 1
    assert "the kernel did not answer within 2 s" in done.stdout


def test_an_exception_without_a_text(tmp_path):
    body = "raise type('Bad', (Exception,), {'__str__': lambda self: 1 / 0})()"
    done = run("--gemm", written(tmp_path / "mine.py", body))
    assert done.returncode == 1
    assert "Bad: (without a text: ZeroDivisionError in its __str__)" in done.stdout
    assert len(done.stdout.splitlines()) <= 25


def test_the_rerun_of_a_path_with_a_blank(tmp_path):
    done = run(
        "--gemm", written(tmp_path / "a b" / "mine.py", "return gemm(w, dtype=dtype, out=out, sign=1)")
    )
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("rerun"))
    words = shlex.split(line.removeprefix("rerun"))
    assert words[words.index("--kernel") + 1] == f"gemm_int8={tmp_path / 'a b' / 'mine.py'}:mine"
    assert words[-2:] == ["--device", "cpu"]


def test_json_on_the_standard_output():
    record = json.loads(run("--json", "-").stdout)
    assert record["first_wrong"] is None
    assert (record["changed"], record["notes"]) == (None, [])
    assert record["steps"][0]["judged"] > 30


def test_a_layout_has_the_name_of_the_input_too():
    def cases(text):
        done = run("--set", text, "--json", "-")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["steps"]

    assert cases("b_layout=KN") == cases("lay=KN")
    assert "lay: expected one of NK, KN, found 'MK'" in run("--set", "b_layout=MK").stderr


@pytest.mark.parametrize("folders", [1, 4])  # a longer name is one more line
def test_a_report_of_a_step_is_cut_at_whole_entries(tmp_path, folders):
    path = tmp_path.joinpath(*["a folder with a name" for _ in range(folders)], "mine.py")
    done = run("--gemm", written(path, "return gemm(w, dtype=dtype, out=out).neg_()"))
    lines = done.stdout.splitlines()
    assert len(lines) <= LINES
    places = [i for i, line in enumerate(lines) if line.startswith("  [")]
    assert places
    assert [i + 1 for i in places] == [i for i, line in enumerate(lines) if line.startswith("      got ")]


def test_float32_accumulation_is_seen():
    def in_float32(w, *, dtype, out=None):
        b = (w.b if w.b_layout == "NK" else w.b.t()).float()
        sums = torch.zeros(w.a.shape[0], b.shape[0])
        for k in range(b.shape[1]):
            sums += w.a[:, k : k + 1].float() * b[:, k]
        return gemm(w, dtype=dtype, out=out, wrap=lambda acc: sums.long())

    assert first_wrong(found_by(in_float32)).step.name == "accumulation"


@pytest.mark.parametrize("large", [{"M": 24}, {"M": 48}, {"N": 300}, {"K": 512}, {"K": 4096}], ids=str)
def test_faults_of_larger_sizes_are_seen(large):
    def wrong(w, *, dtype, out=None):
        y = gemm(w, dtype=dtype, out=out)
        ((name, size),) = large.items()
        return y.zero_() if {"M": w.a.shape[0], "N": w.n_cols, "K": w.a.shape[1]}[name] == size else y

    assert first_wrong(found_by(wrong)).step.name == "accumulation"


def test_a_kernel_that_changes_its_mind(tmp_path):
    body = "calls.append(1); y = gemm(w, dtype=dtype, out=out); return y.neg_() if len(calls) > 50 else y"
    kernel = written(tmp_path / "mine.py", body)
    source = (tmp_path / "mine.py").read_text()
    (tmp_path / "mine.py").write_text(source.replace("def mine", "calls = []\n\n\ndef mine"))
    words = "was right before and is wrong now: answers depend on earlier calls"
    done = run("--gemm", kernel, "--json", str(tmp_path / "found.json"))
    assert done.returncode == 1
    assert words in done.stdout
    record = json.loads((tmp_path / "found.json").read_text())
    assert record["notes"] == [f"{record['changed']} {words}"]
    assert record["changed"].startswith("gemm_int8:")
    again = run("--gemm", written(tmp_path / "other.py", "return gemm(w, dtype=dtype, out=out, sign=1)"))
    assert again.returncode == 1
    assert "was right before" not in again.stdout


def test_a_kernel_that_cannot_be_called(tmp_path):
    done = run("--gemm", written(tmp_path / "mine.py", "return None"))
    assert done.returncode == 1
    assert "no case had an answer, so no step was shown" in done.stdout
    assert "first wrong step" not in done.stdout


def test_the_last_line_names_the_same_kernel(tmp_path):
    kernel = written(tmp_path / "mine.py", "return gemm(w, dtype=dtype, out=out)")
    assert f"pytest conformance -k gemm_int8 --kernel gemm_int8={kernel}" in run("--gemm", kernel).stdout


# --- activations that no kernel can quantize well -------------------------------------------------


def activations(outlier):
    x = torch.from_numpy(np.random.default_rng(1).normal(size=(64, 512))).half()
    x[:, 7] *= outlier
    return x


def test_an_outlier_channel_is_named_and_an_ordinary_one_is_not():
    plain, dominated = "\n".join(look(activations(1))), "\n".join(look(activations(300)))
    assert "outlier-dominated" in dominated
    assert "outlier-dominated" not in plain
    assert "channels that set the scale of most tokens: 7 (" in dominated
    assert "scale by channel" in dominated


def test_numbers_that_a_narrow_dtype_does_not_hold():
    x = activations(1)
    x[0] = 0
    x[1] *= 1e-4
    x[2, 0] = 60000
    x[3, 0] = float("nan")
    text = "\n".join(look(x))
    assert "1 tokens are all 0" in text
    assert "127 * x overflows in float16" in text
    assert "a scale computed in float16 is subnormal for" in text
    assert "1 tokens have an infinity or NaN" in text
    assert "split K" not in text
    assert "split K" in "\n".join(look(torch.ones(1, 2**17)))


@pytest.mark.parametrize("bad", [torch.zeros(3), torch.zeros(0, 4), torch.zeros(2, 3, dtype=torch.int8)])
def test_activations_that_are_none(bad):
    with pytest.raises(UsageError, match="expected"):
        list(look(bad))


def test_the_activations_command(tmp_path):
    np.save(tmp_path / "x.npy", activations(300).numpy())
    done = python("-m", "conformance", "activations", str(tmp_path / "x.npy"))
    assert done.returncode == 0, done.stderr
    assert "outlier-dominated" in done.stdout
    missing = python("-m", "conformance", "activations", str(tmp_path / "none.npy"))
    assert missing.returncode == 2
