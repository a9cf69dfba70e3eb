"""What a reduction found: the run from start to end, its text and its JSON."""

from __future__ import annotations

import dataclasses
import shlex
import time
from pathlib import Path
from typing import Any

from conformance.bundle import weight_digest
from conformance.case import Case
from conformance.errors import UsageError
from conformance.harness import Checked, Harness
from conformance.investigate import investigate
from conformance.neighbours import Budget, Neighbour, nearest_passing
from conformance.reduce.cases import Step, reduce_case
from conformance.reduce.tensors import Kept, Reduced, reduce_tensors
from conformance.reduce.trial import Signature, Trial
from conformance.report import WIDTH
from conformance.rerun import checkout, replay, rerun
from kernels._packed import PackedWeight

LINES = 25
NEIGHBOUR_BUDGET = Budget(cases=200, seconds=10.0)


@dataclasses.dataclass(frozen=True)
class Result:
    """A failing case, reduced.

    Attributes:
        start, case: the case at the start and at the end.
        signature: how both fail; the cause is that of the second look at the end.
        steps: what became of the dimensions.
        kept: what is left of the tensors.
        bad: the reduced weight, judged and looked into.
        good: the closest weight that passes, judged, or None.
        good_change: what differs in it.
        neighbour: the nearest passing case beside the reduced one, or None.
        note: what could not be reduced, and why.
        runs: inputs judged.
    """

    start: Case
    case: Case
    signature: Signature
    steps: tuple[Step, ...]
    kept: tuple[Kept, ...]
    bad: Checked
    good: Checked | None
    good_change: str
    neighbour: Neighbour | None
    note: str
    runs: int


def reduce(trial: Trial, case: Case, weight: PackedWeight | None = None) -> Result:
    """Reduce a failing case, and ``weight`` in place of its tensors (those of a bundle).

    Raises:
        UsageError: the case passes, cannot be judged, or leaves the device unusable.
    """
    first = trial.start(case, weight)
    if not first.verdict.failed or first.weight is None:
        raise UsageError(
            f"reduce: expected a case that fails against spec (no oracle is asked), found "
            f"{first.verdict.label} on {case.id}: {first.verdict.summary}"
        )
    if trial.crashed(first):
        raise UsageError(
            f"device: expected a GPU that still works after the crash ({first.verdict.summary}), found none; "
            "reduce the case with --device cpu"
        )
    # The last part of the time is for the neighbours.
    until = trial.until
    trial.until -= min(NEIGHBOUR_BUDGET.seconds, max(0.0, until - time.monotonic()) / 6)
    note, start, bad = "", case, first
    steps: tuple[Step, ...] = ()
    built = trial.case(case)
    if weight is not None and not (
        built.same
        and built.checked is not None
        and built.checked.weight is not None
        and weight_digest(built.checked.weight) == weight_digest(weight)
    ):
        note = "the case does not build these tensors here, so only they are reduced"
    else:
        case, steps = reduce_case(trial, case)
        bad = trial.case(case).checked or first
    reduced = _tensors(trial, case, bad)
    if trial.lost:
        note = "a crash left the GPU unusable, so reducing ended there; --device cpu goes on"
    elif trial.ended:
        note = "time ran out: it may be reduced further (--seconds)"
    neighbour = None
    left = min(NEIGHBOUR_BUDGET.seconds, until - time.monotonic())
    if left > 0 and not trial.lost and not (note and weight is not None):
        budget = dataclasses.replace(NEIGHBOUR_BUDGET, seconds=left)
        neighbour = nearest_passing(trial.harness, case, trial.kernel, budget)
    good, change = reduced.good, reduced.good_change
    if good is None and neighbour is not None and neighbour.case is not None:
        good = trial.harness.judge(neighbour.case, trial.kernel)
        change = f"{neighbour.dimension} is {neighbour.passes} instead of {neighbour.fails}"
    looked = _looked_into(trial, reduced.bad)
    return Result(
        start,
        case,
        Signature.of(looked),
        steps,
        reduced.kept,
        looked,
        good,
        change,
        neighbour,
        note,
        trial.runs,
    )


def _looked_into(trial: Trial, bad: Checked) -> Checked:
    """With the causes that hold on other inputs too, as a failing test has them."""
    if trial.lost:
        return bad
    try:
        return investigate(trial.harness, bad, trial.kernel)
    except Exception:  # what was reduced must be reported whatever happens here
        return bad


