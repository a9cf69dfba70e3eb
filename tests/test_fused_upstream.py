"""Upstream's fused products: what can run here, and what was found of them."""

from __future__ import annotations

import importlib

import pytest
import torch

from conformance.harness import Harness
from conformance.investigate import investigate
from conformance.products import Products
from conformance.registry import parse_case
from conformance.setup import parse_kernels
from oracles.fused import adapters
from tests.harness_runs import CPU, FORMATS, NO_ORACLE

EVERY = {adapter.path: adapter for adapter in adapters()}


def harness(name: str, path: str) -> Harness:
    reason = EVERY[path].missing(torch.device("cpu"))
    if reason is not None:
        pytest.skip(reason)
    return Harness(CPU, FORMATS, parse_kernels(FORMATS, [], [f"{name}={path}"]), oracles=NO_ORACLE)


@pytest.mark.parametrize("path", EVERY)
def test_an_adapter_is_what_it_says(path):
    adapter = EVERY[path]
    module, _, function = path.partition(":")
    assert callable(getattr(importlib.import_module(module), function))
    assert all(FORMATS[name].inner is not None for name in adapter.formats)
    assert adapter.provenance().callable
    reason = adapter.missing(torch.device("cpu"))
    assert reason is None or reason


RIGHT = [
    ("oracles.fused.bnb:matmul_4bit", "nf4:shape=5x70,absmax=nested"),
    ("oracles.fused.torch_int4:int4pack_cpu", "awq_cols:K=96,N=48,g=32,zp=mid"),
    ("oracles.fused.torch_int4:int4pack_cpu", "gptq:K=64,N=32,zeros=v2,zp=random(1),out=fp32"),
    ("oracles.fused.gptqmodel:torch_layer", "gptq:K=64,N=32,zeros=v2"),
    ("oracles.fused.autogptq:torch_layer", "gptq:K=64,N=32,zeros=v1-nowrap"),
]


@pytest.mark.parametrize(("path", "case"), RIGHT, ids=[f"{p.rpartition('.')[2]}-{c[:4]}" for p, c in RIGHT])
def test_upstream_is_right(path, case):
    run = harness(case.partition(":")[0], path)
    for verdict in (run.judge(parse_case(case)).verdict, Products(run).judge(parse_case(case)).verdict):
        assert verdict.kind in ("EXACT", "WITHIN")


FOUND = [
    ("oracles.fused.bnb:linear_4bit", "nf4:shape=32x64", "absmax-in-bfloat16"),
    (
        "oracles.fused.gptqmodel:torch_aten",
        "gptq:zeros=v2,zp=below(3),scales=ordinary(1)",
        "zero-term-rounded",
    ),
]


@pytest.mark.parametrize(("path", "case", "cause"), FOUND, ids=[cause for _, _, cause in FOUND])
def test_what_docs_fused_says_was_found(path, case, cause):
    name = case.partition(":")[0]
    run = harness(name, path)
    checked = investigate(run, run.judge(parse_case(case)), run.kernels[name])
    assert checked.verdict.kind == "MISMATCH"
    assert checked.verdict.causes[0].name == cause
    assert "reproduces the whole output" in checked.verdict.causes[0].text
