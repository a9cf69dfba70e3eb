"""The subcommand ``matrix``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add it to the command line's grammar."""
    text = run.__doc__
    one = commands.add_parser("matrix", help=text, description=text)
    one.add_argument(
        "results",
        nargs="+",
        type=Path,
        metavar="PATH",
        help="files of results (*.jsonl), or folders with any below them",
    )
    one.add_argument("--out", required=True, type=Path, metavar="DIR", help="folder to write the page to")
    one.add_argument(
        "--before",
        action="append",
        type=Path,
        metavar="PATH",
        help="earlier results to compare with (default: the run before in the same environment); repeatable",
    )
    one.add_argument("--force", action="store_true", help="replace an earlier page in --out")
    one.add_argument(
        "--most",
        type=_count,
        default=20,
        metavar="N",
        help="failing tests shown in full of a cell (default: 20)",
    )
    one.add_argument(
        "--pictures",
        type=_count,
        default=24,
        metavar="N",
        help="heat maps drawn at most, of failures with a bundle beside the results (default: 24)",
    )
    one.set_defaults(run=run)


def _count(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"expected 0 or more, found {text}")
    return number


def run(options: argparse.Namespace) -> int:
    """Write a page of formats by environments out of the results of runs"""
    from conformance.matrix import site
    from conformance.matrix.bundles import draw
    from conformance.matrix.compare import columns, unmatched
    from conformance.matrix.read import read
    from conformance.matrix.view import Page, page
    from conformance.run_record import now

    site.check(options.out, options.force)
    runs, notes = read(options.results, "results")
    before = None
    if options.before is not None:
        before, more = read(options.before, "--before")
        notes += more
    found = columns(runs, before)
    for left in unmatched(before or (), found):
        place = left.environment
        notes.append(
            f"--before: the run of {left.started or left.folder} (Triton {place.triton} on {place.device}) "
            "is compared with nothing: no newer run has that environment and format, or a later one of "
            "--before has"
        )
    made: list[Page] = []

    def build(pictures: Path) -> str:
        made.append(
            page(
                found,
                notes,
                most=options.most,
                draw=lambda bundle, name: draw(bundle, pictures / name),
                pictures=options.pictures,
            )
        )
        return site.render(made[0], now())

    path = site.write(options.out, build, force=options.force)
    for note in made[0].notes:
        print(f"note: {note}", file=sys.stderr)
    print(f"{path}: {made[0].line}")
    return 0
