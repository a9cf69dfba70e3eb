"""``python -m conformance reduce``."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conformance.destinations import folder as check_folder
from conformance.destinations import new_file, unwritable
from conformance.errors import UsageError

if TYPE_CHECKING:
    from conformance.case import Case
    from conformance.harness import Harness
    from kernels._packed import PackedWeight

DESCRIPTION = """Narrow a failing case further than Hypothesis did: every dimension to its simplest value
and every tensor to the fewest elements that still fail in the same way (same verdict, same first cause,
judged against the spec model alone). Keeps the reduced weight and the closest that passes as bundles."""
EPILOG = """exit code: 1 when the case fails and was reduced (as everywhere, 1 is a failing verdict); 2 when
it passes, cannot be judged, or the arguments are wrong. 0 is never returned."""


def run_reduce(options: argparse.Namespace) -> int:
    """Narrow a failing case to the fewest dimensions and tensor elements that still fail."""
    import contextlib

    from safetensors import SafetensorError

    from conformance.runtime import choose

    runtime = choose(options.device)
    if not options.seconds > 0:  # NaN is no positive number either
        raise UsageError(f"--seconds: expected a positive number, found {options.seconds:g}")
    if options.json is not None:
        new_file("--json", options.json, force=options.force, inputs=_inputs(options))
    # Upstream libraries greet on standard output when they are imported.
    with contextlib.redirect_stdout(sys.stderr):
        from conformance import setup

        case, weight, kernel, gate = _start(options)
        kernels = [f"{case.format}={kernel}"] if kernel else []
        harness = setup.build(runtime, kernels=kernels, gate=gate)
        folder = _folder(options.out, case.format)
        result = _reduce(harness, case, weight, options.seconds)
        from conformance.reduce.result import text, to_json, write_bundles

        failures = []
        bad, good = folder / "bad", None if result.good is None else folder / "good"
        try:
            bad, good = write_bundles(harness, result, folder)
        except (OSError, SafetensorError) as error:
            failures.append(unwritable("--out", folder, error, "a folder to write to"))
        if options.json is not None:
            record = to_json(result, bad, good)
            try:
                options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
            except OSError as error:
                failures.append(unwritable("--json", options.json, error, "a file that can be written"))
    given = harness.kernels[case.format]
    # What was found is shown whatever became of the files.
    print(text(result, bad, good, "" if given.builtin else f"{case.format}={given.name}"), flush=True)
    if failures:
        raise failures[0]
    return 1


def _inputs(options: argparse.Namespace) -> tuple[Path, ...]:
    """Files of the bundle to start from, if it is one."""
    return tuple(Path(options.start) / name for name in ("case.json", "tensors.safetensors"))


def _start(options: argparse.Namespace) -> tuple[Case, PackedWeight | None, str, str]:
    """Case, tensors (of a bundle), kernel and gate to start from."""
    from conformance import bundle
    from conformance.case import parse_fields
    from conformance.registry import find_format, parse_case

    kernel, path = options.kernel or "", Path(options.start)
    if not os.path.exists(path):  # the id of a case may be too long for a path
        if ":" not in options.start:
            raise UsageError(f"reduce: expected a case id or the folder of a bundle, found {options.start!r}")
        case = parse_case(options.start)
        return case, None, kernel.removeprefix(f"{case.format}="), options.gate or "exact"
    stored = bundle.read(path)
    try:
        fmt = find_format(stored.info["case"]["format"])
        case = parse_fields(fmt.name, fmt.all_dims, stored.info["case"]["fields"])
    except (AttributeError, TypeError) as error:
        raise UsageError(f"bundle: expected the fields of a case, found {error} in {path}") from error
    weight = bundle.rebuild(fmt.weight_type, stored)
    kernel = kernel.removeprefix(f"{fmt.name}=") or stored.info["kernel"]
    return case, weight, kernel, options.gate or stored.info["gate"]


def _folder(out: Path | None, format_name: str) -> Path:
    """A folder for the two bundles that has none yet."""
    if out is not None:
        taken = next((name for name in ("bad", "good") if os.path.lexists(out / name)), None)
        if taken is not None:
            raise UsageError(f"--out: expected a folder without bundles, found {out / taken}")
        check_folder("--out", out)
        return out
    base = Path(".conformance") / "reduced"
    number = 1
    while (base / f"{format_name}-{number}").exists():
        number += 1
    check_folder("--out", base / f"{format_name}-{number}")
    return base / f"{format_name}-{number}"


def _reduce(harness: Harness, case: Case, weight: PackedWeight | None, seconds: float) -> Any:
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from conformance.reduce.result import reduce
    from conformance.reduce.trial import Trial

    trial = Trial(harness, harness.kernels[case.format], time.monotonic() + seconds)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    console = Console(file=sys.stderr)
    with Progress(*columns, console=console, transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(f"reduce {case.format}", total=None)
        trial.progress = lambda runs: bar.update(task, description=f"reduce {case.format}: {runs} runs")
        return reduce(trial, case, weight)


def add_parser(commands: Any) -> None:
    """Add ``reduce`` to the command line."""
    new = commands.add_parser("reduce", help=run_reduce.__doc__, description=DESCRIPTION, epilog=EPILOG)
    new.add_argument("start", metavar="CASE|BUNDLE", help="id of a failing case, or folder of a bundle")
    new.add_argument(
        "--kernel", metavar="MODULE:FUNCTION", help="kernel (default: the bundle's, or the built-in)"
    )
    new.add_argument("--device", default="auto", help="auto (default), cpu, cuda or cuda:N")
    new.add_argument(
        "--gate",
        choices=("coarse", "element", "exact"),
        help="gate it fails (default: the bundle's, or exact)",
    )
    new.add_argument("--seconds", type=float, default=60.0, help="time after which it stops (default: 60)")
    new.add_argument("--json", type=Path, metavar="FILE", help="also write what was found as JSON")
    new.add_argument("--force", action="store_true", help="write a file of --json that is there")
    new.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="folder for the bundles (default: one in .conformance/reduced)",
    )
    new.set_defaults(run=run_reduce)
