"""The fp8 product compiled for Hopper and Ada: fp8 tensor cores, and no sum that stays in them."""

from __future__ import annotations

import json

import pytest

from tests.harness_runs import python

CODE = r"""
import json, re
from conformance.ahead.build import build
from conformance.ahead.launches import launches
from conformance.registry import find_format
fmt = find_format("gemm_fp8")
found = {}
for target in ("sm_90", "sm_89"):
    (launch,) = launches(fmt, fmt.parse("M=64,N=128,K=256,aper=block,wper=block"))
    ptx = build(launch, target).asm["ptx"]
    products = re.findall(r"(?:wgmma\.mma_async|mma\.sync)[\w.]*", ptx)
    found[target] = (products, len(re.findall(r"\badd(?:\.rn)?\.f32", ptx)), "fma.rn.f32" in ptx)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found():
    done = python("-c", CODE)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("target", ["sm_90", "sm_89"])
def test_products_are_of_fp8_tensor_cores(found, target):
    """And not of float16, into which Triton widens where it may not keep a sum of 32 in them."""
    products, _, fused = found[target]
    assert products
    assert all("k32" in one and one.endswith((".f32.e4m3.e4m3", ".f32.e4m3.e4m3.f32")) for one in products)
    assert not fused


def test_hopper_adds_the_result_of_each_instruction_in_float32(found):
    """64 x 64 outputs are 32 a lane: two instructions of a tile of 64, and the sum of blocks."""
    products, additions, _ = found["sm_90"]
    outputs = 64 * 64 // 128
    assert len(products) == 2
    assert additions == (len(products) + 1) * outputs