def _tensors(trial: Trial, case: Case, bad: Checked) -> Reduced:
    assert bad.weight is not None
    outcome = trial.weight(case, bad.weight)
    if outcome.same and outcome.checked is not None:
        return reduce_tensors(trial, case, outcome.checked)
    # What upstream's packer got wrong does not show in the packed tensors alone.
    return Reduced(bad, ())


def text(result: Result, bad: Path, good: Path | None, kernel: str = "") -> str:
    """At most 25 lines: what mattered and what did not, the nearest that passes, the two bundles.

    ``kernel`` is the argument of ``--kernel`` for the command that runs the case again.
    """
    option = f" --kernel {shlex.quote(kernel)}" if kernel else ""
    out = [f"{result.signature}  {result.case.id}"]
    out.append(f"{'kernel':<10} {result.bad.verdict.kernel} on {result.bad.verdict.device}")
    out.append(f"{'reduced':<10} from {result.start.id} in {result.runs} runs, against spec alone")
    causes = result.bad.verdict.causes
    if causes and causes[0].name == "unknown":
        out.append(f"{'cause':<10} {causes[0].text}")
    if result.note:
        out.append(f"{'note':<10} {result.note}")
    out += [f"  {step.dimension:<10} {step}" for step in result.steps if step.start != step.end]
    out += [f"  {step.dimension:<10} {step}" for step in result.steps if step.start == step.end]
    kept = sorted(result.kept, key=lambda item: not item.kept)
    # A dimension may have the name of a tensor: the codes of int8_affine.
    tensors = [f"  {item.name:<10} tensor: {item}" for item in kept]
    tail = [
        f"  {'wrong':<10} {list(item.index)} got {item.got}, want {item.want}: {item.where}"
        for item in result.bad.verdict.located[:1]
    ]
    tail.append(f"{'passes':<10} {result.neighbour or 'no neighbour was judged'}")
    tail.append(f"{'bad':<10} {replay(bad, root=checkout())}")
    if good is None:
        tail.append(
            f"{'good':<10} none: no neighbour judged and no needed element made constant gives a pass"
        )
    else:
        tail.append(f"{'good':<10} {replay(good, root=checkout())}")
        tail.append(f"{'':<10} {result.good_change}")
    again = rerun(result.case.format, result.case.id, {}, root=checkout())
    tail.append(f"{'rerun':<10} {again}{option}")
    room = LINES - len(tail)
    shown = _cut(out, max(3, room - len(tensors))) + tensors
    lines = _cut(shown, room) + tail
    # Commands are whole, to be copied; the rest fits a terminal.
    return "\n".join(
        line if " python -m " in line or line.startswith("rerun") else _short(line) for line in lines
    )


def _cut(lines: list[str], room: int) -> list[str]:
    if len(lines) <= room:
        return lines
    return [*lines[: room - 1], f"  and {len(lines) - room + 1} more, see --json"]


def _short(line: str, width: int = WIDTH + 30) -> str:
    return line if len(line) <= width else line[: width - 4] + " ..."


def to_json(result: Result, bad: Path, good: Path | None) -> dict[str, Any]:
    """Everything, for programs."""
    return {
        "start": result.start.id,
        "case": result.case.id,
        **result.case.to_json(),
        "verdict": result.bad.verdict.to_json(),
        "cause": result.signature.cause,
        "runs": result.runs,
        "note": result.note,
        "dimensions": [dataclasses.asdict(step) for step in result.steps],
        "tensors": [{**dataclasses.asdict(item), "text": str(item)} for item in result.kept],
        "neighbour": None if result.neighbour is None else result.neighbour.to_json(),
        "bad": str(bad),
        "good": None if good is None else str(good),
        "good_change": result.good_change,
    }


def write_bundles(harness: Harness, result: Result, folder: Path) -> tuple[Path, Path | None]:
    """Bundles ``bad`` and ``good`` in ``folder``, marked as reduced so that replay accepts tensors
    that no case builds."""
    marks = {"reduced": True, "original": result.start.id}
    bad = harness.write_bundle(folder / "bad", result.bad, None, **marks)
    assert bad is not None
    good = None if result.good is None else harness.write_bundle(folder / "good", result.good, None, **marks)
    return bad, good
