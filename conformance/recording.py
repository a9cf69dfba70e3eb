"""``python -m conformance record``: ask the upstream libraries once, and keep what they answer."""

from __future__ import annotations

import argparse
import datetime
import errno
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conformance.errors import UsageError

if TYPE_CHECKING:
    from conformance.case import Case
    from conformance.harness import Harness
    from conformance.registry import Format
    from conformance.vectors import Vector, Vectors

# --- what upstream answers -------------------------------------------------------------------


def record(
    harness: Harness,
    fmt: Format,
    date: datetime.date,
    step: Callable[[int, int], None] = lambda done, of: None,
) -> Vectors:
    """Ask the oracles of a format about its curated cases. ``harness`` holds all oracles and no
    interpreter's report.

    Raises:
        UsageError: an oracle disagrees with the spec and no known fault covers it; or none answers.
    """
    from conformance.vector_cases import curated
    from conformance.vectors import Vectors

    cases = curated(fmt)
    vectors = []
    for done, (case, flag) in enumerate(cases):
        step(done, len(cases))
        vector = _ask(harness, fmt, case, flag)
        if vector is not None:
            vectors.append(vector)
    named = {oracle for vector in vectors for found in vector.answers.values() for oracle in found}
    if not named:
        raise UsageError(f"record: expected an installed oracle that answers for {fmt.name}, found none")
    oracles = {}
    for oracle in fmt.oracles:
        if oracle.name in named:
            source = oracle.provenance()
            oracles[oracle.name] = {
                "package": source.package,
                "version": source.version or "",
                "callable": source.callable,
                "kind": source.kind,
                "device": device_words(harness),
                "date": date.isoformat(),
            }
    return Vectors(fmt.name, oracles, tuple(vectors))


def device_words(harness: Harness) -> str:
    """The device in words that name no machine, with what decides which CPU code upstream runs."""
    import torch

    device = harness.runtime.device
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type} {torch.backends.cpu.get_cpu_capability()}, Triton interpreted"


def _ask(harness: Harness, fmt: Format, case: Case, flag: str) -> Vector | None:
    """The vector of a case, or None when no oracle answers."""
    from conformance.bits import DTYPES, from_bits
    from conformance.bundle import weight_digest
    from conformance.judge import exact
    from conformance.registry import Kernel
    from conformance.vector_flags import FLAGS, flags_of
    from conformance.vectors import Vector

    def spec(weight: Any, *, dtype: Any) -> Any:
        return from_bits(exact(fmt, weight, dtype).bits, dtype).to(weight.device)

    model = Kernel("spec", spec, builtin=False, takes_out=False)
    weight, answers, left_out = None, {}, {}
    for out, dtype in DTYPES.items():
        try:
            checked = harness.judge(case.replace(out=out), model)
        except UsageError:
            return None  # dimensions that do not fit together
        if checked.verdict.failed:
            raise UsageError(
                f"record: expected every oracle to agree with the spec or to be excused by a known fault, "
                f"found {checked.verdict.label} on {case.replace(out=out).id}: {checked.verdict.summary}"
            )
        if checked.weight is None:
            return None  # the packer declined
        weight = checked.weight
        kept = {a.oracle: a for a in checked.answers if a.bits is not None and not a.excused}
        if kept:
            answers[out] = {name: from_bits(a.bits, dtype) for name, a in kept.items() if a.bits is not None}
        excused = {a.oracle: a.excused for a in checked.answers if a.excused}
        if excused:
            left_out[out] = excused
    if weight is None or not answers:
        return None
    flags = set(flags_of(case, weight.output_shape, fmt.facts(weight) if fmt.facts else {}))
    flags |= {flag} if flag in ("BASIC", "DRAWN") or (flag and not flags) else set()
    ordered = tuple(name for name in FLAGS if name in flags) or ("PATTERN",)
    return Vector(case, ordered, weight, answers, left_out, weight_digest(weight))


