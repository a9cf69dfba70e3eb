"""Judge a fused kernel on random activations: y against the exact product, within the proven bound."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from conformance import fused_nonfinite, gemm_bound
from conformance.bits import DTYPES, same, show, to_float, ulp_distance
from conformance.case import Case
from conformance.compare import Comparison
from conformance.fused import NONFINITE, Probe
from conformance.fused_activations import inputs, tokens_of
from conformance.fused_causes import causes
from conformance.fused_guard import Guarded, Stopped
from conformance.fused_nonfinite import Spoiled
from conformance.gemm_bound import Accumulation, Bounded
from conformance.harness import Checked, Failure, Harness
from conformance.materialize import materialize
from conformance.registry import Format
from conformance.verdict import Located, Verdict
from kernels import Unsupported
from oracles.spec.rounding import round_to

SHOWN = 4


@dataclasses.dataclass(frozen=True)
class Batch:
    """One product: what was given, what came back and what is right."""

    x: np.ndarray
    got: np.ndarray
    dtype: torch.dtype
    how: Accumulation

    def beyond(self, w: np.ndarray, x: np.ndarray | None = None) -> np.ndarray:
        """bool [M, N]: outputs further from x @ w than a right product can be, for this x or another."""
        want = gemm_bound.product(self.x if x is None else x, w, self.dtype, self.how)
        with np.errstate(invalid="ignore"):
            near = np.abs(to_float(self.got, self.dtype) - want.exact) <= want.bound
        return ~near & np.isfinite(want.bound)

    def against(self, w: np.ndarray) -> Bounded:
        return gemm_bound.product(self.x, w, self.dtype, self.how)


@dataclasses.dataclass(frozen=True)
class Products:
    """A run's harness for products with random activations."""

    harness: Harness

    def judge(self, case: Case) -> Checked:
        """Judge one case with each number of tokens. Records nothing."""
        run = self.harness
        fmt, kernel = run.formats[case.format], run.kernels[case.format]
        device = str(run.runtime.device)

        def plain(kind: str, summary: str, **more: Any) -> Checked:
            return Checked(Verdict(kind, case, kernel.name, device, summary, **more))

        reason = run.interpreter.reason(case["out"]) if run.interpreter else None
        if reason is not None:
            return plain("UNJUDGED", reason)
        weight, _ = materialize(fmt, case.replace(route="words"))
        probe = kernel.function
        assert isinstance(probe, Probe)
        if len(weight.output_shape) != 2:
            return plain("UNSUPPORTED", "a product needs a weight of 2 dimensions")
        if 0 in weight.output_shape:
            return plain("VACUOUS", "a product without terms or outputs")
        dtype = DTYPES[case["out"]]
        choices = weights(fmt, weight, dtype)
        if not all(np.isfinite(w).all() for w in choices.values()):
            return plain("UNSUPPORTED", NONFINITE)
        how = dataclasses.replace(run.accumulation, truncating=run.runtime.device.type == "cuda")
        run.note("kernel", case, kernel)
        w = next(iter(choices.values()))
        shape = (w.shape[0], w.shape[1])
        call = Guarded(probe.function, weight, dtype, run.runtime.device, case["layout"], shape)
        batches: list[Batch] = []
        refusals: list[str] = []
        try:
            for tokens in tokens_of(case.id, few=probe.brief):
                try:
                    for x in inputs(case.id, tokens, w, dtype):
                        batches.append(Batch(x, call(x), dtype, how))
                except Unsupported as refusal:
                    refusals.append(f"M = {tokens}: unsupported: {refusal.reason}")
            if not batches:
                return plain("UNSUPPORTED", refusals[0].partition("unsupported: ")[2])
            verdict = _verdict(fmt, case, weight, kernel.name, device, batches, choices, tuple(refusals))
            if verdict.failed:
                return Checked(verdict)
            given = [batch.x for batch in _first_of_each(batches, fused_nonfinite.TOKENS)]
            used = np.logical_and.reduce([w != 0 for w in choices.values()])
            for bad in fused_nonfinite.spoiled(given, used):
                try:
                    batch = Batch(bad.clean, call(bad.x), dtype, how)
                except Unsupported as refusal:
                    verdict = dataclasses.replace(
                        verdict, notes=(*verdict.notes, f"{bad.words}: unsupported: {refusal.reason}")
                    )
                    continue
                failing = _spoiled_verdict(case, kernel.name, device, bad, batch, used, choices)
                if failing is not None and failing.causes == (fused_nonfinite.SPREAD,):
                    again = Batch(bad.clean, call(bad.clean), dtype, how)
                    failing = _repeated_verdict(failing, again, choices) or failing
                if failing is not None:
                    return Checked(failing)
            return Checked(verdict)
        except Stopped as stopped:
            return plain(stopped.kind, stopped.summary, causes=stopped.causes)

    def check(self, case: Case, **extra: object) -> Verdict:
        """Judge and record one case; raises :class:`Failure` on a failing verdict."""
        started = time.perf_counter()
        checked = self.judge(case)
        if self.harness.writer is not None:
            seconds = round(time.perf_counter() - started, 6)
            self.harness.writer.write({**checked.verdict.to_json(), "seconds": seconds, **extra})
        if checked.verdict.failed:
            self.harness.last_failure = checked
            raise Failure(checked)
        return checked.verdict


