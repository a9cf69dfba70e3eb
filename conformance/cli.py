"""The command line: ``python -m conformance list`` and ``replay``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from conformance.errors import UsageError


def _list(options: argparse.Namespace) -> int:
    """Formats, kernels, oracles with provenance, and what is missing."""
    from rich.console import Console
    from rich.table import Table

    from conformance import known_faults, realmodel
    from conformance.registry import builtin_kernel, formats
    from conformance.runtime import choose, environment

    runtime = choose(options.device)
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    for key, value in environment(runtime).items():
        console.print(f"{key:<11} {value}")
    model = realmodel.packaged_file()
    console.print(f"{'real model':<11} {realmodel.PACKAGE if model else f'missing: {realmodel.PACKAGE} is not installed'}")
    table = Table(title="formats", title_justify="left")
    for column in ("format", "summary", "kernel", "case fields"):
        table.add_column(column, overflow="fold")
    oracles = Table(title="oracles", title_justify="left")
    for column in ("format", "oracle", "provenance", "state"):
        oracles.add_column(column, overflow="fold")
    for name, fmt in formats().items():
        fields = ", ".join(dim.name for dim in fmt.all_dims)
        table.add_row(name, fmt.summary, builtin_kernel(fmt).name, fields)
        oracles.add_row(name, "spec", f"this repository ({fmt.unpack.__module__})", "ok")
        for oracle in fmt.oracles:
            reason = oracle.missing(runtime.device)
            oracles.add_row(name, oracle.name, str(oracle.provenance()), f"missing: {reason}" if reason else "ok")
    console.print(table)
    console.print(oracles)
    faults = Table(title="known faults of oracles", title_justify="left")
    for column in ("id", "oracle", "versions", "where", "pinned case"):
        faults.add_column(column, overflow="fold")
    for entry in known_faults.load(options.known_faults or known_faults.BUILTIN):
        faults.add_row(entry.id, entry.oracle, f"{entry.package} {entry.versions}", entry.where, entry.case)
    console.print(faults)
    return 0


def _replay(options: argparse.Namespace) -> int:
    """Run the kernel of a bundle again on the stored tensors and judge it by the stored answers."""
    from conformance.replay import replay

    return replay(options.path, options.device, options.kernel)


def parser() -> argparse.ArgumentParser:
    """The command line's grammar."""
    top = argparse.ArgumentParser(prog="python -m conformance", description=__doc__)
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    show = commands.add_parser("list", help=_list.__doc__, description=_list.__doc__)
    show.add_argument("--device", default="auto", help="auto (default), cpu, cuda or cuda:N")
    show.add_argument("--known-faults", type=Path, metavar="FILE", help="known-faults file instead of the built-in one")
    show.set_defaults(run=_list)
    again = commands.add_parser("replay", help=_replay.__doc__, description=_replay.__doc__)
    again.add_argument("path", type=Path, metavar="PATH", help="folder of a bundle")
    again.add_argument("--device", default="auto", help="auto (default), cpu, cuda or cuda:N")
    again.add_argument("--kernel", metavar="MODULE:FUNCTION", help="another kernel than the bundle's")
    again.set_defaults(run=_replay)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0 for success, 1 for a failing verdict, 2 for wrong usage."""
    options = parser().parse_args(arguments)
    try:
        return options.run(options)
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