# --- the command -----------------------------------------------------------------------------


def run_record(options: argparse.Namespace) -> int:
    """Write frozen cases with the answers of the installed upstream libraries."""
    import contextlib
    import dataclasses

    from conformance.runtime import choose

    runtime = choose(options.device)
    out = sys.stdout
    # Upstream libraries greet on standard output when they are imported.
    with contextlib.redirect_stdout(sys.stderr):
        from conformance import setup, vectors
        from conformance.detect.report import progress
        from conformance.registry import find_format, formats

        if options.out is not None and str(options.out) in ("", "."):
            raise UsageError("record: expected a folder after --out, found the current one")
        chosen = [find_format(name) for name in dict.fromkeys(options.format)] or list(formats().values())
        paths = {fmt.name: vectors.path_of(fmt.name, options.out or vectors.FOLDER) for fmt in chosen}
        taken = [path.name for path in paths.values() if path.exists()]
        if taken and not options.force:
            raise UsageError(
                f"record: expected no file yet, found {', '.join(taken)}; --force writes it again"
            )
        _check_destination(paths.values(), vectors.unwritable)
        # The model stands in for the kernel, so the interpreter's faults do not matter.
        harness = dataclasses.replace(setup.build(runtime), interpreter=None)
        for fmt in chosen:
            with progress(sys.stderr, f"record {fmt.name}") as bar:
                task = bar.add_task("")
                file = record(
                    harness,
                    fmt,
                    options.date,
                    lambda n, of: bar.update(task, completed=n, total=of),  # noqa: B023
                )
            size = vectors.write(paths[fmt.name], file)
            for line in _lines(fmt, file, size):
                print(line, file=out, flush=True)
    return 0


def _check_destination(paths: Iterable[Path], unwritable: Callable[[Path, OSError], UsageError]) -> None:
    """Before hours of asking: that every file can be written."""
    for path in paths:
        probe = path.with_name(path.name + ".part")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.is_dir():
                raise IsADirectoryError(errno.EISDIR, "a folder of that name")
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise unwritable(path, error) from error


def _lines(fmt: Format, file: Vectors, size: int) -> Iterator[str]:
    """What was recorded of a format, and what was not."""
    per_oracle = {
        name: sum(name in found for vector in file.vectors for found in vector.answers.values())
        for name in file.oracles
    }
    told = ", ".join(f"{name} {count}" for name, count in per_oracle.items())
    yield f"{fmt.name}: {len(file.vectors)} vectors, {size} bytes; answers: {told}"
    silent = [oracle.name for oracle in fmt.oracles if oracle.name not in file.oracles]
    if silent:
        yield f"  no answer of {', '.join(silent)}"
    left: dict[str, int] = {}
    for vector in file.vectors:
        for found in vector.left_out.values():
            for oracle, fault in found.items():
                left[f"{oracle} ({fault})"] = left.get(f"{oracle} ({fault})", 0) + 1
    for text, count in left.items():
        yield f"  left out, a known fault: {count} x {text}"


def _date(text: str) -> datetime.date:
    try:
        return datetime.date.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a date such as 2026-11-30, found {text!r}") from None


def add_parsers(commands: Any) -> None:
    """Add ``record`` to the command line."""
    new = commands.add_parser("record", help=run_record.__doc__, description=run_record.__doc__)
    new.add_argument(
        "--format", action="append", default=[], metavar="NAME", help="only this format; repeatable"
    )
    new.add_argument("--out", type=Path, metavar="DIR", help="folder (default: conformance/recorded)")
    new.add_argument("--force", action="store_true", help="write files again that are there")
    new.add_argument("--device", default="cpu", help="where the oracles run: cpu (default), cuda or cuda:N")
    new.add_argument(
        "--date",
        type=_date,
        default=datetime.date.today(),
        metavar="YYYY-MM-DD",
        help="date of the provenance (default: today)",
    )
    new.set_defaults(run=run_record)
