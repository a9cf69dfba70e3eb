"""Judge a kernel on recorded vectors: their answers vote as ``recorded:<oracle>``."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping

import torch

from conformance.bundle import weight_digest
from conformance.case import Case
from conformance.dims import Choice
from conformance.errors import UsageError
from conformance.harness import Checked, Failure, Harness
from conformance.materialize import materialize
from conformance.registry import Format
from conformance.vector_flags import FLAGS
from conformance.vectors import Vector
from conformance.verdict import Verdict
from kernels._packed import PackedWeight
from oracles.base import Oracle, Provenance

PREFIX = "recorded:"


def _oracle(name: str, answer: torch.Tensor) -> Oracle:
    def dequantize(weight: PackedWeight, dtype: torch.dtype) -> torch.Tensor:
        return answer.to(weight.device)

    source = Provenance(PREFIX + name, None, "", "", "recorded")
    return Oracle(PREFIX + name, lambda: source, lambda device: None, dequantize)


def with_answers(harness: Harness, fmt: Format, answers: Mapping[str, torch.Tensor]) -> Format:
    """The format with recorded answers in place of the oracles. Those that are missing on this
    machine stay, to be counted; those that are there answer in the other tests."""
    missing = tuple(oracle for oracle in fmt.oracles if harness.missing(fmt, oracle) is not None)
    relaxations = tuple(dataclasses.replace(r, oracle=PREFIX + r.oracle) for r in fmt.relaxations)
    return dataclasses.replace(
        fmt,
        oracles=(*(_oracle(name, answer) for name, answer in answers.items()), *missing),
        relaxations=fmt.relaxations + relaxations,
    )


def originals(fmt: Format, out: str) -> list[Case]:
    """Cases of an oracle of kind "recorded", whose weights are recorded too: those that a format's
    dimension ``recorded`` names."""
    dim = next((dim for dim in fmt.dims if dim.name == "recorded"), None)
    names = dim.choices if isinstance(dim, Choice) else ()
    return [fmt.case(out=out, recorded=name) for name in names if dim is not None and name != dim.default]


@dataclasses.dataclass(frozen=True)
class Recorded:
    """A run's harness for recorded vectors and one output dtype."""

    harness: Harness
    out: str

    def judge(self, vector: Vector) -> Checked:
        """Judge one vector. Records nothing.

        Raises:
            UsageError: the vector is stale: its case no longer means the recorded tensors.
        """
        case = vector.case.replace(out=self.out)
        fmt = self.harness.formats[case.format]
        kernel = self.harness.kernels[case.format]
        device = str(self.harness.runtime.device)
        reason = self.harness.interpreter.reason(self.out) if self.harness.interpreter else None
        if reason is not None:
            return Checked(Verdict("UNJUDGED", case, kernel.name, device, reason))
        if case["route"] == "words":
            fresh = weight_digest(materialize(fmt, case)[0])
            if not fresh == vector.digest == weight_digest(vector.weight):
                raise UsageError(
                    f"vectors: expected the recorded tensors of {vector.id}, found others: the vectors are "
                    f"stale; if the change is meant, python -m conformance record --force --format {fmt.name}"
                )
        fmt = with_answers(self.harness, fmt, vector.answers.get(self.out, {}))
        # Recorded answers are asked whatever --oracle says.
        run = dataclasses.replace(self.harness, formats={**self.harness.formats, fmt.name: fmt}, oracles=None)
        return run.judge_weight(case, vector.weight, None, kernel)

    def check(self, vector: Vector, **extra: object) -> Verdict:
        """Judge and record one vector; raises :class:`Failure` on a failing verdict."""
        started = time.perf_counter()
        checked = self.judge(vector)
        verdict = checked.verdict
        if self.harness.writer is not None:
            seconds = round(time.perf_counter() - started, 6)
            record = {**verdict.to_json(), "seconds": seconds, "flags": list(vector.flags), **extra}
            self.harness.writer.write(record)
        if verdict.failed:
            checked = dataclasses.replace(checked, verdict=_with_flags(verdict, vector.flags))
            self.harness.last_failure = checked
            raise Failure(checked)
        return verdict


def _with_flags(verdict: Verdict, flags: tuple[str, ...]) -> Verdict:
    """The flags where a report cannot cut them off, and what failing them means where there is room."""
    effects = tuple(f"{flag}: {FLAGS[flag].effect}" for flag in flags if flag in FLAGS)
    summary = f"{verdict.summary} [recorded vector, flags {' '.join(flags)}]"
    return dataclasses.replace(verdict, summary=summary, notes=(*effects, *verdict.notes))
