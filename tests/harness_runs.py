"""Harnesses, drawn cases and whole runs for the tests of the harness."""

from __future__ import annotations

import functools
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import hypothesis
import torch
from hypothesis import HealthCheck, Phase, given, seed
from hypothesis.errors import NoSuchExample

from conformance.case import Case
from conformance.harness import Checked, Failure, Harness
from conformance.known_faults import KnownFault
from conformance.registry import Format, Kernel, builtin_kernel, formats, parse_case
from conformance.run_record import is_case
from conformance.runtime import Runtime
from conformance.strategies import cases

ROOT = Path(__file__).resolve().parents[1]
# Planted kernels compute with torch on CPU tensors, whatever device the run judges.
CPU = Runtime(torch.device("cpu"), True)
FORMATS = formats()
NO_ORACLE: frozenset[str] = frozenset()


def planted(function: Callable[..., torch.Tensor]) -> Kernel:
    """A kernel as ``--kernel`` would give it."""
    takes_out = "out" in inspect.signature(function).parameters
    return Kernel(f"planted:{getattr(function, '__name__', 'kernel')}", function, False, takes_out)


def harness(
    kernel: Callable[..., torch.Tensor] | None = None,
    *,
    oracles: frozenset[str] | None = NO_ORACLE,
    known: tuple[KnownFault, ...] = (),
    fmt: Format | None = None,
    **more: Any,
) -> Harness:
    """A harness on the CPU; ``kernel`` stands in for every format's, ``fmt`` for the one of its name."""
    known_formats = {**FORMATS, **({fmt.name: fmt} if fmt else {})}
    kernels = {name: planted(kernel) if kernel else builtin_kernel(f) for name, f in known_formats.items()}
    return Harness(CPU, known_formats, kernels, known, oracles, **more)


def judge(kernel: Callable[..., torch.Tensor], case: str, **options: Any) -> Checked:
    """What a harness says of ``kernel`` on one case, given by its id."""
    return harness(kernel, **options).judge(parse_case(case))


def _settings(examples: int) -> hypothesis.settings:
    return hypothesis.settings(
        max_examples=examples,
        database=None,
        deadline=None,
        print_blob=False,
        report_multiple_bugs=False,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )


def first_failure(run: Harness, fmt: str, examples: int = 60, **fixed: Any) -> Failure | None:
    """The failure that the suite's own strategy finds and shrinks to, or None."""

    @seed(f"{fmt}/{fixed}")
    @_settings(examples)
    @given(cases(run.formats[fmt], route="words", **fixed))
    def test(case: Case) -> None:
        run.check(case)

    try:
        test()
    except Failure as failure:
        return failure
    return None


@functools.cache
def drawn(fmt: str, examples: int = 300, **fixed: Any) -> tuple[Case, ...]:
    """Cases as the suite draws them for ``fmt``."""
    found: list[Case] = []

    @seed(f"{fmt}/{fixed}")
    @_settings(examples)
    @given(cases(FORMATS[fmt], route="words", **fixed))
    def collect(case: Case) -> None:
        found.append(case)

    collect()
    return tuple(found)


def minimal(fmt: str, condition: Callable[[Case], bool], examples: int = 500, **fixed: Any) -> Case:
    """The case that a failure on ``condition`` shrinks to."""
    strategy = cases(FORMATS[fmt], route="words", **fixed)
    try:
        # The same search in every run: one in forty ends in another local minimum, such as 3x31.
        return hypothesis.find(strategy, condition, settings=_settings(examples), random=Random(fmt))
    except NoSuchExample as error:
        raise AssertionError(f"no case of {fmt} meets the condition in {examples} examples") from error


def python(*arguments: str, blocked: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    """Run Python in a fresh process in which the modules ``blocked`` cannot be imported."""
    code = ""
    if blocked:
        code = (
            "import sys, importlib.abc\n"
            "class Block(importlib.abc.MetaPathFinder):\n"
            "    def find_spec(self, name, path=None, target=None):\n"
            f"        if name.partition('.')[0] in {tuple(blocked)!r}:\n"
            "            raise ModuleNotFoundError(f'blocked: {name}', name=name)\n"
            "sys.meta_path.insert(0, Block())\n"
        )
        if arguments[0] == "-m":
            rest = [arguments[1], *arguments[2:]]
            code += (
                f"import runpy\nsys.argv = {rest!r}\nsys.path.insert(0, '')\n"
                f"runpy.run_module({arguments[1]!r}, run_name='__main__', alter_sys=True)\n"
            )
        else:
            assert arguments[0] == "-c"
            code += "sys.path.insert(0, '')\n" + arguments[1]
        arguments = ("-c", code)
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "TRITON_"))
    }
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def pytest_run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A run of the suite in a fresh process, on the interpreter."""
    return python("-m", "pytest", "--device", "cpu", "-p", "no:cacheprovider", *arguments)


def records(folder: Path) -> list[dict[str, Any]]:
    """The records of a run's cases."""
    lines = (folder / "results.jsonl").read_text(encoding="utf-8").splitlines()
    return [record for record in map(json.loads, lines) if is_case(record)]
