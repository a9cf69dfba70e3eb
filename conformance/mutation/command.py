"""The subcommand ``mutants``."""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import os
import random
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from conformance.errors import UsageError

if TYPE_CHECKING:
    from conformance.mutation.score import Job, Outcome
    from conformance.mutation.summary import Summary
    from conformance.registry import Format
    from conformance.runtime import Runtime

# Drawn cases a test, of the default profile.
EXAMPLES = 60


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand to the command line's grammar."""
    text = run_mutants.__doc__
    parser = commands.add_parser("mutants", help=text, description=text)
    parser.add_argument(
        "--format", action="append", default=[], metavar="NAME", help="only this format; repeatable"
    )
    parser.add_argument(
        "--kind",
        action="append",
        choices=("catalogue", "source"),
        help="only faults of the catalogue, or only changes of the Triton sources",
    )
    parser.add_argument(
        "--max-examples",
        type=int,
        default=EXAMPLES,
        metavar="N",
        help="drawn cases a test (default 60)",
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="NAME",
        help="only mutants of this name (* is any text)",
    )
    parser.add_argument("--sample", type=int, metavar="K", help="a random K mutants of each kind")
    parser.add_argument(
        "--seed", type=int, default=0, metavar="S", help="of the sample and the cases (default 0)"
    )
    parser.add_argument("--jobs", type=int, metavar="N", help="processes at a time (default: one a CPU)")
    parser.add_argument("--listed", action="store_true", help="also run mutants that need not be caught")
    parser.add_argument("--json", type=Path, metavar="FILE", help="a JSON line for each mutant")
    parser.add_argument(
        "--resume",
        action="append",
        type=Path,
        default=[],
        metavar="FILE",
        help="take what an earlier --json has of the same commit, and run the rest; repeatable",
    )
    parser.add_argument("--markdown", action="store_true", help="as docs/mutation.md has it")
    parser.add_argument("--device", default="auto", help="auto (default), cpu, cuda or cuda:N")
    parser.set_defaults(run=run_mutants)


def _positive(name: str, value: int | None) -> None:
    if value is not None and value < 1:
        raise UsageError(f"{name}: expected at least 1, found {value}")


