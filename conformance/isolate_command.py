"""``python -m conformance isolate``: which step of an int8 matrix product is wrong."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conformance.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from conformance.isolation import Found

TAKES = {"operands": "gemm_int8", "activations": "gemm_dynamic"}


def run_isolate(options: argparse.Namespace) -> int:
    """Show each step of an int8 GEMM alone to a kernel and name the first that is wrong."""
    import contextlib
    import dataclasses

    from conformance.runtime import choose

    runtime = choose(options.device)
    with contextlib.redirect_stdout(sys.stderr):  # upstream libraries greet when they are imported
        from conformance import setup
        from conformance.detect.report import progress
        from conformance.investigate import investigate
        from conformance.isolation import first_wrong, isolate, steps_of
        from conformance.registry import builtin_kernel, find_format, user_kernel

        fmt = find_format(TAKES[options.takes])
        kernel = user_kernel(fmt, options.gemm) if options.gemm else builtin_kernel(fmt)
        harness = dataclasses.replace(setup.build(runtime), oracles=frozenset(), writer=None)
        fields = [field for text in options.set for field in text.split(",")]
        known = {dim.name for dim in fmt.all_dims}
        for field in fields:
            if field.partition("=")[0] not in known:
                raise UsageError(
                    f"--set: expected a field of {fmt.name} ({', '.join(known)}), found {field!r}"
                )
        found = []
        with progress(sys.stderr, "isolate") as bar:
            task = bar.add_task("", total=len(steps_of(fmt.name)))
            for one in isolate(harness, fmt, kernel, fields, options.out or ["fp32"]):
                found.append(one)
                bar.update(task, advance=1)
        wrong = first_wrong(found)
        if wrong is not None:
            looked = investigate(harness, wrong.failures[0], kernel)
            index = found.index(wrong)
            found[index] = wrong = dataclasses.replace(wrong, failures=(looked, *wrong.failures[1:]))
    _print(kernel.name, str(runtime.device), found, wrong, options)
    if options.json is not None:
        _write_json(options.json, found, wrong)
    return 1 if wrong is not None or not any(one.judged for one in found) else 0


def _print(
    kernel: str, device: str, found: Sequence[Found], wrong: Found | None, options: argparse.Namespace
) -> None:
    from conformance.report import report

    print(f"{TAKES[options.takes]}  {kernel} on {device}")
    width = max(len(one.step.name) for one in found)
    for one in found:
        count = f"{one.judged} cases"
        if one.failures:
            count += f", {len(one.failures)} wrong {one.rows}".rstrip()
        if one.unsupported:
            count += f"; not done: {one.unsupported[0]}"
        print(f"  {one.state:<9} {one.step.name:<{width}}  {count}  ({one.step.shown_by})")
    if wrong is None:
        if any(one.judged for one in found):
            print("no step is wrong on these inputs; pytest conformance -k gemm draws many more")
        else:
            print("VACUOUS: no case was judged, so nothing was shown")
        return
    later = [one.step.name for one in found if one.failures and one is not wrong]
    words = f"; {', '.join(later)} fail too, perhaps because of it" if later else ""
    print(f"first wrong step: {wrong.step.name}{words}")
    verdict = wrong.failures[0].verdict
    given = f" --kernel {verdict.case.format}={options.gemm}" if options.gemm else ""
    command = f"pytest conformance --case '{verdict.case.id}'{given}"
    # The table has a line a step; the report keeps to what is left of 25.
    lines = report(verdict, (("rerun", command),)).splitlines()
    room = max(8, 25 - 3 - len(found))
    print("\n".join((*lines[: room - 1], lines[-1]) if len(lines) > room else lines))


def _write_json(path: Path, found: Sequence[Found], wrong: Found | None) -> None:
    import json

    record = {
        "first_wrong": None if wrong is None else wrong.step.name,
        "steps": [
            {
                "step": one.step.name,
                "state": one.state,
                "judged": one.judged,
                "unsupported": list(one.unsupported),
                "failures": [checked.verdict.to_json() for checked in one.failures],
            }
            for one in found
        ],
    }
    try:
        path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--json: expected a file to write, found {path} ({error.strerror})") from error


def run_activations(options: argparse.Namespace) -> int:
    """Say what quantizing stored activations by token does to them, and what would help."""
    from conformance.runtime import choose

    choose("cpu")
    from conformance.given_output import read_output
    from conformance.outliers import look

    for line in look(read_output(options.file, options.tensor), options.rule):
        print(line)
    return 0


def add_parser(commands: Any) -> None:
    """Add ``isolate`` and ``activations`` to the command line."""
    new = commands.add_parser(
        "isolate",
        help=run_isolate.__doc__,
        description=f"{run_isolate.__doc__} Exit code 1: a step is wrong, or nothing was judged.",
    )
    new.add_argument("--gemm", metavar="MODULE:FUNCTION", help="the kernel; FILE.py:FUNCTION works too")
    new.add_argument(
        "--takes",
        choices=tuple(TAKES),
        default="operands",
        help="quantized operands (Int8GemmInput, the default) or float activations (DynamicGemmInput)",
    )
    new.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="holds for all inputs, such as order=w-a, lay=KN or rule=absmax; repeatable",
    )
    new.add_argument(
        "--out",
        action="append",
        choices=("fp16", "bf16", "fp32"),
        help="output dtype of the steps that need no other (default: fp32); repeatable",
    )
    new.add_argument("--device", default="auto", help="auto (default), cpu, cuda or cuda:N")
    new.add_argument("--json", type=Path, metavar="FILE", help="write all steps with all verdicts")
    new.set_defaults(run=run_isolate)
    text = run_activations.__doc__
    seen = commands.add_parser("activations", help=text, description=text)
    seen.add_argument("file", type=Path, metavar="FILE", help=".safetensors, .npy or .pt with x [M, K]")
    seen.add_argument("--tensor", metavar="NAME", help="which tensor of the file")
    seen.add_argument("--rule", choices=("scale", "full", "absmax", "minmax"), default="scale")
    seen.set_defaults(run=run_activations)
