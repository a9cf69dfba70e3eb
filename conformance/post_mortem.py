"""The verdict on a case that took its process with it, from what the process noted before."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from conformance.case import Case
from conformance.errors import UsageError
from conformance.harness import Checked, Harness
from conformance.materialize import materialize
from conformance.registry import parse_case
from conformance.report import report
from conformance.rerun import checkout, replay, rerun
from conformance.verdict import Verdict
from kernels._packed import PackedWeight
from oracles.base import Declined

STEPS = {
    "input": "while the input was made",
    "kernel": "in the kernel",
    "judged": "after the kernel and the oracles had answered: damage done before may show late",
}


def ending(code: int | None) -> str:
    """How a process ended, of its exit code as :mod:`subprocess` gives it."""
    if code is None:
        return ""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def post_mortem(harness: Harness, line: Mapping[str, Any], how: str = "") -> Checked | None:
    """CRASH_WORKER for the case that a journal's ``line`` names; None where it was at no case.

    The case's tensors are made again, on the CPU, unless making them is what the process died of.

    Args:
        how: how the process ended, or empty.

    Raises:
        UsageError: the line names a case that this version does not know.
    """
    if "case" not in line:
        return None
    case = parse_case(line["case"])
    step = str(line.get("step", ""))
    where = STEPS.get(step, f"in {step}" if step else "at this case")
    text = f"the process died {where}" + (f" ({how})" if how else "")
    weight = None if step == "input" else _weight(harness, case)
    verdict = Verdict("CRASH_WORKER", case, line.get("kernel", ""), line.get("device", ""), text)
    return Checked(verdict, weight)


def _weight(harness: Harness, case: Case) -> PackedWeight | None:
    fmt = harness.formats[case.format]
    packer = None if case["route"] == "words" else harness.packer(fmt, case)
    with contextlib.suppress(Declined, UsageError):
        return materialize(fmt, case, packer, harness.model)[0]
    return None


def write_up(
    harness: Harness, results: Path, checked: Checked, line: Mapping[str, Any]
) -> tuple[Path | None, str]:
    """Bundle and text of a :func:`post_mortem`."""
    folder = results / "bundles" / f"{checked.verdict.case.format}-crash_worker"
    quiet = dataclasses.replace(harness, gate=line.get("gate", harness.gate))
    more = {"environment": line["environment"]} if "environment" in line else {}
    path = quiet.write_bundle(folder, checked, line.get("seed"), **more)
    case = checked.verdict.case
    commands = [
        (
            "rerun",
            rerun(
                case.format, case.id, line.get("options", {}), verdict=checked.verdict.kind, root=checkout()
            ),
        )
    ]
    if path is not None:
        commands.append(("replay", replay(path, root=checkout())))
    return path, report(checked.verdict, tuple(commands))
