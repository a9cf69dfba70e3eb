"""The subcommand ``versions``."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add it to the command line's grammar."""
    text = run.__doc__
    one = commands.add_parser("versions", help=text, description=text)
    one.add_argument(
        "results", nargs="+", type=Path, metavar="PATH", help="results of runs (*.jsonl), or folders of them"
    )
    one.add_argument(
        "--compiled",
        nargs="+",
        default=[],
        type=Path,
        metavar="FILE",
        help="files that `compile --json` wrote, one a version",
    )
    one.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print a page of Triton's versions, out of runs in the interpreter and of compile"""
    from conformance.ahead.result import Compiled, read
    from conformance.matrix.read import read as read_runs
    from conformance.run_record import now
    from conformance.triton_versions import page

    runs, _ = read_runs(options.results, "results")
    compiled: dict[str, list[Compiled]] = {}
    for path in options.compiled:
        for one in read(path, "--compiled")[0]:
            compiled.setdefault(one.triton, []).append(one)
    print(page(runs, compiled, now()[:10]), end="")
    return 0
