"""The command line of ``python -m benchmarks``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.budget import Budget
from benchmarks.cases import BenchCase, find_dtypes, find_variants, select
from benchmarks.results import Results, add_json, look_at_json, read
from conformance.errors import UsageError

if TYPE_CHECKING:
    from benchmarks.machine import Machine

PAGE = Path(__file__).resolve().parent.parent / "docs" / "performance.md"
PARTS = ("kernels", "overhead", "compile")
# Of the time that is left when the kernels and their peers are done, if there is a limit at all.
_COMPILE_SECONDS = 300.0


def parser() -> argparse.ArgumentParser:
    """The command line's grammar."""
    top = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure the kernels against a device copy and other libraries.",
    )
    what = top.add_argument_group("what is measured (default: everything)")
    what.add_argument("--format", action="append", default=[], metavar="FORMAT[/VARIANT]", help="repeatable")
    what.add_argument("--dtype", action="append", default=[], help="fp16, bf16 or fp32; repeatable")
    what.add_argument(
        "--size", action="append", default=[], metavar="N|ROWSxCOLS", help="of the output; repeatable"
    )
    what.add_argument("--quick", action="store_true", help="one size, usual group sizes, fp16")
    what.add_argument(
        "--peers", action=argparse.BooleanOptionalAction, default=True, help="measure other libraries too"
    )
    what.add_argument("--peer", action="append", default=[], metavar="NAME", help="only this one; repeatable")
    what.add_argument(
        "--every-size", action="store_true", help="compare with them at all sizes, not the first"
    )
    what.add_argument(
        "--part", action="append", default=[], metavar="PART", help=f"only {', '.join(PARTS)}; repeatable"
    )
    what.add_argument(
        "--kernel", action="append", default=[], metavar="FORMAT=MODULE:FUNCTION", help="measure this kernel"
    )
    how = top.add_argument_group("how")
    how.add_argument("--device", default="cuda", help="cuda or cuda:N")
    how.add_argument("--seconds", type=float, help="nothing is begun after this time")
    how.add_argument("--jobs", type=int, default=0, help="compile first, in this many processes")
    add_json(how, "write the figures, after every case")
    other = top.add_argument_group("without a GPU")
    other.add_argument("--list", action="store_true", help="show what would be measured")
    other.add_argument("--docs", type=Path, metavar="JSON", help="write the tables of docs/performance.md")
    other.add_argument("--roofline", type=Path, metavar="JSON", help="draw the figures of a run")
    other.add_argument("--show", type=Path, metavar="JSON", help="print the tables of a run")
    other.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="page of --docs (there, with the markers), or picture of --roofline (png, svg, pdf)",
    )
    return top


def _kernels(texts: Sequence[str]) -> dict[str, Callable[..., Any]]:
    from conformance.loading import user_kernel
    from conformance.registry import find_format

    found = {}
    for text in texts:
        name, equals, path = text.partition("=")
        if not equals:
            raise UsageError(f"kernel: expected FORMAT=MODULE:FUNCTION, found {text!r}")
        kernel = user_kernel(find_format(name), path)
        if not kernel.takes_out:
            raise UsageError(
                f"kernel: expected {path!r} to take out, so that memory can be chosen, found none"
            )
        found[name] = kernel.function
    return found


def _measure(options: argparse.Namespace, machine: Machine | None, console: Console) -> int:
    cases = select(options.format, options.dtype, options.size, quick=options.quick)
    for part in options.part:
        if part not in PARTS:
            raise UsageError(f"part: expected one of {', '.join(PARTS)}, found {part!r}")
    parts = options.part or PARTS[:2]
    look_at_json(options)
    if machine is None:
        from benchmarks.machine import cuda_machine

        machine = cuda_machine(options.device)
    from benchmarks import overhead, peers, report, warm

    kernels = _kernels(options.kernel)
    others = peers.find_peers(options.peer) if options.peers or options.peer else ()
    budget = Budget(options.seconds)
    results = Results(machine.about)
    variants, dtypes = find_variants(options.format), find_dtypes(options.dtype or ["fp16"])
    if options.jobs and "kernels" in parts:
        jobs = _once([case for case in cases if case.format not in kernels])
        said = warm.compile_all(((case, [{}]) for case in jobs), options.jobs, min(budget.left / 2, 3600.0))
        console.print(said or f"compiled ahead in {budget.spent:.0f} s", highlight=False)

    def keep() -> None:
        if options.json:
            results.write(options.json)

    keep()
    if "overhead" in parts:
        for entry in overhead.overheads(variants, machine, budget):
            results.overheads.append(entry)
        keep()
    if "kernels" in parts:
        _cases(cases, kernels, machine, budget, others, options.every_size, results, keep, console)
    if "compile" in parts and not budget.over:
        seconds = min(budget.left, _COMPILE_SECONDS)
        results.compile_times += overhead.compile_times(variants, dtypes, seconds)
        keep()
    report.show(results, console)
    if "kernels" in parts:
        return 0 if report.passed(results) else 1
    return 0 if results.overheads or results.compile_times else 1


def _once(cases: Sequence[BenchCase]) -> list[BenchCase]:
    """Of cases that compile alike, which those that differ in size alone mostly do, the first."""
    first: dict[tuple[str, str, str, int], BenchCase] = {}
    for case in cases:
        first.setdefault((case.format, case.variant, case.dtype, case.group), case)
    return list(first.values())


def _cases(
    cases: Sequence[BenchCase],
    kernels: dict[str, Callable[..., Any]],
    machine: Machine,
    budget: Budget,
    others: Sequence[Any],
    every_size: bool,
    results: Results,
    keep: Callable[[], None],
    console: Console,
) -> None:
    from benchmarks.run import run, steps

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=steps(cases, others, every_size=every_size))
        for found in run(cases, kernels, machine, budget, others, every_size=every_size):
            results.measurements += found
            keep()
            progress.update(task, advance=1, description=found[0].case.id if found else "")


def _list(options: argparse.Namespace, console: Console) -> int:
    cases = select(options.format, options.dtype, options.size, quick=options.quick)
    for case in cases:
        console.print(case.id, highlight=False)
    console.print(f"{len(cases)} cases", highlight=False)
    return 0


def _dispatch(options: argparse.Namespace, machine: Machine | None, console: Console) -> int:
    if options.seconds is not None and options.seconds <= 0:
        raise UsageError(f"seconds: expected more than 0, found {options.seconds:g}")
    if options.list:
        return _list(options, console)
    if options.show:
        from benchmarks.report import show

        show(read(options.show), console)
    elif options.docs:
        from benchmarks.docs import write

        write(read(options.docs), options.output or PAGE)
    elif options.roofline:
        from benchmarks.roofline import draw

        draw(read(options.roofline), options.output or options.roofline.with_suffix(".svg"))
    else:
        return _measure(options, machine, console)
    return 0


def main(
    arguments: Sequence[str] | None = None, machine: Machine | None = None, console: Console | None = None
) -> int:
    """Exit status: 0, 1 if a kernel was wrong or failed or nothing was measured, 2 for a wrong use.

    ``machine`` and ``console`` stand in for the GPU and the terminal in tests.
    """
    options = parser().parse_args(arguments)
    if console is None:
        console = Console(width=None if sys.stdout.isatty() else 200)
    try:
        return _dispatch(options, machine, console)
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
