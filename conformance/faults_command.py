"""``python -m conformance faults``: the catalogue of wrong decoders."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from conformance.errors import UsageError

if TYPE_CHECKING:
    from conformance.faults.catalogue import Entry


def run_faults(options: argparse.Namespace) -> int:
    """Show the catalogue of faults: all of it, one entry, or as a document."""
    import contextlib

    from conformance.runtime import choose

    if options.name is not None and options.markdown:
        raise UsageError(f"markdown: expected no name beside it, found {options.name!r}")
    if options.format and options.markdown:
        raise UsageError(f"markdown: expected no --format beside it, found {options.format[0]!r}")
    choose("cpu")
    # Upstream libraries greet on standard output when they are imported.
    with contextlib.redirect_stdout(sys.stderr):
        from conformance.faults import catalogue
        from conformance.registry import find_format, formats

        chosen = {name: find_format(name) for name in options.format} or formats()
        entries = catalogue.gather(chosen)
    if options.markdown:
        print(catalogue.markdown(entries), end="")
    elif options.name is not None:
        print("\n".join(_one(options.name, entries, ", ".join(options.format))))
    else:
        _table(entries)
    return 0


def _one(name: str, entries: tuple[Entry, ...], of: str) -> list[str]:
    """Lines of one entry. Raises :class:`UsageError` with close names where there is none."""
    import difflib

    from conformance.faults import KINDS, catalogue

    lines = [name]
    for entry in entries:
        if entry.name == name:
            lines[0] += f"  ({KINDS[entry.kind]})"
            for use in entry.uses:
                lines += ["", *_labelled(catalogue.lines_of(use), use.fault.links)]
            return lines
    for outside in catalogue.NOT_DECODERS:
        if outside.name == name:
            return [*lines, "", *_labelled(catalogue.lines_of(outside), outside.links)]
    for equivalent, reason in catalogue.EQUIVALENT:
        if equivalent == name:
            return [*lines, "", *_labelled((("equivalent", reason),), ())]
    close = difflib.get_close_matches(name, catalogue.names(entries), n=5, cutoff=0.5)
    hint = f"; close to it: {', '.join(close)}" if close else ""
    which = f" of {of}" if of else ""
    raise UsageError(f"fault: expected a name of the catalogue{which}, found {name!r}{hint}")


def _labelled(lines: tuple[tuple[str, str], ...], links: tuple[str, ...]) -> list[str]:
    seen = [("seen in" if i == 0 else "", link) for i, link in enumerate(links)]
    return [f"  {label:<10} {text}" for label, text in (*lines, *seen)]


def _table(entries: tuple[Entry, ...]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from conformance.faults import KINDS

    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    for kind, title in KINDS.items():
        table = Table(title=title, title_justify="left")
        for column in ("name", "formats", "arithmetic"):
            table.add_column(column, overflow="fold")
        for entry in entries:
            for use in entry.uses if entry.kind == kind else ():
                # Plain text: what is in brackets is no markup.
                table.add_row(Text(entry.name), ", ".join(use.formats), Text(use.fault.arithmetic))
        if table.row_count:
            console.print(table)
    console.print(f"{len(entries)} faults; python -m conformance faults NAME shows one")


def add_parser(commands: Any) -> None:
    """Add ``faults`` to the command line."""
    show = commands.add_parser("faults", help=run_faults.__doc__, description=run_faults.__doc__)
    show.add_argument("name", nargs="?", metavar="NAME", help="show this entry whole")
    show.add_argument(
        "--format", action="append", default=[], metavar="NAME", help="only this format's; repeatable"
    )
    show.add_argument("--markdown", action="store_true", help="as docs/faults.md has it")
    show.set_defaults(run=run_faults)
