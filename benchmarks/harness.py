"""``python -m benchmarks.harness``: where the time of ``pytest conformance`` goes, by format.

The cases of ``test_words`` are drawn by Hypothesis and judged three times: to compile, for cases a second,
and with clocks, which wait for the device at the end of each stage that has work there. There a case's time
is split into

========== ====================================================================================
draw       Hypothesis and its strategies
input      the packed weight of a case
kernel     the kernel's own calls, two or three a case, until the device is idle
guards     copies to the device, fences, poison, and the looks at them after each call
oracles    upstream's own functions, until the device is idle
asking     copies of the weight for them to the device, and their answers from it
comparison the exact model, rounding, bits, votes
========== ====================================================================================

The own share is all but kernel and oracles, of the whole. The last share leaves asking out too: whoever
compares with an upstream function takes its weight to the device and its answer back.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.results import add_json, look_at_json, write_json
from conformance.bits import DTYPES
from conformance.case import Case
from conformance.errors import UsageError
from conformance.runtime import choose

STAGES = ("draw", "input", "kernel", "guards", "oracles", "asking", "comparison")


@dataclasses.dataclass(frozen=True)
class Profile:
    """One format: cases judged, elements compared, seconds without clocks, and with them by stage."""

    format: str
    dtype: str
    cases: int
    elements: int
    whole: float
    seconds: dict[str, float]

    @property
    def total(self) -> float:
        return sum(self.seconds.values())

    @property
    def rate(self) -> float:
        """Cases a second of one process, without clocks."""
        return self.cases / self.whole

    @property
    def own(self) -> float:
        """Share of the time that is neither the kernel's nor the oracles'."""
        return 1 - (self.seconds["kernel"] + self.seconds["oracles"]) / self.total

    @property
    def without_asking(self) -> float:
        """Share of the time that is neither theirs nor goes into asking the oracles."""
        return self.own - self.seconds["asking"] / self.total

    def to_dict(self) -> dict[str, Any]:
        return {
            **dataclasses.asdict(self),
            "cases_per_s": self.rate,
            "own_share": self.own,
            "own_share_without_asking": self.without_asking,
        }


class _Clock:
    """Seconds spent inside wrapped functions, the device idle at the ends of those that leave it work.

    At their beginnings it is idle too: what is copied to it is there before anything is called.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.spent = dict.fromkeys(STAGES, 0.0)

    def now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def timed(self, stage: str, function: Callable[..., Any], wait: bool = True) -> Callable[..., Any]:
        """``function`` with its time added to the stage's; without ``wait`` it leaves the device idle."""
        now = self.now if wait else time.perf_counter

        def call(*args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.spent[stage] += now() - started

        return call


@contextlib.contextmanager
def _watched(harness: Any, clock: _Clock) -> Iterator[Any]:
    """The harness with its stages timed."""
    from conformance import asking
    from conformance import harness as module

    def watched(oracle: Any) -> Any:
        if oracle.dequantize is None:
            return oracle
        return dataclasses.replace(oracle, dequantize=clock.timed("oracles", oracle.dequantize))

    formats = {
        name: dataclasses.replace(fmt, oracles=tuple(map(watched, fmt.oracles)))
        for name, fmt in harness.formats.items()
    }
    kernels = {
        name: dataclasses.replace(kernel, function=clock.timed("kernel", kernel.function))
        for name, kernel in harness.kernels.items()
    }
    with (
        # The first has nothing on the device, and the second looks at the memory there at last.
        mock.patch.object(module, "materialize", clock.timed("input", module.materialize, wait=False)),
        mock.patch.object(module, "execute", clock.timed("guards", module.execute, wait=False)),
        # These end when what they copied is there.
        mock.patch.object(module, "own_copy", clock.timed("asking", module.own_copy, wait=False)),
        mock.patch.object(asking, "to_bits", clock.timed("asking", asking.to_bits, wait=False)),
    ):
        yield dataclasses.replace(harness, formats=formats, kernels=kernels)


def profile(harness: Any, name: str, dtype: str, count: int, seed: int) -> Profile:
    """Draw and judge ``count`` cases of a format, compiled before.

    Raises:
        UsageError: a kernel fails a case, or none was judged: such times mean nothing.
    """
    from conformance.strategies import Choices, cases, draw_each
    from conformance.verdict import NEUTRAL

    judged = elements = 0
    fmt = harness.formats[name]
    clock = _Clock(harness.runtime.device)

    def run(judging: Any) -> float:
        nonlocal judged, elements
        judged = elements = 0
        inside = 0.0

        def each(case: Case, choices: Choices) -> None:
            nonlocal judged, elements, inside
            started = time.perf_counter()
            verdict = judging.judge(case).verdict
            inside += time.perf_counter() - started
            if verdict.failed:
                raise UsageError(f"{case.id}: expected a passing verdict to time, found {verdict.label}")
            judged += verdict.kind not in NEUTRAL
            elements += verdict.elements

        started = clock.now()
        draw_each(cases(fmt, out=dtype, route="words"), count, seed, each)
        clock.spent["draw"] = clock.now() - started - inside
        return inside

    run(harness)
    started = clock.now()
    run(harness)
    whole = clock.now() - started
    with _watched(harness, clock) as watched:
        inside = run(watched)
    if not judged:
        raise UsageError(f"{name}: expected cases to judge, found none among {count}")
    spent = clock.spent
    spent["guards"] -= spent["kernel"]
    others = ("input", "kernel", "guards", "oracles", "asking")
    spent["comparison"] = inside - sum(spent[stage] for stage in others)
    return Profile(name, dtype, judged, elements, whole, spent)


def _parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="python -m benchmarks.harness",
        description="Cases a second of pytest conformance by format, and where the time goes.",
    )
    top.add_argument("--format", action="append", default=[], metavar="NAME", help="repeatable; default all")
    top.add_argument("--dtype", default="fp16", choices=tuple(DTYPES), help="output dtype (default fp16)")
    top.add_argument("--cases", type=int, default=200, help="drawn cases a format (default 200)")
    top.add_argument("--seed", type=int, default=0)
    top.add_argument("--device", default="auto", help="auto (default), cpu, cuda or cuda:N")
    add_json(top, "write the figures, after every format")
    top.add_argument("--markdown", action="store_true", help="as docs/harness-speed.md has it")
    return top


