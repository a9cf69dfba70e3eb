"""``python -m conformance isolate``: which step of a quantized matrix product is wrong."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conformance.destinations import new_file
from conformance.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from conformance.case import Case
    from conformance.isolation import Found

# Lines of the report of a failing step, however many steps there are.
LEAST = 8
# Fields of the kernel's input that have a shorter name in case ids.
SHORT = {"b_layout": "lay"}
TAKES = {"operands": "gemm_int8", "activations": "gemm_dynamic", "fp8": "gemm_fp8"}


def run_isolate(options: argparse.Namespace) -> int:
    """Show each step of a quantized GEMM alone to a kernel and name the first that is wrong."""
    import contextlib
    import dataclasses

    from conformance.runtime import choose

    if options.json not in (None, "-"):
        source = (options.gemm or "").rpartition(":")[0]
        inputs = [Path(source)] if source.endswith(".py") else []
        new_file("--json", Path(options.json), force=options.force, inputs=inputs)
    runtime = choose(options.device)
    with contextlib.redirect_stdout(sys.stderr):  # upstream libraries greet when they are imported
        from conformance import setup
        from conformance.detect.report import progress
        from conformance.investigate import investigate
        from conformance.isolation import first_wrong, forgot, held, isolate, steps_of
        from conformance.loading import user_kernel
        from conformance.registry import builtin_kernel, find_format

        fmt = find_format(TAKES[options.takes])
        kernel = builtin_kernel(fmt) if options.gemm is None else user_kernel(fmt, options.gemm)
        harness = dataclasses.replace(setup.build(runtime), oracles=frozenset(), writer=None)
        fields = [_as_in_ids(field) for text in options.set for field in text.split(",")]
        known = {dim.name for dim in fmt.dims}
        for field in fields:
            if field.partition("=")[0] not in known:
                raise UsageError(
                    f"--set: expected a field of {fmt.name} ({', '.join(sorted(known))}), found {field!r}"
                )
            if field.partition("=")[0] in held(fmt.name):
                free = ", ".join(sorted(known - held(fmt.name)))
                raise UsageError(
                    f"--set: expected a field that no step is shown by ({free}), found {field!r}; "
                    f"pytest conformance --case judges any input"
                )
        found = []
        with progress(sys.stderr, "isolate") as bar:
            task = bar.add_task("", total=len(steps_of(fmt.name)))
            outs = options.out or ["fp32"]
            for one in isolate(harness, fmt, kernel, fields, outs, options.timeout):
                found.append(one)
                bar.update(task, advance=1)
        wrong = first_wrong(found)
        changed = None
        if wrong is not None:
            # Where both fail, one token hides more: a scale of the first token is that of every one.
            several = (one for one in wrong.failures if one.verdict.case["M"] > 1)
            looked = next(several, wrong.failures[0])
            others = [one for one in wrong.failures if one is not looked]
            if looked.verdict.kind != "CRASH_LAUNCH":
                looked = investigate(harness, looked, kernel)
                changed = forgot(harness, kernel, found)
            index = found.index(wrong)
            found[index] = wrong = dataclasses.replace(wrong, failures=(looked, *others))
    if options.json == "-":
        print(_json(found, wrong, changed))
    else:
        _print(kernel.name, str(runtime.device), found, wrong, options)
        if changed is not None:
            print(f"note       {_changed_words(changed)}")
    if options.json not in (None, "-"):
        _write_json(Path(options.json), found, wrong, changed)
    return 1 if wrong is not None or not any(one.judged for one in found) else 0


def _as_in_ids(field: str) -> str:
    """``lay=KN`` for ``b_layout=KN``."""
    name, equals, value = field.partition("=")
    return SHORT.get(name, name) + equals + value


def _print(
    kernel: str, device: str, found: Sequence[Found], wrong: Found | None, options: argparse.Namespace
) -> None:
    from conformance.report import LINES, report
    from conformance.rerun import checkout, rerun

    name = TAKES[options.takes]
    print(f"{name}  {kernel} on {device}")
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
            given = "" if options.gemm is None else f" --kernel {shlex.quote(f'{name}={options.gemm}')}"
            print(f"no step is wrong on these inputs; pytest conformance -k {name}{given} draws many more")
        else:
            print("VACUOUS: no case was judged, so nothing was shown")
        return
    verdict = wrong.failures[0].verdict
    if _never_answered(found):
        print("no case had an answer, so no step was shown")
    else:
        later = [one.step.name for one in found if one.failures and one is not wrong]
        words = f"; {', '.join(later)} fail too, perhaps because of it" if later else ""
        print(f"first wrong step: {wrong.step.name}{words}")
    kernels = [] if options.gemm is None else [f"{name}={options.gemm}"]
    command = rerun(name, verdict.case.id, {"kernel": kernels, "device": options.device}, root=checkout())
    # The table has a line a step; the report keeps to what is left of 25.
    print(report(verdict, (("rerun", command),), max(LEAST, LINES - 4 - len(found))))


def _never_answered(found: Sequence[Found]) -> bool:
    """Whether the kernel raised, or gave no such tensor, on every case: then none tells a step."""
    failures = [checked for one in found for checked in one.failures]
    answered = any(checked.verdict.votes for checked in failures)
    return not answered and len(failures) == sum(one.judged for one in found)


def _changed_words(changed: Case) -> str:
    return f"{changed.id} was right before and is wrong now: answers depend on earlier calls"


def _json(found: Sequence[Found], wrong: Found | None, changed: Case | None) -> str:
    import json

    record = {
        "first_wrong": None if wrong is None else wrong.step.name,
        "changed": None if changed is None else changed.id,
        "notes": [] if changed is None else [_changed_words(changed)],
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
    return json.dumps(record, indent=1)


def _write_json(path: Path, found: Sequence[Found], wrong: Found | None, changed: Case | None) -> None:
    try:
        path.write_text(_json(found, wrong, changed) + "\n", encoding="utf-8")
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


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError(text)
    return value


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
        help="int8 operands (Int8GemmInput, the default), float activations (DynamicGemmInput) or fp8 "
        "operands (Fp8GemmInput)",
    )
    new.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="holds for all inputs, such as order=w-a, lay=KN (b_layout) or rule=absmax; repeatable",
    )
    new.add_argument(
        "--out",
        action="append",
        choices=("fp16", "bf16", "fp32"),
        help="output dtype of the steps that need no other (default: fp32); repeatable",
    )
    new.add_argument("--device", default="auto", help="auto (default), cpu, cuda or cuda:N")
    new.add_argument("--json", metavar="FILE", help="all steps with all verdicts, to FILE or - for stdout")
    new.add_argument("--force", action="store_true", help="write a file of --json that is there")
    new.add_argument(
        "--timeout",
        type=_seconds,
        default=60.0,
        metavar="SECONDS",
        help="a case that takes longer never ends (default: 60; code on a GPU is not interrupted)",
    )
    new.set_defaults(run=run_isolate)
    text = run_activations.__doc__
    seen = commands.add_parser("activations", help=text, description=text)
    seen.add_argument("file", type=Path, metavar="FILE", help=".safetensors, .npy or .pt with x [M, K]")
    seen.add_argument("--tensor", metavar="NAME", help="which tensor of the file")
    seen.add_argument("--rule", choices=("scale", "full", "absmax", "minmax"), default="scale")
    seen.set_defaults(run=run_activations)