def weights(fmt: Format, weight: Any, dtype: torch.dtype) -> dict[str, np.ndarray]:
    """The weight [K, N] as a right kernel may multiply it, float64: rounded to the dtype of the
    activations, or to float32."""
    values = fmt.unpack(weight).values()
    values = values.T if fmt.inner == 1 else values
    rounded = {
        f"rounded to {case_name(dtype)}": to_float(round_to(np.ascontiguousarray(values), dtype), dtype)
    }
    if dtype is not torch.float32:
        with np.errstate(over="ignore"):
            rounded["kept in float32"] = values.astype(np.float32).astype(np.float64)
    return rounded


def case_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _verdict(
    fmt: Format,
    case: Case,
    weight: Any,
    kernel: str,
    device: str,
    batches: Sequence[Batch],
    choices: dict[str, np.ndarray],
    notes: tuple[str, ...],
) -> Verdict:
    beyond = {name: [batch.beyond(w) for batch in batches] for name, w in choices.items()}
    name = min(choices, key=lambda key: sum(int(wrong.sum()) for wrong in beyond[key]))
    w, wrong = choices[name], np.concatenate(beyond[name])
    dtype, how = batches[0].dtype, batches[0].how
    wants = [batch.against(w) for batch in batches]
    got = np.concatenate([batch.got for batch in batches])
    exact = np.concatenate([want.exact for want in wants])
    bound = np.concatenate([want.bound for want in wants])
    judged = np.isfinite(bound)
    right = round_to(exact, dtype)
    finite = np.isfinite(to_float(got, dtype)) & judged & np.isfinite(to_float(right, dtype))
    ulp = int(ulp_distance(got[finite], right[finite], dtype).max(initial=0))
    error = np.abs(to_float(got, dtype)[finite] - exact[finite])
    vote = Comparison(
        "exact product", got.size, wrong, int((~finite & judged).sum()), ulp, float(error.max(initial=0.0)),
        not wrong.any(), not wrong.any(), bool(same(got, right, dtype).all()),
    )  # fmt: skip
    if not judged.any():
        text = f"no output can be bounded: K = {w.shape[0]} is too large for {how}, or sums overflow"
        return Verdict("UNSUPPORTED", case, kernel, device, text)
    tokens = _sizes(batches)
    basis = f"weights {name}, M = {tokens}, {how}"
    if wrong.any():
        count = f"{int(wrong.sum())} of {wrong.size} outputs are beyond the bound, would need {ulp} ULP"
        failing = [batch for batch, bad in zip(batches, beyond[name], strict=True) if bad.any()]
        if _sizes(failing) != _sizes(batches):
            count += f", all with M = {_sizes(failing)}"
        return Verdict(
            "MISMATCH", case, kernel, device, f"{count} ({basis})",
            votes=(vote,), notes=notes, elements=got.size, causes=causes(fmt, weight, failing, choices),
            located=_located(batches, wants, beyond[name]),
        )  # fmt: skip
    summary = f"{ulp} ULP needed, within the bound of {basis}; {_strength(fmt, weight, batches, wants)}"
    kind = "EXACT" if vote.exact else "WITHIN"
    return Verdict(kind, case, kernel, device, summary, votes=(vote,), notes=notes, elements=got.size)


