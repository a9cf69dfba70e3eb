"""Try launch parameters: ``python -m benchmarks.sweep --format nf4 --dtype fp16 --seconds 60``.

Every configuration of :mod:`benchmarks.space` is checked to the bit and timed; the fastest are timed
again, because the best of many noisy figures is too good. Needs a GPU.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from benchmarks.budget import Budget
from benchmarks.cases import LARGEST, BenchCase, find_dtypes, find_variants, parse_size
from benchmarks.results import add_json, look_at_json, write_json
from benchmarks.swept import Swept, Trial, read, show
from conformance.errors import UsageError

FINALISTS = 5
ROUNDS = 3


def sweep(case: BenchCase, launches: Sequence[Mapping[str, int]], machine: Any, budget: Budget) -> Swept:
    """Try ``launches`` on one case; nothing is raised for a configuration that is wrong or fails."""
    from benchmarks import run
    from benchmarks.subjects import builtin
    from benchmarks.timing import copy_calls, sample

    broken = machine.usable()
    if broken:
        return Swept(case, 0, None, (), False, f"the device stopped: {broken}")
    try:
        prepared = run.prepare(case, machine)
        copies = copy_calls(prepared.n_bytes, len(prepared.outs), machine.device)
        copy = sample(machine.timer, copies).seconds
    except Exception as error:  # a size that the format does not take, or too little memory
        machine.release()
        return Swept(case, 0, None, (), False, run.said(error))
    kernel = builtin(case.format)
    trials: list[Trial] = []
    for launch in launches:
        if budget.over or machine.usable():
            break
        found = run.measure(prepared, kernel, machine, launch)
        fraction = None if found.seconds is None else copy / found.seconds
        trials.append(Trial(dict(launch), found.status, found.seconds, fraction, reason=found.reason))
    right = [index for index, trial in enumerate(trials) if trial.seconds is not None]
    finalists = sorted(right, key=lambda index: trials[index].seconds or 0)[:FINALISTS]
    if right and right[0] == 0 and 0 not in finalists:
        finalists.append(0)  # what the defaults give belongs into the same rounds
    times: dict[int, list[float]] = {index: [] for index in finalists}
    copy_times = [copy]
    # In turns, so that a device that warms up is no one's loss.
    for _ in range(ROUNDS):
        if not right or machine.usable():
            break
        for index in finalists:
            calls = prepared.calls(kernel, trials[index].launch)
            times[index].append(sample(machine.timer, calls).seconds)
        copy_times.append(sample(machine.timer, copies).seconds)
    copy = sorted(copy_times)[len(copy_times) // 2]
    for index, found_times in times.items():
        if found_times:
            seconds = sorted(found_times)[len(found_times) // 2]
            trials[index] = dataclasses.replace(
                trials[index], seconds=seconds, fraction=copy / seconds, again=True
            )
    n_bytes = prepared.n_bytes
    del prepared, copies
    machine.release()
    reason = machine.usable()
    return Swept(case, n_bytes, copy, tuple(trials), len(trials) == len(launches), reason)


def targets(options: argparse.Namespace) -> list[BenchCase]:
    """The cases that are swept: each variant and dtype at one size, its usual group unless given."""
    rows, cols = parse_size(options.size)
    return [
        BenchCase(
            variant.format,
            variant.name,
            dtype,
            rows,
            cols,
            variant.groups[0] if options.group is None or not variant.groups[0] else options.group,
        )
        for dtype in find_dtypes(options.dtype)
        for variant in find_variants(options.format)
    ]


def sweep_all(
    cases: Sequence[BenchCase], machine: Any, budget: Budget, limit: int | None = None
) -> Iterator[Swept]:
    """Sweep each case in an equal share of the time; what one leaves, the next ones have."""
    from benchmarks.space import configurations

    for index, case in enumerate(cases):
        launches = configurations(case)[:limit]
        if budget.over:
            yield Swept(case, 0, None, (), False, f"{budget.seconds:g} s were spent")
        else:
            yield sweep(case, launches, machine, budget.part(len(cases) - index))


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m benchmarks.sweep", description=__doc__)
    top.add_argument(
        "--format", action="append", default=[], metavar="FORMAT[/VARIANT]", help="repeatable; default all"
    )
    top.add_argument(
        "--dtype", action="append", default=[], help="fp16, bf16 or fp32; repeatable; default all"
    )
    top.add_argument(
        "--size", default="x".join(map(str, LARGEST)), help="ROWSxCOLS of the output (default %(default)s)"
    )
    top.add_argument("--group", type=int, help="group or block size instead of the usual one")
    top.add_argument("--seconds", type=float, help="nothing is begun after this time")
    top.add_argument("--jobs", type=int, default=0, help="compile first, in this many processes")
    top.add_argument("--limit", type=int, help="only the first so many configurations, nearest the defaults")
    add_json(top, "write every configuration's time")
    top.add_argument("--show", type=Path, metavar="FILE", help="print the table of such a file; needs no GPU")
    top.add_argument("--device", default="cuda", help="cuda or cuda:N")
    return top


def _main(options: argparse.Namespace, machine: Any, console: Console) -> int:
    if options.show:
        show(*read(options.show), console)
        return 0
    cases = targets(options)
    look_at_json(options)
    if machine is None:
        from benchmarks.machine import cuda_machine

        machine = cuda_machine(options.device)
    from benchmarks.space import configurations
    from benchmarks.warm import compile_all

    budget = Budget(options.seconds)
    if options.jobs:
        jobs = [(case, configurations(case)[: options.limit]) for case in cases]
        # Half of the time at most: what is compiled must also be measured.
        said = compile_all(jobs, options.jobs, min(budget.left / 2, 3600))
        console.print(said or f"compiled ahead in {budget.spent:.0f} s", highlight=False)
    found: list[Swept] = []
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("sweep", total=len(cases))
        for entry in sweep_all(cases, machine, budget, options.limit):
            found.append(entry)
            progress.update(task, advance=1, description=entry.case.id)
            if options.json:
                content = {"schema": 1, "machine": machine.about, "swept": [one.to_dict() for one in found]}
                write_json(options.json, content)
    show(machine.about, found, console)
    trials = [trial for entry in found for trial in entry.trials]
    # Bits that depend on launch parameters are a fault of the kernel.
    return 1 if any(trial.status == "wrong" for trial in trials) or not trials else 0


def main(arguments: Sequence[str] | None = None, machine: Any = None, console: Console | None = None) -> int:
    """The command; ``machine`` and ``console`` stand in for the GPU and the terminal in tests."""
    options = parser().parse_args(arguments)
    wide = functools.partial(Console, width=None if sys.stdout.isatty() else 200)
    try:
        return _main(options, machine, console or wide())
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
