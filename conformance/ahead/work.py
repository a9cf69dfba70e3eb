"""Compile all formats, in one process or several."""

from __future__ import annotations

import concurrent.futures
import functools
import multiprocessing
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import triton

from conformance.ahead.access import accesses
from conformance.ahead.addresses import narrow
from conformance.ahead.build import build, unsupported
from conformance.ahead.cases import cases
from conformance.ahead.large import BUILDERS, large_weights, without_memory
from conformance.ahead.launches import Launch, launches, launches_of
from conformance.ahead.machine import read_amd, read_cubin
from conformance.ahead.result import Compiled
from conformance.errors import UsageError
from conformance.registry import Format, find_format


def version() -> str:
    return str(triton.__version__)


def supported(targets: Sequence[str]) -> tuple[list[str], list[str]]:
    """Those of ``targets`` that this Triton compiles for, and a reason for each of the others.

    Raises:
        UsageError: there are none.
    """
    reasons = {target: unsupported(target) for target in dict.fromkeys(targets)}
    found = [target for target, reason in reasons.items() if not reason]
    left_out = [reason for reason in reasons.values() if reason]
    if not found:
        raise UsageError(f"--target: expected one for this Triton, found: {'; '.join(left_out)}")
    return found, left_out


def compile_all(
    names: Sequence[str], targets: Sequence[str], *, quick: bool = False, jobs: int = 1
) -> Iterator[Compiled]:
    """Compile every distinct launch of the formats ``names`` for every target, in order."""
    one = functools.partial(_compile_format, targets=tuple(targets), quick=quick)
    if jobs == 1 or len(names) == 1:
        for name in names:
            yield from one(name)
        return
    # Not forked: the parent has PyTorch's threads.
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(min(jobs, len(names)), mp_context=context) as pool:
        for found in pool.map(one, names):
            yield from found


def _compile_format(name: str, targets: Sequence[str], quick: bool) -> list[Compiled]:
    fmt = find_format(name)
    found: list[Compiled] = []
    seen: set[str] = set()
    for sizes, case in cases(fmt, quick=quick):
        for launch in launches(fmt, case):
            text = f"{launch.kernel} {launch.variant}"
            if text not in seen:
                seen.add(text)
                found += [compile_launch(launch, name, case.id, sizes, target) for target in targets]
    return found + _large(fmt, targets[0], quick)


def _large(fmt: Format, target: str, quick: bool) -> list[Compiled]:
    """Launches on more than 2**31 elements. The addresses come from Triton's IR, before any target."""
    if fmt.name not in BUILDERS:
        return []
    with without_memory():
        found = [
            (text, launch)
            for text, weight in large_weights(fmt.name)
            for launch in launches_of(fmt, weight, torch.float16)
        ]
    if quick:
        found = found[:1]
    return [compile_launch(launch, fmt.name, text, "large", target) for text, launch in found]


def compile_launch(launch: Launch, fmt: str, case: str, sizes: str, target: str) -> Compiled:
    """Compile one launch and read what came out."""
    about = (version(), target, fmt, case, sizes, launch.kernel, launch.variant)
    try:
        built = build(launch, target)
    except Exception as error:  # any refusal is the result
        text = " ".join(str(error.__cause__ or error).split())
        return Compiled(*about, error=f"{type(error).__name__}: {text}"[:400])
    return Compiled(*about, **measured(launch, built, large=sizes == "large"))


def measured(launch: Launch, built: Any, *, large: bool = False) -> dict[str, Any]:
    """Fields of :class:`Compiled` of what the compiler made.

    Args:
        large: the launch is one on more than 2**31 elements: only its addresses are looked at.
    """
    if large:
        flaws = narrow(built.asm["ttir"], launch.runtime, launch.integers, launch.grid)
        return {"narrow": tuple(flaws)}
    shared = {"shared": int(built.metadata.shared)}
    if "amdgcn" in built.asm:
        code = read_amd(built.asm["amdgcn"])
        stores = {"*": code.store_bytes}
        return {
            **shared,
            "registers": code.registers,
            "spills": code.spills,
            "fused": code.fused,
            "stores": stores,
        }
    ptx = built.asm["ptx"]
    code = read_cubin(built.asm["cubin"])
    loads, stores = accesses(ptx, launch.pointers)
    # A division rounded to nearest is made of fused steps by the assembler, none of them the kernel's.
    fused = ptx.count("fma.") + (0 if "div.rn.f" in ptx else code.fused)
    return {
        **shared,
        "registers": code.registers,
        "spills": code.spills,
        "fused": fused,
        "loads": loads,
        "stores": stores,
    }