def _opened(path: Path) -> TextIO:
    try:
        return path.open("w", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--json: expected a file that can be written, found {error}") from error


def run_mutants(options: argparse.Namespace) -> int:
    """Plant faults in the kernels, and show which of them the suite catches and names."""
    for name in ("max_examples", "sample", "jobs"):
        _positive("--" + name.replace("_", "-"), getattr(options, name))
    from rich.console import Console

    from conformance.runtime import choose

    runtime = choose(options.device)  # before anything that imports a kernel
    from conformance.mutation import listed, resume, table
    from conformance.mutation.isolate import run_all
    from conformance.mutation.score import Plan
    from conformance.registry import find_format, formats

    known = formats()
    chosen = {name: find_format(name) for name in options.format} or known
    kinds = options.kind or ("catalogue", "source")
    excuses = listed.load(known, chosen=chosen if options.format else None, kinds=kinds)
    jobs = list(_selected(options, chosen, known))
    reasons = {job.name: excuses.reason(job) for job in jobs}
    wanted = [job for job in jobs if options.listed or reasons[job.name] is None]
    # One that survived without a reason is run again: a case may have been added for it since.
    earlier = {
        name: outcome
        for name, outcome in resume.read(options.resume).items()
        if outcome.caught or outcome.kind == "control" or reasons.get(name)
    }
    run = [job for job in wanted if job.name not in earlier]
    plan = Plan(options.device, options.seed, options.max_examples)
    parallel = options.jobs or os.cpu_count() or 1
    outcomes: list[Outcome] = []
    progress = Console(stderr=True, highlight=False)
    with contextlib.ExitStack() as stack:
        lines = stack.enter_context(_opened(options.json)) if options.json else None
        for outcome in (earlier[job.name] for job in wanted if job.name in earlier):
            outcomes.append(outcome)
            if lines is not None:
                print(outcome.to_json(), file=lines, flush=True)
        for outcome in run_all(run, plan, interpreter=runtime.interpreter, parallel=parallel):
            outcomes.append(outcome)
            if lines is not None:
                print(outcome.to_json(), file=lines, flush=True)  # a long run may be stopped
            if not (outcome.caught or outcome.error or outcome.kind == "control" or reasons[outcome.name]):
                progress.print(f"survived: {outcome.name}  {outcome.change}", markup=False, soft_wrap=True)
            if progress.is_terminal and len(outcomes) % 10 == 0:
                progress.print(f"{len(outcomes)} of {len(wanted)}", markup=False)
    ran = _ran(options, chosen, runtime, len(jobs) - len(wanted), len(wanted) - len(run))
    summary = _summary(jobs, outcomes, reasons, ran)
    if options.markdown:
        print(table.markdown(summary), end="")
    else:
        console = Console(width=None if sys.stdout.isatty() else 200, highlight=False)
        for each in table.tables(summary):
            console.print(each)
        for line in summary.lines():
            console.print(line, markup=False, soft_wrap=True)
    return 0 if summary.passed else 1


def _ran(
    options: argparse.Namespace, chosen: Iterable[str], runtime: Runtime, left_out: int, earlier: int
) -> str:
    """What was run, in words."""
    where = "the interpreter" if runtime.interpreter else str(runtime)
    sampled = f", a sample of {options.sample} of each kind" if options.sample else ""
    taken = f"; {earlier} outcomes of earlier runs" if earlier else ""
    return (
        f"{', '.join(chosen)} on {where}, {options.max_examples} drawn cases a test, seed {options.seed}"
        f"{sampled}; {left_out} listed mutants not run{taken}"
    )


def _summary(
    jobs: Sequence[Job],
    outcomes: list[Outcome],
    reasons: Mapping[str, tuple[str, str] | None],
    ran: str,
) -> Summary:
    """Outcomes put in the order of the jobs, and apart by what is expected of them."""
    from conformance.mutation.listed import CHANCE
    from conformance.mutation.summary import Summary

    order = {job.name: position for position, job in enumerate(jobs)}
    outcomes.sort(key=lambda outcome: order[outcome.name])
    caught = {outcome.name for outcome in outcomes if outcome.caught}
    excused, surely = [], set()
    for job in jobs:
        reason = reasons[job.name]
        if reason is not None and reason[0] != CHANCE:
            surely.add(job.name)
        if reason is not None and job.name not in caught:
            excused.append((job.name, job.mutant.change if job.mutant else "", *reason))
    return Summary(
        outcomes=[o for o in outcomes if o.kind != "control" and reasons[o.name] is None],
        controls=[o for o in outcomes if o.kind == "control"],
        excused=excused,
        wrongly_excused=[o for o in outcomes if o.caught and o.name in surely],
        ran=ran,
    )


def _selected(
    options: argparse.Namespace, chosen: Mapping[str, Format], known: Mapping[str, Format]
) -> Iterator[Job]:
    """Jobs in order: controls, then the catalogue, then the sources."""
    from conformance.mutation.jobs import catalogue, controls, sources

    kinds = options.kind or ("catalogue", "source")
    found = 0
    if not options.only:
        yield from controls(chosen, kinds)
    for kind, jobs in (("catalogue", catalogue(chosen)), ("source", sources(chosen, known))):
        if kind not in kinds:
            continue
        if options.only:
            jobs = [job for job in jobs if any(fnmatch.fnmatchcase(job.name, name) for name in options.only)]
        if options.sample is not None and options.sample < len(jobs):
            drawn = set(random.Random(options.seed).sample(range(len(jobs)), options.sample))
            jobs = [job for position, job in enumerate(jobs) if position in drawn]
        found += len(jobs)
        yield from jobs
    if not found:
        raise UsageError(f"--only: expected the name of a mutant, found {', '.join(options.only)!r}")
