"""What a launch costs where decoding costs nothing, and how long a kernel takes to compile."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from benchmarks import check, references, weights
from benchmarks.budget import Budget
from benchmarks.cases import BenchCase, Variant
from benchmarks.machine import Machine
from benchmarks.results import CompileTime, Overhead
from benchmarks.run import said
from benchmarks.subjects import builtin
from conformance.bits import DTYPES

SIDE = 64


def tiny(variant: Variant, dtype: str = "fp16") -> BenchCase:
    """64 x 64 in one group, or in blocks of the usual size."""
    group = variant.groups[0]
    blocks = variant.format in ("nf4", "fp4", "blockwise8")
    size = group if blocks or not group else (SIDE if variant.format == "int8_affine" else -1)
    return BenchCase(variant.format, variant.name, dtype, SIDE, SIDE, size)


def overhead(variant: Variant, machine: Machine) -> Overhead:
    """Call and replay one 64 x 64 weight with the default launch parameters."""
    case = tiny(variant)
    host = graph = None
    reason = ""
    try:
        weight = weights.make(case, machine.device)
        dtype = DTYPES[case.dtype]
        want = references.formula(weight, dtype)
        out = torch.empty_like(want)
        call = functools.partial(builtin(case.format), weight, dtype=dtype, out=out)
        reason = check.verdict(call, out, want)
        if not reason:
            host = machine.timer.host(call)
            graph = machine.timer.graph(call)
    except Exception as error:  # what was measured before it stays
        reason = said(error)
    return Overhead(variant.format, variant.name, case.rows, case.cols, host, graph, reason)


def overheads(variants: Sequence[Variant], machine: Machine, budget: Budget) -> Iterator[Overhead]:
    """Of every variant for which there is time."""
    for variant in variants:
        if budget.over:
            yield Overhead(variant.format, variant.name, SIDE, SIDE, None, None, "skipped: no time left")
        else:
            yield overhead(variant, machine)


def compile_times(variants: Sequence[Variant], dtypes: Sequence[str], seconds: float) -> list[CompileTime]:
    """First and second launch of every variant in a process with an empty cache.

    Args:
        seconds: after which the process is ended; what it had found is kept.
    """
    with tempfile.TemporaryDirectory() as folder:
        jobs = Path(folder) / "jobs.json"
        cases = [vars(tiny(variant, dtype)) for dtype in dtypes for variant in variants]
        jobs.write_text(json.dumps([{"case": case, "launches": [{}]} for case in cases]), encoding="utf-8")
        environment = {**os.environ, "TRITON_CACHE_DIR": str(Path(folder) / "cache")}
        command = [sys.executable, "-m", "benchmarks.warm", str(jobs), "--times"]
        root = Path(__file__).resolve().parent.parent
        try:
            done = subprocess.run(
                command,
                cwd=root,
                env=environment,
                capture_output=True,
                text=True,
                timeout=seconds,
                check=False,
            )
            text, error = done.stdout, done.stderr if done.returncode else ""
        except subprocess.TimeoutExpired as expired:
            text = expired.stdout.decode() if isinstance(expired.stdout, bytes) else expired.stdout or ""
            error = f"ended after {seconds:.0f} s"
    found = {}
    for line in text.splitlines():
        if line.startswith("{"):
            entry = CompileTime(**json.loads(line))
            found[entry.format, entry.variant, entry.dtype] = entry
    last = error.strip().splitlines()[-1] if error.strip() else "no answer"
    return [
        found.get(
            (variant.format, variant.name, dtype),
            CompileTime(variant.format, variant.name, dtype, None, None, last),
        )
        for dtype in dtypes
        for variant in variants
    ]
