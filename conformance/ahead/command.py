"""The subcommand ``compile``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from conformance.errors import UsageError

if TYPE_CHECKING:
    from conformance.ahead.result import Compiled

# Not imported from where they are used: that would import Triton before its interpreter is turned off.
TARGETS = ("sm_80", "sm_89", "sm_90", "sm_100", "sm_120", "gfx942")
DEFAULT_TARGETS = ("sm_80", "sm_90")


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add it to the command line's grammar."""
    text = run.__doc__
    one = commands.add_parser("compile", help=text, description=text)
    one.add_argument(
        "--target",
        action="append",
        choices=(*TARGETS, "all"),
        help=f"GPU to compile for (default: {' and '.join(DEFAULT_TARGETS)}); repeatable",
    )
    one.add_argument(
        "--format", action="append", default=[], metavar="NAME", help="only this format; repeatable"
    )
    one.add_argument(
        "--quick",
        action="store_true",
        help="only the first case of each format, in float16, and one launch on more than 2**31 elements",
    )
    one.add_argument("--jobs", type=int, default=1, metavar="N", help="processes (default: 1)")
    one.add_argument("--json", type=Path, metavar="FILE", help="write the results as JSON lines")
    one.add_argument(
        "--before",
        type=Path,
        metavar="FILE",
        help="results of another Triton or commit; what got worse since is a finding",
    )
    one.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Compile the built-in kernels for GPUs that need not be there, and check the machine code"""
    os.environ["TRITON_INTERPRET"] = "0"  # before the kernels are imported
    from conformance.ahead.check import violations
    from conformance.ahead.compare import compare
    from conformance.ahead.result import read, write
    from conformance.ahead.work import compile_all, supported, version
    from conformance.registry import find_format, formats

    if options.jobs < 1:
        raise UsageError(f"--jobs: expected 1 or more, found {options.jobs}")
    names = [find_format(name).name for name in options.format] or list(formats())
    asked = options.target or DEFAULT_TARGETS
    targets, left_out = supported(TARGETS if "all" in asked else asked)
    # Read before the minutes that compiling takes.
    then, source = read(options.before) if options.before else ([], "")
    for reason in left_out:
        print(f"left out: {reason}")
    results = list(compile_all(names, targets, quick=options.quick, jobs=options.jobs))
    if options.json:
        write(options.json, results, version())
    _show(results)
    wrong = [line for one in results for line in violations(one)]
    worse = list(compare(results, then, source))
    for line in wrong:
        print(f"FAIL {line}")
    for line in worse:
        print(f"WORSE {line}")
    refused = sum(bool(one.error) for one in results)
    text = f"{len(results) - refused} variants compiled with Triton {version()}, {refused} failed; "
    text += f"{len(wrong)} expectations do not hold"
    if options.before:
        shared = {one.key for one in results} & {one.key for one in then}
        text += f"; {len(worse)} findings in {len(shared)} variants compared with {source}"
    print(text)
    return 1 if wrong or worse or refused == len(results) else 0


def _show(results: Sequence[Compiled]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 200, highlight=False)
    table = Table(title="compiled ahead of time", title_justify="left")
    for column in ("target", "case", "kernel", "registers", "spills", "shared", "fused", "loads", "stores"):
        table.add_column(column, overflow="fold")
    for one in results:
        if one.error or one.sizes == "large":
            continue
        numbers = (str(n) for n in (one.registers, one.spills, one.shared, one.fused))
        widths = (
            ", ".join(f"{name} {'/'.join(map(str, counts))}" for name, counts in one_way.items())
            for one_way in (one.loads, one.stores)
        )
        table.add_row(one.target, one.case, one.kernel, *numbers, *widths)
    console.print(table)
