"""Judge a fused kernel on random activations: y against the exact product, within the proven bound."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from conformance import gemm_bound
from conformance.bits import DTYPES, same, show, to_float, ulp_distance
from conformance.case import Case
from conformance.compare import Comparison
from conformance.execute import Breach, crash_kind, one_line
from conformance.faults import Context
from conformance.fused import NONFINITE, Probe
from conformance.fused_calls import Caller
from conformance.fused_view import view
from conformance.gemm_bound import Accumulation, Bounded
from conformance.harness import Checked, Failure, Harness
from conformance.materialize import materialize
from conformance.randomness import raw_ints
from conformance.registry import Format
from conformance.verdict import Cause, Located, Verdict
from kernels import Unsupported
from kernels._packed import map_tensors
from oracles.spec.rounding import round_to

TOKENS = (1, 2, 16, 33, 64)
SHOWN = 4
# The largest sum of sizes that activations are scaled to.
SIZE = 16.0
# Exponents that leave activations of 11 bits normal numbers, with room for their 2**-10.
EXPONENTS = {torch.float16: (-4, 14), torch.bfloat16: (-100, 100), torch.float32: (-100, 100)}


@dataclasses.dataclass(frozen=True)
class Batch:
    """One product: what was given, what came back and what is right."""

    x: np.ndarray
    got: np.ndarray
    dtype: torch.dtype
    how: Accumulation

    def beyond(self, w: np.ndarray) -> np.ndarray:
        """bool [M, N]: outputs further from x @ w than a right product can be."""
        want = self.against(w)
        with np.errstate(invalid="ignore"):
            near = np.abs(to_float(self.got, self.dtype) - want.exact) <= want.bound
        return ~near & np.isfinite(want.bound)

    def against(self, w: np.ndarray) -> Bounded:
        return gemm_bound.product(self.x, w, self.dtype, self.how)


def activations(label: str, tokens: int, w: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """x float64 [M, K]: eight bits each, either sign, scaled by a power of two so that the largest
    sum |x||w| is just under 16 (as near as the dtype lets it). A function of ``label`` and the sizes."""
    shape = (tokens, w.shape[0])
    drawn = raw_ints(f"activations/{label}/{tokens}", tokens * w.shape[0], 511) - 255
    x = drawn.reshape(shape) / 256.0
    largest = float(np.abs(w).sum(axis=0).max(initial=0.0))
    if not largest:
        return x
    low, high = EXPONENTS[dtype]
    return x * 2.0 ** min(high, max(low, math.floor(math.log2(SIZE / largest))))


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
        on_device = map_tensors(weight, lambda _, t: t.clone().to(run.runtime.device))
        how = dataclasses.replace(run.accumulation, truncating=run.runtime.device.type == "cuda")
        run.note("kernel", case, kernel)
        batches, refusals = [], []
        w = next(iter(choices.values()))
        for tokens in TOKENS:
            caller = Caller(probe.function, on_device, dtype, tokens, *w.shape)
            x = activations(case.id, tokens, w, dtype)
            try:
                got = caller.on(x)
            except Unsupported as refusal:
                refusals.append(f"M = {tokens}: unsupported: {refusal.reason}")
                continue
            except Breach as breach:
                kind = "INPUT_MUTATED" if breach.mutated else "MISMATCH"
                return plain(kind, f"wrong result: {breach}", causes=breach.causes)
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                kind = "CRASH_COMPILE" if crash_kind(error) == "compile" else "CRASH_LAUNCH"
                return plain(kind, f"the kernel raised {one_line(error)} at {caller.where}")
            batches.append(Batch(x, got, dtype, how))
        if not batches:
            return plain("UNSUPPORTED", refusals[0].partition("unsupported: ")[2])
        return Checked(_verdict(fmt, case, weight, kernel.name, device, batches, choices, tuple(refusals)))

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
    tokens = ", ".join(str(batch.x.shape[0]) for batch in batches)
    basis = f"weights {name}, M = {tokens}, {how}"
    if wrong.any():
        count = f"{int(wrong.sum())} of {wrong.size} outputs are beyond the bound, would need {ulp} ULP"
        failing = [batch for batch, bad in zip(batches, beyond[name], strict=True) if bad.any()]
        if len(failing) < len(batches):
            count += f", all with M = {', '.join(str(len(batch.x)) for batch in failing)}"
        return Verdict(
            "MISMATCH", case, kernel, device, f"{count} ({basis})",
            votes=(vote,), notes=notes, elements=got.size, causes=_causes(fmt, weight, failing),
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


def _causes(fmt: Format, weight: Any, batches: Sequence[Batch]) -> tuple[Cause, ...]:
    """Faults whose weight, rounded or kept in float32, gives every output of the batches within its bound."""
    found: list[Cause] = []
    model = fmt.unpack(weight)
    for dtype in dict.fromkeys((batches[0].dtype, torch.float32)):
        ctx = Context(weight, model, dtype)
        for fault in view(fmt).faults:
            bits = fault.decode(ctx)
            known = any(cause.name == fault.name for cause in found)
            if known or bits is None or bits.shape != tuple(weight.output_shape):
                continue
            w = to_float(bits.T if fmt.inner == 1 else bits, dtype)
            if np.isfinite(w).all() and not any(batch.beyond(w).any() for batch in batches):
                text = f"{fault.arithmetic} (every output is within the bound of this weight's product)"
                found.append(Cause(fault.name, text, fault.effect, fault.fix, fault.links))
    text = "cause unknown; the tests with one-hot activations show the weight itself"
    return tuple(found) or (Cause("unknown", text),)


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
