"""The run: one case in, one verdict out, recorded. Ties the other modules together."""

from __future__ import annotations

import dataclasses
import datetime
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from conformance import bundle
from conformance.asking import answer_of, own_copy
from conformance.bits import DTYPES, from_bits, same
from conformance.case import Case
from conformance.execute import execute
from conformance.execution import Execution
from conformance.gemm_bound import FLOAT32, Accumulation
from conformance.interpreter import Report
from conformance.journal import Journal
from conformance.judge import Answer, Judge, exact
from conformance.known_faults import KnownFault
from conformance.materialize import materialize
from conformance.packed_bound import hold_to_bound
from conformance.registry import Format, Kernel, Packing, launch_arguments
from conformance.results import ResultWriter
from conformance.runtime import Runtime, environment
from conformance.verdict import Verdict
from kernels._packed import PackedWeight
from oracles.base import Declined, Oracle, Provenance


@dataclasses.dataclass(frozen=True)
class Checked:
    """A verdict and what it was made of, for the bundle; ``earlier``: failures that it was shrunk from."""

    verdict: Verdict
    weight: PackedWeight | None = None
    execution: Execution | None = None
    answers: tuple[Answer, ...] = ()
    earlier: tuple[Checked, ...] = ()

    @property
    def lost(self) -> str:
        """What the device answers since this case, if it no longer works; empty if it does."""
        first = self.execution.lost if self.execution is not None else ""
        return first or next((answer.lost for answer in self.answers if answer.lost), "")


class Failure(AssertionError):
    """Raised by a test body for a failing verdict; carries everything a bundle needs."""

    def __init__(self, checked: Checked) -> None:
        super().__init__(f"{checked.verdict.label}  {checked.verdict.case.id}")
        self.checked = checked


