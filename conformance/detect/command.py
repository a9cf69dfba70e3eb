"""The subcommands ``detect`` and ``verify``."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from conformance.errors import UsageError

OUTS = ("fp16", "bf16", "fp32")


def add_parsers(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add both to the command line's grammar."""
    find = commands.add_parser("detect", help=run_detect.__doc__, description=run_detect.__doc__)
    _paths(find)
    find.add_argument(
        "--json",
        metavar="FILE",
        help="a JSON line for each layer and one of summary, to FILE or - for stdout",
    )
    find.set_defaults(run=run_detect)
    check = commands.add_parser("verify", help=run_verify.__doc__, description=run_verify.__doc__)
    _paths(check)
    check.add_argument(
        "--layer", action="append", metavar="PREFIX", help="only this layer; may be given again"
    )
    check.add_argument("--out", choices=OUTS, default="fp16", help="output dtype (default fp16)")
    check.add_argument("--device", default="auto", help="auto (default), cpu, cuda or cuda:N")
    check.add_argument(
        "--kernel",
        action="append",
        default=[],
        metavar="FORMAT=MODULE:FUNCTION",
        help="another kernel than the built-in one",
    )
    check.set_defaults(run=run_verify)


def _paths(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "path", type=Path, metavar="PATH", help="a safetensors file, or a folder with some and config.json"
    )
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="metadata file to hold the tensors against"
    )


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else 200, highlight=False)


def run_detect(options: argparse.Namespace) -> int:
    """Which format each layer of a checkpoint has, and what the metadata gets wrong"""
    from conformance.detect import report as reports
    from conformance.detect.core import detect

    started = time.perf_counter()
    found = detect(options.path, options.config)
    counts: Counter[str] = Counter()
    printer = None if options.json == "-" else reports.Printer(_console())
    with ExitStack() as stack:
        lines = _json_stream(options.json, stack)
        bar = stack.enter_context(reports.progress(sys.stderr, "detect"))
        task = bar.add_task("", total=len(found.quantized))
        for layer in found.quantized:
            bar.update(task, description=layer.prefix)
            report = found.report(layer)
            counts[report.status] += 1
            if printer is not None:
                printer.add(report)
            if lines is not None:
                print(reports.json_line(report.to_json()), file=lines)
            bar.advance(task)
        if lines is not None:
            print(
                reports.json_line(reports.summary(found, counts, time.perf_counter() - started)), file=lines
            )
    if printer is not None:
        printer.finish(found, counts)
    return int(reports.failed(found, counts))


def _row(table: Table, *cells: str) -> None:
    table.add_row(*map(Text, cells))  # not str: brackets would be read as markup


def _json_stream(name: str | None, stack: ExitStack) -> TextIO | None:
    if name is None:
        return None
    if name == "-":
        return sys.stdout
    try:
        return stack.enter_context(Path(name).open("w", encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"--json: expected a file that can be written, found {name!r}: {error.strerror}"
        ) from error


def run_verify(options: argparse.Namespace) -> int:
    """Judge the kernels on each layer of a checkpoint, by every reading that detection leaves"""
    from conformance.runtime import choose

    runtime = choose(options.device)  # before anything imports a kernel
    from conformance import setup
    from conformance.detect.core import detect
    from conformance.detect.report import progress
    from conformance.detect.verify import verify_layer

    found = detect(options.path, options.config)
    layers = [found.find(prefix) for prefix in options.layer] if options.layer else list(found.quantized)
    harness = setup.build(runtime, kernels=options.kernel)
    table = Table(title=f"verify on {runtime}, output {options.out}", title_justify="left", show_lines=True)
    for column in ("layer", "reading", "verdict", "what agrees, or differs"):
        table.add_column(column, overflow="fold")
    judged, failures, lost = 0, bool(found.contradictions), ""
    with progress(sys.stderr, "verify") as bar:
        task = bar.add_task("", total=len(layers))
        for layer in layers:
            bar.update(task, description=layer.prefix)
            for reading, result in verify_layer(harness, found, layer, options.out):
                name = reading.name if reading else "-"
                if isinstance(result, str):
                    damaged = result.startswith("damaged")
                    failures |= damaged
                    _row(table, layer.prefix, name, "DAMAGED" if damaged else "NO_KERNEL", result)
                    continue
                verdict = result.verdict
                judged += verdict.elements > 0
                failures |= verdict.failed
                notes = "".join(f"\n{note}" for note in verdict.notes)
                causes = "".join(f"\ncause: {cause.name}: {cause.text}" for cause in verdict.causes)
                _row(table, layer.prefix, name, verdict.label, verdict.summary + causes + notes)
                lost = result.lost
                if lost:
                    break
            if lost:
                break
            bar.advance(task)
    console = _console()
    console.print(table)
    if lost:
        console.print(f"the CUDA context is lost ({lost}): no layer after {layer.prefix} was judged")
    for text in found.contradictions:
        console.print(f"contradiction: {text}", markup=False, soft_wrap=True)
    if not judged and not failures:
        raise UsageError(
            f"path: expected a layer that a kernel here decodes, found none in {options.path.name}"
        )
    return int(failures)
