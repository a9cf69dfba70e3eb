"""An fp8 black box with one step wrong: the step is found. A right one is accused of none."""

from __future__ import annotations

import functools
import json

import pytest
import torch

from conformance.isolation import FP8, first_wrong, isolate, steps_of
from kernels import Unsupported
from tests.harness_runs import FORMATS, harness, planted, python


def gemm(
    w, *, dtype, out=None, decode=lambda codes: codes.float(), depth=lambda k: k, token=lambda s: s,
    channel=lambda s: s, rows=lambda n: n // 128, bias_first=False, order=None,
    store=lambda y, dtype: y.to(dtype),
) -> torch.Tensor:  # fmt: skip
    """A right product of an ``Fp8GemmInput`` in torch, by the format's text, unless a step is replaced."""
    n_rows, n_cols = w.output_shape
    a_per, w_per = w.per
    order = order or w.order
    a, b = decode(w.a), decode(w.b)
    kept = depth(a.shape[1])
    a, b = a[:, :kept], b[:, :kept]
    a_scale, w_scale = token(w.a_scale), channel(w.w_scale)
    if w_per == "block":
        w_scale = w_scale[rows(torch.arange(n_cols))]

    def times(y, x, z):
        if x is None or z is None:
            return y if x is z else y * (z if x is None else x)
        if order == "product":
            return y * (x * z)
        return y * x * z if order == "a-w" else y * z * x

    total = torch.zeros(n_rows, n_cols)
    for block, first in enumerate(range(0, a.shape[1], 128)):
        part = (a[:, first : first + 128].double() @ b[:, first : first + 128].double().t()).float()
        total = total + times(
            part,
            a_scale[:, block, None] if a_per == "block" else None,
            w_scale[None, :, block] if w_per == "block" else None,
        )
    bias = None if w.bias is None else w.bias.float()
    if bias_first and bias is not None:
        total = total + bias
    y = times(
        total,
        None if a_per == "block" else a_scale.expand(n_rows)[:, None],
        None if w_per == "block" else w_scale.expand(n_cols)[None, :],
    )
    if bias is not None and not bias_first:
        y = y + bias
    y = store(y, dtype)
    return y if out is None else out.copy_(y)


def fnuz(codes):
    return codes.view(torch.uint8).view(torch.float8_e4m3fnuz).float()


def flushed(codes):
    values = codes.float()
    return torch.where(values.abs() < 2**-6, values * 0, values)


def truncated(y, dtype):
    if dtype is not torch.bfloat16:
        return y.to(dtype)
    return (y.contiguous().view(torch.int32) >> 16).to(torch.int16).view(dtype)


WRONG = {
    "fnuz": ({"decode": fnuz}, "codes"),
    "subnormals flushed": ({"decode": flushed}, "codes"),
    "tail of K": ({"depth": lambda k: k // 16 * 16}, "accumulation"),
    "next token": ({"token": lambda s: s.roll(-1, 0)}, "activation scale"),
    "other axis": ({"token": lambda s: s.flip(1) if s.dim() == 2 else s}, "activation scale"),
    "first channel": ({"channel": lambda s: s[:1].expand_as(s)}, "weight scale"),
    "extent of blocks": (
        {"rows": lambda n: n // -(-n.numel() // -(-n.numel() // 128))}, "weight scale"
    ),
    "order": ({"order": "product"}, "order of the scales"),
    "bias first": ({"bias_first": True}, "bias"),
    "truncated": ({"store": truncated}, "output rounding"),
}  # fmt: skip


def found_by(kernel):
    return tuple(isolate(harness(), FORMATS[FP8], planted(kernel)))


@pytest.mark.parametrize("name", WRONG)
def test_the_wrong_step_is_found(name):
    wrong, step = WRONG[name]
    assert first_wrong(found_by(functools.partial(gemm, **wrong))).step.name == step


def test_a_right_black_box_is_accused_of_nothing():
    assert [one.state for one in found_by(gemm)] == ["right"] * len(steps_of(FP8))


def test_what_a_kernel_does_not_do_is_no_pass():
    def by_line(w, *, dtype, out=None):
        if "block" in w.per:
            raise Unsupported("no scales by block")
        return gemm(w, dtype=dtype, out=out)

    found = {one.step.name: one for one in found_by(by_line)}
    assert found["weight scale"].unsupported == ("no scales by block",)
    assert found["weight scale"].state == "right"
    assert first_wrong(tuple(found.values())) is None


def test_every_case_is_one_of_the_format():
    for step in steps_of(FP8):
        for text in step.cases:
            FORMATS[FP8].words(FORMATS[FP8].parse(text)).validate(deep=True)


def test_the_command():
    done = python("-m", "conformance", "isolate", "--takes", "fp8", "--device", "cpu", "--set", "order=w-a")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("gemm_fp8  kernels.gemm_fp8:matmul on cpu")
    assert "no step is wrong" in done.stdout


def other_order(w, *, dtype, out=None):
    return gemm(w, dtype=dtype, out=out, order="product")


def test_every_failing_case_of_a_step_is_kept_once():
    """The one that is looked into further comes first, and in no other's place."""
    command = ("-m", "conformance", "isolate", "--takes", "fp8", "--device", "cpu", "--json", "-")
    done = python(*command, "--gemm", "tests.test_isolate_fp8:other_order")
    assert done.returncode == 1, done.stderr
    (step,) = [one for one in json.loads(done.stdout)["steps"] if one["step"] == "order of the scales"]
    ids = [failure["case"] for failure in step["failures"]]
    assert len(set(ids)) == len(ids) > 1
    # Inputs with M = 1 fail as well: no words may say that only M > 1 does.
    text = python(*command[:-2], "--gemm", "tests.test_isolate_fp8:other_order").stdout
    (line,) = [line for line in text.splitlines() if line.startswith("  WRONG     order of the scales")]
    assert "alone" not in line