@dataclasses.dataclass
class Harness:
    """Everything that holds for a whole run.

    Attributes:
        runtime: device and mode.
        formats: registered formats.
        kernels: kernel under test of each format.
        oracles: names of the oracles to ask, or None for all.
        gate: gate the kernels must pass.
        known_faults: entries of the known-faults file.
        interpreter: what the interpreter gets right, or None on a GPU.
        model: safetensors file of the real route.
        recorded: folder of recorded vectors, or None for the built-in one.
        real_every: the real-weights test takes one case in so many.
        fused_cases: how many cases a test of a fused kernel draws at most, or None for the profile's number.
        accumulation: how fused kernels may sum.
        writer: where records go, or None.
        journal: where it is noted what is being run, or None.
    """

    runtime: Runtime
    formats: Mapping[str, Format]
    kernels: Mapping[str, Kernel]
    known_faults: tuple[KnownFault, ...] = ()
    oracles: frozenset[str] | None = None
    gate: str = "exact"
    interpreter: Report | None = None
    model: Path | None = None
    recorded: Path | None = None
    real_every: int = 1
    fused_cases: int | None = None
    accumulation: Accumulation = FLOAT32
    writer: ResultWriter | None = None
    journal: Journal | None = None
    last_failure: Checked | None = None
    _missing: dict[tuple[str, str], str | None] = dataclasses.field(default_factory=dict)
    _noted: tuple[Case | None, str] = (None, "")
    _versions: dict[Callable[[], Provenance], str | None] = dataclasses.field(default_factory=dict)

    # --- oracles -----------------------------------------------------------------------

    def missing(self, fmt: Format, oracle: Oracle) -> str | None:
        """Reason why an oracle does not answer in this run, or None. Asked once."""
        key = (fmt.name, oracle.name)
        if key not in self._missing:
            if self.oracles is not None and oracle.name not in self.oracles:
                self._missing[key] = "not asked for"
            else:
                self._missing[key] = oracle.missing(self.runtime.device)
        return self._missing[key]

    def packer(self, fmt: Format, case: Case) -> Oracle | None:
        """Oracle that packs: the one the case's ``packer`` dimension names, else the first that is
        installed. Packing is done on the CPU."""
        cpu = torch.device("cpu")
        wanted = case["packer"] if "packer" in case else None  # noqa: SIM401 - a case has no get
        return next(
            (
                oracle
                for oracle in fmt.oracles
                if oracle.pack is not None and wanted in (None, oracle.name) and oracle.missing(cpu) is None
            ),
            None,
        )

    def excuse(
        self,
        oracle: Oracle,
        case: Case,
        got: np.ndarray | None,
        want: np.ndarray,
        dtype: torch.dtype,
        facts: Mapping[str, Any] | None = None,
    ) -> str:
        """Ids of the known faults that together cover all of an oracle's wrong answer, or empty."""
        unexplained = np.ones(want.shape, bool) if got is None else ~same(got, want, dtype)
        ids = []
        for fault in self.known_faults:
            device = self.runtime.device
            if fault.oracle != oracle.name or self.in_force(fault, oracle) is not None:
                continue
            if not fault.covers(case, want.shape, device, facts):
                continue
            rest = unexplained & ~np.asarray(fault.explains(got, want, dtype))
            if (rest != unexplained).any():
                ids.append(fault.id)
                unexplained = rest
        return "" if unexplained.any() else ", ".join(ids)

    def in_force(self, fault: KnownFault, oracle: Oracle) -> str | None:
        """None when an entry counts on this machine today, else the reason why not."""
        if oracle.provenance not in self._versions:
            self._versions[oracle.provenance] = oracle.provenance().version
        version = self._versions[oracle.provenance]
        return fault.applies_here(version, self.runtime.device, datetime.date.today())

    def ask(
        self, fmt: Format, case: Case, weight: PackedWeight, dtype: torch.dtype, want: np.ndarray
    ) -> tuple[Answer, ...]:
        """What every oracle says of a weight; ``want`` is what the spec model does."""
        deciding = (oracle for oracle in fmt.oracles if oracle.dequantize is not None)
        answers: list[Answer] = []
        for oracle in deciding:
            answers.append(self._ask_one(fmt, oracle, case, weight, dtype, want))
            if answers[-1].lost:
                break
        return tuple(answers)

    def _ask_one(
        self,
        fmt: Format,
        oracle: Oracle,
        case: Case,
        weight: PackedWeight,
        dtype: torch.dtype,
        want: np.ndarray,
    ) -> Answer:
        reason = self.missing(fmt, oracle)
        if reason is not None:
            return Answer(oracle.name, note=f"missing: {reason}")
        copy = own_copy(weight, self.runtime.device)
        self.note(f"the oracle {oracle.name}")
        found = answer_of(oracle, copy, dtype, want, self.runtime.device)
        if found.exact or (found.bits is None and not found.breach):
            return found
        facts = fmt.facts(weight) if fmt.facts else None
        return dataclasses.replace(found, excused=self.excuse(oracle, case, found.bits, want, dtype, facts))

    # --- one case ----------------------------------------------------------------------

    def note(self, step: str, case: Case | None = None, kernel: Kernel | None = None) -> None:
        """Say what comes next, for who finds the process dead: ``input``, ``kernel``, an oracle,
        ``judged``; with the case and the kernel where they are others than before."""
        if self.journal is not None:
            fields = {"step": step}
            if case is not None:
                if case is not self._noted[0]:
                    self._noted = case, case.id
                fields["case"] = self._noted[1]
            if kernel is not None:
                fields["kernel"] = kernel.name
            self.journal.note(**fields)

    def check(self, case: Case, kernel: Kernel | None = None, **extra: Any) -> Verdict:
        """Judge one case and record it; raises :class:`Failure` on a failing verdict.

        ``kernel`` is judged instead of the run's; ``extra`` goes into the record (the test's
        name, for instance).
        """
        started = time.perf_counter()
        checked = self.judge(case, kernel)
        record = {**checked.verdict.to_json(), "seconds": round(time.perf_counter() - started, 6), **extra}
        if self.writer is not None:
            self.writer.write(record)
        if checked.verdict.failed:
            self.last_failure = checked
            raise Failure(checked)
        return checked.verdict

    def judge(self, case: Case, kernel: Kernel | None = None) -> Checked:
        """Materialize, execute, ask the oracles, judge. Records nothing."""
        fmt = self.formats[case.format]
        kernel = kernel or self.kernels[case.format]

        def plain(kind: str, summary: str) -> Checked:
            return Checked(Verdict(kind, case, kernel.name, str(self.runtime.device), summary))

        reason = self.interpreter.reason(case["out"]) if self.interpreter else None
        if reason is not None:
            return plain("UNJUDGED", reason)
        if self.oracles and not any(oracle.name in self.oracles for oracle in fmt.oracles):
            return plain("NO_ORACLE", f"none of the oracles asked for answers for {fmt.name}")
        self.note("input", case, kernel)
        packer = None
        if case["route"] != "words":
            packer = self.packer(fmt, case)
            if packer is None:
                return plain("NO_ORACLE", f"no upstream packer of {fmt.name} is installed")
        try:
            weight, packing = materialize(fmt, case, packer, self.model)
        except Declined as refusal:
            return plain("NO_ORACLE", f"the packer declined: {refusal.reason}")
        return self.judge_weight(case, weight, packing, kernel)

    def launch(self, fmt: Format, kernel: Kernel, tile: str) -> Mapping[str, int] | None:
        """Launch arguments of a case's ``tile`` in this run."""
        return launch_arguments(fmt, kernel, tile, self.runtime.interpreter)

    def judge_weight(
        self, case: Case, weight: PackedWeight, packing: Packing | None, kernel: Kernel
    ) -> Checked:
        """As :meth:`judge`, for a weight that is there already."""
        fmt = kernel.viewed(self.formats[case.format])
        dtype = DTYPES[case["out"]]
        self.note("kernel", case, kernel)
        execution = execute(
            kernel,
            weight,
            dtype,
            self.runtime.device,
            layout=case["layout"],
            dest=case["dest"],
            launch=self.launch(fmt, kernel, case["tile"]),
        )
        known = exact(fmt, weight, dtype)
        answers: tuple[Answer, ...] = ()
        if not execution.lost:
            answers = self.ask(fmt, case, weight, dtype, known.bits)
        self.note("judged")
        rules = Judge(fmt, kernel.name, str(self.runtime.device), self.gate)
        verdict = rules(case, weight, dtype, execution, answers, known)
        if packing is not None and not verdict.failed:
            verdict = hold_to_bound(verdict, known.model.values(), packing)
        return Checked(verdict, weight, execution, answers)

    def fixed(self, fault: KnownFault, verdict: Verdict) -> Checked:
        """FIXED_FAULT: what a known-faults entry says is not so here."""
        text = (
            f"known fault {fault.id} did not show on its pinned case (verdict {verdict.kind}): upstream "
            f"is right here, or wrong in another way; narrow the entry's versions or condition, or remove it"
        )
        found = dataclasses.replace(verdict, kind="FIXED_FAULT", summary=text)
        if self.writer is not None:
            self.writer.write({**found.to_json(), "seconds": 0.0})
        return Checked(found)

    # --- bundles -----------------------------------------------------------------------

    def write_bundle(self, folder: Path, checked: Checked, seed: int | None, **extra: Any) -> Path | None:
        """Bundle of a case, or None when there are no tensors to keep; ``extra`` goes into case.json."""
        if checked.weight is None:
            return None
        verdict = checked.verdict
        dtype = DTYPES[verdict.case["out"]]
        fmt = self.formats[verdict.case.format]
        want = exact(fmt, checked.weight, dtype).bits
        outputs = {"want/spec": from_bits(want, dtype)}
        for answer in checked.answers:
            if answer.bits is not None:
                outputs[f"want/{answer.oracle}"] = from_bits(answer.bits, dtype)
        if checked.execution is not None and checked.execution.bits is not None:
            outputs["got"] = from_bits(checked.execution.bits, dtype)
        info = {
            "case": verdict.case.to_json(),
            "id": verdict.case.id,
            "kernel": verdict.kernel,
            "gate": self.gate,
            "seed": seed,
            "excused": {answer.oracle: answer.excused for answer in checked.answers if answer.excused},
            "environment": environment(self.runtime),
            "verdict": verdict.to_json(),
            **extra,
        }
        return bundle.write(folder, checked.weight, info, outputs)
