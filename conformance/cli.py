"""The command line: ``python -m conformance list`` and ``replay``."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from conformance.ahead.command import add_parser as add_compile
from conformance.crashes_command import add_parser as add_crashes
from conformance.detect.command import add_parsers
from conformance.diagnose_command import add_parser as add_diagnose
from conformance.errors import UsageError, printable
from conformance.faults_command import add_parser as add_faults
from conformance.isolate_command import add_parser as add_isolate
from conformance.matrix.command import add_parser as add_matrix
from conformance.mutation.command import add_parser as add_mutants
from conformance.recording import add_parsers as add_record
from conformance.reduce.command import add_parser as add_reduce
from conformance.versions_command import add_parser as add_versions


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
    state = realmodel.PACKAGE if model else f"missing: {realmodel.PACKAGE} is not installed"
    console.print(f"{'real model':<11} {state}")
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
            # Upstream libraries greet on standard output when they are imported.
            with contextlib.redirect_stdout(sys.stderr):
                reason, source = oracle.missing(runtime.device), str(oracle.provenance())
            state = "ok" if oracle.dequantize else "ok, packs only"
            oracles.add_row(name, oracle.name, source, f"missing: {reason}" if reason else state)
    console.print(table)
    console.print(oracles)
    console.print(_fused_table(runtime.device))
    faults = Table(title="known faults of oracles", title_justify="left")
    for column in ("id", "oracle", "versions", "where", "pinned case"):
        faults.add_column(column, overflow="fold")
    for entry in known_faults.load(options.known_faults or known_faults.BUILTIN):
        faults.add_row(entry.id, entry.oracle, f"{entry.package} {entry.versions}", entry.where, entry.case)
    console.print(faults)
    return 0


def _fused_table(device: Any) -> Any:
    from rich.table import Table

    from oracles.fused import adapters

    table = Table(title="fused products of upstream, for --fused", title_justify="left")
    for column in ("format", "path", "provenance", "state", "options"):
        table.add_column(column, overflow="fold")
    for adapter in adapters():
        with contextlib.redirect_stdout(sys.stderr):
            reason, source = adapter.missing(device), str(adapter.provenance())
        state = f"missing: {reason}" if reason else "ok"
        table.add_row(", ".join(adapter.formats), adapter.path, source, state, adapter.accumulate)
    return table


def _replay(options: argparse.Namespace) -> int:
    """Run the kernel of a bundle again on the stored tensors and judge it by the stored answers."""
    from conformance.replay import replay

    return replay(options.path, options.device, options.kernel)


def _disagreements(options: argparse.Namespace) -> int:
    """Run the upstream libraries where they read the same words differently, and show it."""
    from conformance.runtime import choose

    choose("cpu")
    # Upstream libraries greet on standard output when they are imported.
    with contextlib.redirect_stdout(sys.stderr):
        from conformance import disagreements

        if options.markdown and options.case is None:
            text = disagreements.markdown()
        elif options.case is None:
            tables = [
                (e.title, e.reason, *disagreements.compare(e.sides, e.element)) for e in disagreements.ENTRIES
            ]
        else:
            from conformance.registry import parse_case

            names = options.side or list(disagreements.sides(parse_case(options.case)))
            tables = [("", "", *disagreements.compare([(options.case, name) for name in names]))]
    if options.markdown and options.case is None:
        print(text, end="")
        return 0
    for title, reason, place, rows in tables:
        print(f"{title}\n{reason}" if title else options.case)
        for row in rows:
            where = f"  {row.case}" if title else ""
            count = "" if row.differ is None else f"  ({row.differ} elements unlike the first)"
            print(f"  {row.side:<20} {place} {row.value}{count}{where}")
        print()
    return 0


def parser() -> argparse.ArgumentParser:
    """The command line's grammar."""
    top = argparse.ArgumentParser(prog="python -m conformance", description=__doc__)
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    show = commands.add_parser("list", help=_list.__doc__, description=_list.__doc__)
    show.add_argument("--device", default="auto", help="auto (default), cpu, cuda or cuda:N")
    show.add_argument(
        "--known-faults", type=Path, metavar="FILE", help="known-faults file instead of the built-in one"
    )
    show.set_defaults(run=_list)
    again = commands.add_parser("replay", help=_replay.__doc__, description=_replay.__doc__)
    again.add_argument("path", type=Path, metavar="PATH", help="folder of a bundle")
    again.add_argument("--device", default="auto", help="auto (default), cpu, cuda or cuda:N")
    again.add_argument("--kernel", metavar="MODULE:FUNCTION", help="another kernel than the bundle's")
    again.set_defaults(run=_replay)
    text = _disagreements.__doc__
    differ = commands.add_parser("disagreements", help=text, description=text)
    differ.add_argument("--markdown", action="store_true", help="as docs/disagreements.md has it")
    differ.add_argument("--case", metavar="ID", help="compare the decodes of this case instead")
    differ.add_argument("--side", action="append", metavar="NAME", help="only this decode of it; repeatable")
    differ.set_defaults(run=_disagreements)
    add_compile(commands)
    add_parsers(commands)
    add_diagnose(commands)
    add_record(commands)
    add_mutants(commands)
    add_matrix(commands)
    add_versions(commands)
    add_crashes(commands)
    add_faults(commands)
    add_reduce(commands)
    add_isolate(commands)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0 for success, 1 for a failing verdict, 2 for wrong usage."""
    options = parser().parse_args(arguments)
    try:
        return options.run(options)
    except UsageError as error:
        print(f"error: {printable(str(error))}", file=sys.stderr)
        return 2