def _headings() -> list[str]:
    return ["format", "cases/s", *STAGES, "own share", "without asking"]


def _row(found: Profile) -> list[str]:
    """Cells: milliseconds a case of each stage."""
    stages = [f"{found.seconds[stage] / found.cases * 1e3:.2f}" for stage in STAGES]
    return [found.format, f"{found.rate:.0f}", *stages, f"{found.own:.0%}", f"{found.without_asking:.0%}"]


def _about(runtime: Any, options: argparse.Namespace) -> dict[str, Any]:
    from conformance.runtime import environment

    return {
        **environment(runtime),
        "dtype": options.dtype,
        "cases": options.cases,
        "seed": options.seed,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def _measure(options: argparse.Namespace, console: Console) -> None:
    if options.cases < 1:
        raise UsageError(f"--cases: expected at least 1, found {options.cases}")
    look_at_json(options)
    runtime = choose(options.device)
    from conformance.registry import find_format
    from conformance.setup import build

    for name in options.format:
        find_format(name)
    harness = build(runtime)
    about = _about(runtime, options)
    table = Table(*_headings(), title=f"milliseconds a case, {options.dtype}, {runtime}")
    if options.markdown:
        print("| " + " | ".join(_headings()) + " |\n|" + "---|" * len(_headings()))
    found: list[Profile] = []
    for name in dict.fromkeys(options.format or harness.formats):
        with contextlib.redirect_stdout(sys.stderr):  # upstream libraries greet when they are imported
            found.append(profile(harness, name, options.dtype, options.cases, options.seed))
        if options.json:
            record = {"about": about, "formats": [entry.to_dict() for entry in found]}
            write_json(options.json, record)
        if options.markdown:
            print("| " + " | ".join(_row(found[-1])) + " |", flush=True)
        else:
            Console(stderr=True, highlight=False).print(f"{name}: {found[-1].rate:.0f} cases/s", markup=False)
            table.add_row(*_row(found[-1]))
    if not options.markdown:
        console.print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0, or 2 for a wrong use or a kernel that fails a case."""
    options = _parser().parse_args(arguments)
    try:
        _measure(options, Console(width=None if sys.stdout.isatty() else 140))
    except (UsageError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
