"""``python -m conformance crashes``: the cases that took a whole run with them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from conformance import journal
from conformance.errors import UsageError
from conformance.results import read_results

RUNS = Path(".conformance") / "runs"


def add_parser(commands: Any) -> None:
    text = _crashes.__doc__
    parser = commands.add_parser("crashes", help=text, description=text)
    parser.add_argument(
        "path", type=Path, nargs="?", metavar="RUN", help="folder of its results (default: the last run's)"
    )
    parser.set_defaults(run=_crashes)


def last_run(but: Path | None = None) -> Path | None:
    """Folder of the latest run with the default ``--results``, ``but`` for one."""
    runs = [path for path in RUNS.glob("*") if path.is_dir() and (but is None or path.name != but.name)]
    return max(runs, key=lambda path: path.stat().st_mtime, default=None)


def _crashes(options: argparse.Namespace) -> int:
    """Say at which case a run's process died, and write its bundle."""
    folder = options.path or last_run()
    if folder is None or not folder.is_dir():
        raise UsageError(f"crashes: expected a folder of a run, found nothing at {folder or RUNS}")
    left = journal.left_over(folder)
    if not left:
        # With workers the controller has written up what they died at, and removed their journals.
        reported = [record["case"] for record in read_results(folder) if record["verdict"] == "CRASH_WORKER"]
        for case in dict.fromkeys(reported):
            print(f"CRASH_WORKER  {case}: reported when it happened; its bundle is in {folder / 'bundles'}")
        if not reported:
            print(f"no process of {folder} died at a case")
        return 1 if reported else 0
    from conformance.runtime import choose

    runtime = choose("cpu")
    # Kernels are set up for the device at import, so not before it is chosen.
    from conformance.post_mortem import post_mortem, write_up
    from conformance.setup import build

    harness = build(runtime)
    found = 0
    for path in left:
        line = journal.read(path) or {}
        checked = post_mortem(harness, line)
        if checked is None:
            print(f"process {line.get('pid')} died at no case; its last test: {line.get('test') or 'none'}")
        else:
            found += 1
            _, text = write_up(harness, folder, checked, line)
            print(f"test       {line.get('test')}\n{text}")
        path.unlink()  # what it says is in the bundle now
    return 1 if found else 0
