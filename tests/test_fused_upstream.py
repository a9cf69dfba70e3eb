"""Upstream's fused products: what can run here, and what was found of them."""

from __future__ import annotations

import importlib
import os
from typing import Any

import pytest
import torch

from conformance.gemm_bound import Accumulation
from conformance.harness import Harness
from conformance.investigate import investigate
from conformance.products import Products
from conformance.registry import parse_case
from conformance.runtime import Runtime
from conformance.setup import parse_kernels
from oracles.fused import adapters
from tests.harness_runs import CPU, FORMATS, NO_ORACLE

EVERY = {adapter.path: adapter for adapter in adapters()}
# Compiled kernels where there is a GPU and the run asks for it.
GPU = Runtime(torch.device("cuda", 0), False)
compiled = pytest.mark.skipif(
    not torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1",
    reason="needs a CUDA GPU and compiled kernels: run with --device cuda",
)


def harness(name: str, path: str, runtime: Runtime = CPU, **options: Any) -> Harness:
    reason = EVERY[path].missing(runtime.device)
    if reason is not None:
        pytest.skip(reason)
    accumulation = Accumulation(**options)
    return Harness(
        runtime,
        FORMATS,
        parse_kernels(FORMATS, [], [f"{name}={path}"]),
        oracles=NO_ORACLE,
        accumulation=accumulation,
    )


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


# Products that only a GPU has, with how they may sum.
HALF_SPLIT = {"dtype": torch.float16, "splits": 8}
RIGHT_ON_A_GPU = [
    ("oracles.fused.autoawq:gemm_triton", "awq_cols:K=320,N=48,g=64", HALF_SPLIT),
    ("oracles.fused.autoawq:gemm_triton", "awq_cols:K=40,N=24,g=-1", HALF_SPLIT),
    ("oracles.fused.torch_int4:int4pack_cuda", "awq_cols:K=128,N=64,g=64,zp=mid,sdtype=bf16,out=bf16", {}),
    ("oracles.fused.autogptq:triton", "gptq:K=128,N=64,zeros=v1-nowrap", {}),
    ("oracles.fused.autogptq:triton", "gptq:K=128,N=64,bits=8,zeros=v1-nowrap", {}),
    ("oracles.fused.gptqmodel:triton", "gptq:K=128,N=64,zeros=v2", {}),
    ("oracles.fused.gptqmodel:triton", "gptq:K=96,N=32,bits=2,zeros=v2", {}),
    ("oracles.fused.bnb:gemv_4bit", "nf4:shape=64x256,out=fp32", {}),
    ("oracles.fused.bnb:matmul_4bit", "nf4:shape=64x256,out=fp32", {}),
    ("oracles.fused.bnb:matmul_4bit", "nf4:shape=5x70,absmax=nested,out=bf16", {}),
]


@compiled
@pytest.mark.parametrize(
    ("path", "case", "how"), RIGHT_ON_A_GPU, ids=[f"{p.rpartition('.')[2]}-{c}" for p, c, _ in RIGHT_ON_A_GPU]
)
def test_upstream_is_right_on_a_gpu(path, case, how):
    run = harness(case.partition(":")[0], path, GPU, **how)
    for verdict in (run.judge(parse_case(case)).verdict, Products(run).judge(parse_case(case)).verdict):
        assert verdict.kind in ("EXACT", "WITHIN"), verdict.summary


@compiled
@pytest.mark.parametrize("path", ["oracles.fused.bnb:gemv_4bit", "oracles.fused.bnb:matmul_4bit"])
@pytest.mark.parametrize("shape", ["32x64", "64x256"])
@pytest.mark.parametrize(("out", "cause"), [("fp16", "absmax-in-float16"), ("bf16", "absmax-in-bfloat16")])
def test_bitsandbytes_fused_weight_on_a_gpu(path, shape, out, cause):
    """What docs/fused.md says of it: every step in the dtype of the activations, each product included."""
    case = parse_case(f"nf4:shape={shape},out={out}")
    run = harness("nf4", path, GPU)
    checked = investigate(run, run.judge(case), run.kernels["nf4"])
    assert checked.verdict.kind == "MISMATCH"
    first = checked.verdict.causes[0]
    # matmul_4bit is right on rows that are no whole blocks: where those are looked at, the cause is said to
    # be of this case alone.
    alone = first.text.partition("fits this case alone: ")[2].split(", ")
    assert first.name == cause or (path.endswith("matmul_4bit") and cause in alone)
    assert Products(run).judge(case).verdict.kind == "MISMATCH"
    # The rounding of the products is allowed, so that the weight explains what is left, if anything is.
    allowed = harness("nf4", path, GPU, rounded_terms=True)
    product = Products(allowed).judge(case).verdict
    assert product.kind == "WITHIN" or cause in [found.name for found in product.causes]