def _strength(fmt: Format, weight: Any, batches: Sequence[Batch], wants: Sequence[Bounded]) -> str:
    """How much of the weight these products can tell from a neighbouring code."""
    steps = fmt.unpack(weight).steps()
    steps = steps.T if fmt.inner == 1 else steps
    seen = np.zeros(steps.shape, bool)
    for batch, want in zip(batches, wants, strict=True):
        seen |= gemm_bound.visible(batch.x, steps, want.bound)
    share = f"one code that is off by one shows at {100 * seen.mean():.0f} % of the weights"
    return share if seen.all() else f"{share}, at the others with one-hot activations alone"


def _sizes(batches: Sequence[Batch]) -> str:
    return ", ".join(dict.fromkeys(str(len(batch.x)) for batch in batches))


def _first_of_each(batches: Sequence[Batch], sizes: Sequence[int]) -> list[Batch]:
    """The first product of each of so many tokens, as far as there is one."""
    found: dict[int, Batch] = {}
    for batch in batches:
        found.setdefault(len(batch.x), batch)
    return [found[size] for size in sizes if size in found]


def _spoiled_verdict(
    case: Case,
    kernel: str,
    device: str,
    bad: Spoiled,
    batch: Batch,
    used: np.ndarray,
    choices: dict[str, np.ndarray],
) -> Verdict | None:
    """The verdict of a product whose x is not finite, or None if it is right."""
    lost = bad.lost(to_float(batch.got, batch.dtype), used)
    if lost.any():
        text = f"{int(lost.sum())} outputs are finite though x is not ({bad.words})"
        return Verdict("NONFINITE_CLASS", case, kernel, device, text, causes=(fused_nonfinite.LOST,))
    others = bad.others()[:, None]
    beyond = min((batch.beyond(w) & others for w in choices.values()), key=lambda wrong: int(wrong.sum()))
    if not beyond.any():
        return None
    text = f"{int(beyond.sum())} outputs of tokens that are finite are beyond the bound ({bad.words})"
    kind = "MISMATCH" if np.isfinite(to_float(batch.got, batch.dtype)[beyond]).all() else "NONFINITE_CLASS"
    return Verdict(kind, case, kernel, device, text, causes=(fused_nonfinite.SPREAD,))


def _repeated_verdict(spread: Verdict, again: Batch, choices: dict[str, np.ndarray]) -> Verdict | None:
    """The verdict in place of ``spread`` if a finite x, which was right at first, is wrong now; or None."""
    beyond = min((again.beyond(w) for w in choices.values()), key=lambda wrong: int(wrong.sum()))
    if not beyond.any():
        return None
    text = (
        f"{int(beyond.sum())} of {beyond.size} outputs are beyond the bound when the function is called "
        f"again with M = {len(again.x)}; the first call was right"
    )
    return dataclasses.replace(spread, kind="MISMATCH", summary=text, causes=(fused_nonfinite.AGAIN,))


def _located(
    batches: Sequence[Batch], wants: Sequence[Bounded], beyond: Sequence[np.ndarray]
) -> tuple[Located, ...]:
    found: list[Located] = []
    for batch, want, wrong in zip(batches, wants, beyond, strict=True):
        right = round_to(want.exact, batch.dtype)
        for token, channel in np.argwhere(wrong)[: max(0, SHOWN - len(found))]:
            at = (int(token), int(channel))
            where = f"M = {batch.x.shape[0]}, token {token}, channel {channel}, bound {want.bound[at]:.3g}"
            found.append(
                Located(at, where, show(int(batch.got[at]), batch.dtype), show(int(right[at]), batch.dtype))
            )
    return tuple(found)
