"""The loop: builds each case, checks the kernel, and only then times it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch

from benchmarks import check, references, weights
from benchmarks.budget import Budget
from benchmarks.cases import BenchCase
from benchmarks.machine import Machine
from benchmarks.peers import Peer, peers_of
from benchmarks.results import OURS, Measurement
from benchmarks.subjects import builtin
from benchmarks.timing import copies_for, copy_calls, sample
from conformance.bits import DTYPES
from kernels._packed import PackedWeight

Kernel = Callable[..., torch.Tensor]


def said(error: BaseException) -> str:
    """An exception in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]


@dataclasses.dataclass
class Prepared:
    """A case on the device, in as many copies as a pass goes over."""

    case: BenchCase
    dtype: torch.dtype
    weights: list[PackedWeight]
    outs: list[torch.Tensor]
    want: torch.Tensor
    n_bytes: int

    def calls(self, kernel: Kernel, launch: Mapping[str, int]) -> list[Callable[[], object]]:
        return [
            functools.partial(kernel, weight, dtype=self.dtype, out=out, **launch)
            for weight, out in zip(self.weights, self.outs, strict=True)
        ]

    def fault(self) -> str:
        """What is wrong with the outputs as they are now, or an empty string."""
        return next(filter(None, (check.difference(out, self.want) for out in self.outs)), "")


def prepare(case: BenchCase, machine: Machine) -> Prepared:
    """Weights, outputs and the answer.

    Raises:
        ValueError: the format does not take this size, or torch's answer is not the exact model's.
    """
    reason = check.reference_fault(case, machine.device)
    if reason:
        raise ValueError(reason)
    dtype = DTYPES[case.dtype]
    weight = weights.make(case, machine.device)
    n_bytes = weights.traffic(weight, dtype)
    copies = copies_for(n_bytes, machine.l2_bytes)
    want = references.formula(weight, dtype)
    machine.release()  # what the formula needed on its way is several times the output
    return Prepared(
        case=case,
        dtype=dtype,
        weights=[weight, *(weights.clone(weight) for _ in range(copies - 1))],
        outs=[torch.empty_like(want) for _ in range(copies)],
        want=want,
        n_bytes=n_bytes,
    )


def measure(prepared: Prepared, kernel: Kernel, machine: Machine, launch: Mapping[str, int]) -> Measurement:
    """Check and time ``kernel``; the copy is not timed here.

    A kernel that is wrong before or after it was timed, on any of the copies, gets no figure.
    """
    found = Measurement(
        prepared.case, OURS, "ok", n_bytes=prepared.n_bytes, copies=len(prepared.outs), launch=dict(launch)
    )
    try:
        calls = prepared.calls(kernel, launch)
        reason = check.verdict(calls[0], prepared.outs[0], prepared.want)
        if reason:
            return dataclasses.replace(found, status="wrong", reason=reason)
        for out in prepared.outs:
            check.poison(out)
        times = sample(machine.timer, calls)
        reason = prepared.fault()
    except Exception as error:  # one that cannot run is a line of the report
        return dataclasses.replace(found, status="failed", reason=said(error))
    if reason:
        return dataclasses.replace(found, status="wrong", reason=f"after many launches {reason}")
    return dataclasses.replace(found, seconds=times.seconds, low=times.low, high=times.high)


def measure_peer(prepared: Prepared, peer: Peer, machine: Machine) -> Measurement:
    """Time a peer, whatever its bits are; ``reason`` says how they differ, of one that decodes."""
    found = Measurement(
        prepared.case, peer.name, "ok", n_bytes=prepared.n_bytes, copies=len(prepared.weights)
    )
    try:
        choices = peer.choices(prepared.weights, prepared.dtype, prepared.outs)
        adapted = peer.read(prepared.weights[0])
        want = prepared.want
        if adapted is not prepared.weights[0]:
            want = references.formula(adapted, prepared.dtype)
        reason = ""
        if peer.decodes:
            reason = check.difference(choices[0][0]().reshape(want.shape), want)
        samples = [sample(machine.timer, calls) for calls in choices]
        times = min(samples, key=lambda one: one.seconds)
    except Exception as error:  # not installed, no native library, no compiler, ...
        return dataclasses.replace(found, status="failed", reason=said(error))
    return dataclasses.replace(found, seconds=times.seconds, low=times.low, high=times.high, reason=reason)


def run(
    cases: Sequence[BenchCase],
    kernels: Mapping[str, Kernel],
    machine: Machine,
    budget: Budget,
    peers: Sequence[Peer] = (),
    *,
    every_size: bool = False,
) -> Iterable[list[Measurement]]:
    """Measurements of each case in turn: the kernel's, then its peers'.

    Peers are measured at the first size of the selection (unless ``every_size``) and the first group
    size of a variant, after all kernels: they take most of the time, of compiling above all.

    Args:
        cases: in the order in which they matter.
        kernels: other kernels than the built-in ones, by format.
        machine: where.
        budget: after it, cases are ``skipped``.
        peers: whom to compare with.
        every_size: compare at all sizes of the selection.
    """
    for case in cases:
        yield _one(case, kernels, machine, budget, ())
    for case in _compared(cases, every_size) if peers else ():
        yield _one(case, None, machine, budget, peers_of(case, peers))


def steps(cases: Sequence[BenchCase], peers: Sequence[Peer], *, every_size: bool = False) -> int:
    """How many times :func:`run` yields."""
    return len(cases) + (len(_compared(cases, every_size)) if peers else 0)


def _compared(cases: Sequence[BenchCase], every_size: bool) -> list[BenchCase]:
    if not cases:
        return []
    size = (cases[0].rows, cases[0].cols)
    first: dict[tuple[str, str, str, int, int], BenchCase] = {}
    for case in cases:
        if every_size or (case.rows, case.cols) == size:
            first.setdefault((case.format, case.variant, case.dtype, case.rows, case.cols), case)
    return list(first.values())


def _one(
    case: BenchCase,
    kernels: Mapping[str, Kernel] | None,
    machine: Machine,
    budget: Budget,
    peers: Sequence[Peer],
) -> list[Measurement]:
    names = ([OURS] if kernels is not None else []) + [peer.name for peer in peers]
    if not names:
        return []
    if budget.over:
        reason = f"{budget.seconds:g} s were spent"
        return [Measurement(case, name, "skipped", reason) for name in names]
    broken = machine.usable()
    if broken:
        return [Measurement(case, name, "failed", f"the device stopped: {broken}") for name in names]
    try:
        prepared = prepare(case, machine)
    except Exception as error:  # a size that a format does not take, or too little memory
        machine.release()
        return [Measurement(case, name, "failed", said(error)) for name in names]
    found = []
    if kernels is not None:
        kernel = kernels.get(case.format) or builtin(case.format)
        found.append(measure(prepared, kernel, machine, {}))
    for peer in peers:
        if budget.over:
            found.append(Measurement(case, peer.name, "skipped", f"{budget.seconds:g} s were spent"))
        else:
            found.append(measure_peer(prepared, peer, machine))
    copy = None
    if any(entry.seconds is not None for entry in found):
        try:
            copies = copy_calls(prepared.n_bytes, len(prepared.outs), machine.device)
            copy = sample(machine.timer, copies).seconds
        except Exception as error:
            found = [dataclasses.replace(entry, reason=f"no copy: {said(error)}") for entry in found]
    del prepared
    machine.release()
    return [
        dataclasses.replace(entry, copy_seconds=copy) if entry.seconds is not None else entry
        for entry in found
    ]
