"""Build a run's harness from option values; its header and its summary."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from conformance import interpreter, known_faults, realmodel
from conformance.errors import UsageError
from conformance.fused import BRIEF, MANY, SAMPLED, SIGN_OF_ZERO, Probe, about
from conformance.fused_activations import FEW, TOKENS
from conformance.gemm_bound import FLOAT32, Accumulation
from conformance.harness import Harness
from conformance.loading import user_kernel
from conformance.profiles import FUSED_PART, PROFILES, REAL_EVERY
from conformance.registry import FUSED, Format, Kernel, builtin_kernel, formats, parse_case
from conformance.results import ResultWriter, Summary
from conformance.runtime import Runtime, environment
from conformance.verdict import KINDS


def parse_kernels(
    known: dict[str, Format], given: Sequence[str], fused: Sequence[str] = ()
) -> dict[str, Kernel]:
    """Kernel of each format; ``given`` and ``fused`` are FORMAT=MODULE:FUNCTION texts.

    Raises:
        UsageError: not of that form, unknown format, a format given twice, or not importable.
    """
    kernels = {name: builtin_kernel(fmt) for name, fmt in known.items()}
    seen: set[str] = set()
    options = [("--kernel", text) for text in given] + [("--fused", text) for text in fused]
    for option, text in options:
        name, equals, path = text.partition("=")
        if not equals or not path:
            raise UsageError(f"{option}: expected FORMAT=MODULE:FUNCTION, found {text!r}")
        if name not in known:
            raise UsageError(f"{option}: expected a format among {', '.join(known)}, found {name!r}")
        if name in seen:
            raise UsageError(f"{option}: expected one kernel for {name}, found a second, {path!r}")
        seen.add(name)
        if option == "--fused":
            path = FUSED + path.removeprefix(FUSED)
        kernels[name] = user_kernel(known[name], path)
    return kernels


def _check_oracles(known: Iterable[Format], names: Sequence[str], runtime: Runtime) -> frozenset[str] | None:
    if not names:
        return None
    every = {oracle.name: oracle for fmt in known for oracle in fmt.oracles}
    for name in names:
        if name not in every:
            raise UsageError(f"--oracle: expected one of {', '.join(sorted(every))}, found {name!r}")
        reason = every[name].missing(runtime.device)
        if reason is not None:
            raise UsageError(f"--oracle: expected {name} to be usable, found: {reason}")
    return frozenset(names)


def build(
    runtime: Runtime,
    *,
    kernels: Sequence[str] = (),
    fused: Sequence[str] = (),
    accumulation: Accumulation | None = None,
    oracles: Sequence[str] = (),
    gate: str = "exact",
    known_faults: Path | None = None,
    model: Path | None = None,
    recorded: Path | None = None,
    profile: str = "default",
    results: Path | None = None,
    worker: str = "",
    run: Mapping[str, Any] | None = None,
) -> Harness:
    """The harness of a run. Imports kernels and probes the interpreter.

    ``run`` is the first line of the results (:func:`conformance.run_record.begin`), but for the
    environment: each process has its own, on a machine with several GPUs.

    Raises:
        UsageError: an option value that cannot be used; names option, expected and found.
    """
    try:
        report = interpreter.probe() if runtime.interpreter else None
    except RuntimeError as error:
        raise UsageError(str(error)) from error
    known = formats()
    if recorded is not None and not recorded.is_dir():
        raise UsageError(f"--recorded: expected a folder of recorded vectors, found nothing at {recorded}")
    if model is not None:
        realmodel.linear_layers(model)
    chosen = parse_kernels(known, kernels, fused)
    if runtime.interpreter:
        for kernel in chosen.values():
            if isinstance(kernel.function, Probe):
                kernel.function.brief = True
    return Harness(
        runtime=runtime,
        formats=known,
        kernels=chosen,
        known_faults=_load_faults(known_faults, known),
        oracles=_check_oracles(known.values(), oracles, runtime),
        gate=gate,
        interpreter=report,
        model=model or realmodel.packaged_file(),
        recorded=recorded,
        real_every=REAL_EVERY.get(profile, 1),
        fused_cases=max(1, PROFILES[profile] // FUSED_PART) if runtime.interpreter else None,
        accumulation=accumulation or FLOAT32,
        writer=_writer(runtime, report, results, worker, run),
    )


def _writer(
    runtime: Runtime,
    report: interpreter.Report | None,
    results: Path | None,
    worker: str,
    run: Mapping[str, Any] | None,
) -> ResultWriter | None:
    if results is None:
        return None
    line = None if run is None else {**run, "environment": environment(runtime)}
    if line is not None and report is not None:
        line["interpreter_report"] = dataclasses.asdict(report)
    return ResultWriter(results, worker, line)


def _load_faults(path: Path | None, known: dict[str, Format]) -> tuple[known_faults.KnownFault, ...]:
    """Entries of a known-faults file, each checked against the formats and its own pinned case."""
    entries = known_faults.load(path or known_faults.BUILTIN)
    for entry in entries:
        where = f"known-faults: {entry.id}"
        for name in entry.formats:
            if name not in known:
                raise UsageError(f"{where}: expected a format among {', '.join(known)}, found {name!r}")
        case = parse_case(entry.case)
        if case.format not in entry.formats:
            raise UsageError(f"{where}: expected a case of {', '.join(entry.formats)}, found {entry.case!r}")
        fmt = known[case.format]
        oracles = [oracle.name for oracle in fmt.oracles]
        if entry.oracle not in oracles:
            raise UsageError(
                f"{where}: expected an oracle among {', '.join(oracles)}, found {entry.oracle!r}"
            )
        # Of the same dimensions on the words route, which needs no packer.
        weight = fmt.words(case.replace(route="words"))
        facts = fmt.facts(weight) if fmt.facts else None
        try:
            entry.covers(case, weight.output_shape, torch.device("cpu"), facts)
        except Exception as error:  # an expression somebody wrote may raise anything
            raise UsageError(f"{where}: expected a condition on its case, found {error}") from error
    return entries


def header(harness: Harness, profile: str, max_examples: int | None, results: Path) -> list[str]:
    """Lines at the top of a run: what is judged, where, by whom, and what is missing."""
    env = environment(harness.runtime)
    lines = [
        f"conformance device: {env['device']}; "
        + ", ".join(f"{name} {env[name]}" for name in ("torch", "triton", "numpy")),
        f"conformance profile: {profile}, {max_examples or PROFILES[profile]} cases a test; "
        f"gate: {harness.gate}" + ("" if harness.gate == "exact" else " (LOOSER than exact, as asked for)"),
    ]
    if harness.interpreter is not None:
        for what in harness.interpreter.corrected:
            lines.append(f"conformance interpreter: corrected {what}")
        for name, reason in harness.interpreter.unjudged:
            lines.append(f"conformance interpreter: {name} is UNJUDGED: {reason}")
        for caveat in harness.interpreter.caveats:
            lines.append(f"conformance interpreter: {caveat}")
    for name, kernel in harness.kernels.items():
        if kernel.name.startswith(FUSED):
            lines += _fused_lines(harness, name, kernel.name.removeprefix(FUSED), max_examples)
        elif not kernel.builtin:
            lines.append(f"conformance kernel: {name} = {kernel.name}")
    lines.append(f"conformance results: {results}")
    return lines


def _fused_lines(harness: Harness, name: str, path: str, max_examples: int | None) -> list[str]:
    brief = harness.runtime.interpreter
    tokens = ", ".join(map(str, TOKENS))
    some = f" (1, 33 and {FEW} others in turn)" if brief else ""
    lines = [
        f"conformance fused: {name} = {path}, {about(harness.formats[name])}; one-hot x with M = 1 "
        f"({BRIEF if brief else SAMPLED} rows of a weight, more once one is wrong) and M = {MANY} (all rows)",
        f"conformance fused: random x with M = {tokens} and one more for each case{some}, "
        f"within the bound of {harness.accumulation}",
        f"conformance fused: {SIGN_OF_ZERO}",
    ]
    if max_examples is None and harness.fused_cases is not None:
        lines.insert(
            1, f"conformance fused: {harness.fused_cases} cases a test, as calls are slow in the interpreter"
        )
    return lines


def summary_lines(summary: Summary, results: Path, seed: int, skipped: Counter[str]) -> list[str]:
    """The end of a run: verdicts by format, what was not judged and why, speed. ``skipped``: tests
    that were skipped, by reason."""
    lines = []
    width = max((len(name) for name in summary.verdicts), default=0)
    for name, counts in sorted(summary.verdicts.items()):
        text = ", ".join(f"{counts[kind]} {kind}" for kind in KINDS if counts[kind])
        lines.append(f"{name:<{width}}  {text}")
    for title, counter in (
        ("failing tests", summary.failures),
        ("tests skipped", skipped),
        ("not judged or excused", summary.neutral),
        ("oracles without an answer", summary.notes),
    ):
        if counter:
            lines.append(f"{title}:")
            for text, count in counter.most_common(12):
                lines.append(f"  {count} x {text}")
            if len(counter) > 12:
                lines.append(f"  and {len(counter) - 12} more kinds, see the results")
    lines.append(
        f"{summary.cases} cases, {summary.elements} elements compared, "
        f"{summary.rate:.0f} cases/s a process once warm; seed {seed}; results in {results}"
    )
    if summary.elements == 0:
        lines.append("VACUOUS: no element was compared, so nothing was shown")
    return lines


def passed_over(harness: Harness, summary: Summary, keyword: str) -> list[str]:
    """Lines for what was asked for and met no case: given kernels, and a ``-k`` that no test has."""
    lines = [
        f"NOT CALLED: {name} = {kernel.name}, given on the command line: no case of {name} was judged"
        for name, kernel in harness.kernels.items()
        if not kernel.builtin and kernel.name not in summary.kernels
    ]
    if keyword and not summary.cases:
        lines.append(f"-k {keyword!r} selects no case; formats: {', '.join(harness.formats)}")
    return lines
