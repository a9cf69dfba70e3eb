"""The options that `pytest conformance` takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.profiles import PROFILES

GATES = ("coarse", "element", "exact")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("conformance", "kernel conformance")
    group.addoption(
        "--device", default="auto", help="auto (default), cpu (Triton's interpreter), cuda or cuda:N"
    )
    group.addoption(
        "--kernel",
        action="append",
        default=[],
        metavar="FORMAT=MODULE:FUNCTION",
        help="judge this kernel instead of the built-in one; FILE.py:FUNCTION works too; repeatable",
    )
    group.addoption(
        "--fused",
        action="append",
        default=[],
        metavar="FORMAT=MODULE:FUNCTION",
        help="judge gemm(x, weight) by the weight that its products reveal, and its products; repeatable",
    )
    group.addoption(
        "--accumulate",
        choices=("fp32", "fp16"),
        default="fp32",
        help="what the kernels of --fused may sum in (default: fp32)",
    )
    group.addoption(
        "--split-k",
        type=int,
        default=1,
        metavar="N",
        help="partial sums that they may add in the output dtype",
    )
    group.addoption(
        "--terms",
        choices=("exact", "rounded"),
        default="exact",
        help="whether they may round each product x[k] w[k] to the output dtype (default: exact)",
    )
    group.addoption(
        "--oracle", action="append", default=[], metavar="NAME", help="ask only this oracle; repeatable"
    )
    group.addoption("--gate", choices=GATES, default="exact", help="gate a kernel must pass (default: exact)")
    group.addoption("--max-examples", type=int, metavar="N", help="cases a test, instead of the profile's")
    group.addoption("--profile", choices=tuple(PROFILES), default="default", help="how many cases a test")
    group.addoption(
        "--case", action="append", default=[], metavar="ID", help="run just this case; repeatable"
    )
    group.addoption(
        "--known-faults", type=Path, metavar="FILE", help="known-faults file instead of the built-in one"
    )
    group.addoption("--model", type=Path, metavar="FILE", help="safetensors file of the real-weights test")
    group.addoption(
        "--recorded",
        type=Path,
        metavar="DIR",
        help="recorded vectors to judge by, instead of the built-in ones",
    )
    group.addoption(
        "--database",
        metavar="URL|DIR",
        help="where failing examples are remembered: a folder, or redis://host:port/0 that runners share",
    )
    group.addoption("--results", type=Path, metavar="DIR", help="folder of this run's results and bundles")
