"""The case id that ``diagnose`` prints for the inputs of a quantized product."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file

from conformance.cli import main
from conformance.registry import parse_case
from conformance.standalone import case_for
from kernels._packed import named_tensors
from tests.harness_runs import FORMATS

# What tensors and fields tell; the rest is values.
TOLD = ("M", "K", "N", "codes", "xdtype", "lay", "order", "bias", "aper", "wper", "azero", "rule")


@pytest.mark.parametrize(
    "case",
    [
        "gemm_quantize:M=5,K=33,xdtype=bf16,rule=absmax",
        "gemm_quantize:M=5,K=5,xdtype=fp32,rule=minmax-u8",
        "gemm_accumulate:M=3,K=64,N=12,codes=uint8",
        "gemm_accumulate:M=3,K=12,N=12,lay=KN",
        "gemm_epilogue:M=8,N=12,aper=token,wper=tensor,azero=token,bias=bf16,order=product",
        "gemm_int8:M=8,K=64,N=12,aper=token,order=w-a",
        "gemm_int8:M=8,K=64,N=12,lay=KN,codes=uint8,azero=tensor,bias=fp16,wper=tensor",
        "gemm_dynamic:M=8,K=64,N=12,rule=minmax,xdtype=fp32,order=w-a,bias=fp32,lay=KN",
        "gemm_dynamic:M=8,K=64,N=12,rule=full",
        "gemm_fp8:M=8,K=64,N=12,order=w-a,bias=fp32",
    ],
)
def test_the_case_is_that_of_the_tensors(case):
    parsed = parse_case(case)
    fmt = FORMATS[parsed.format]
    found = case_for(fmt, fmt.words(parsed), "fp32")
    assert {name: found[name] for name in TOLD if name in parsed} == {
        name: parsed[name] for name in TOLD if name in parsed
    }


def test_no_rows():
    fmt = FORMATS["gemm_int8"]
    assert case_for(fmt, fmt.words(fmt.parse("M=0,K=64,N=3")), "fp32")["M"] == 0


def test_the_command_prints_it(tmp_path, capsys):
    fmt = FORMATS["gemm_int8"]
    weight = fmt.words(fmt.parse("M=8,K=64,N=12,aper=token,bias=fp16"))
    save_file({name: t.contiguous() for name, t in named_tensors(weight)}, tmp_path / "w.safetensors")
    torch.save(torch.zeros(8, 12), tmp_path / "y.pt")
    files = ["--weight", str(tmp_path / "w.safetensors"), "--got", str(tmp_path / "y.pt")]
    assert main(["diagnose", "--format", "gemm_int8", *files, "--set", "order=w-a"]) == 1
    first = capsys.readouterr().out.splitlines()[0]
    assert first == "MISMATCH  gemm_int8:M=8,K=64,N=12,order=w-a,aper=token,bias=fp16,out=fp32"
