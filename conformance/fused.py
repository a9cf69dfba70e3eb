"""Fused weight-only products as black boxes: the weight that ``gemm(x, weight)`` really uses.

A fused kernel never writes the decoded weight. With x one-hot, y is a row of it::

    y = x @ W      where the format's output is [K, N]    (``Format.inner`` 0)
    y = x @ W.T    where it is [N, K], as torch.nn.Linear (``Format.inner`` 1)

Two ways through the kernel are taken, because libraries have code of their own for each: one token
(M = 1), and M = 48, more than any tile of 32. Each call's y and x are checked. The recovered weight is then
judged as a dequantize function's result, by the same references and the same catalogue of faults.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from conformance.bits import from_bits, same
from conformance.errors import UsageError
from conformance.execute import Breach
from conformance.fused_calls import Caller
from conformance.fused_view import settle, view
from conformance.registry import FUSED, NO_REMARKS, Format, Kernel, Remarks, load_kernel
from kernels import Unsupported
from kernels._packed import PackedWeight, map_tensors
from oracles.spec.rounding import round_to

Gemm = Callable[[torch.Tensor, Any], torch.Tensor]

# Tokens of the second path: more than a tile of 32, and no whole number of them. The last token is x = 0.
MANY = 48
# Rows of a weight that are probed one by one as long as all of them are right.
SAMPLED = 32
# And otherwise: a wrong weight is explained whole. Each row is a call.
MOST = 1024

SIGN_OF_ZERO = "a product cannot show the sign of a zero weight: the other terms are zeros, and +0 + -0 = +0"
NONFINITE = "the weight has inf or NaN in this dtype, and 0 * inf = NaN spoils every sum it is in"


def about(fmt: Format) -> str:
    """What y is, in words."""
    return "y = x @ W" if fmt.inner == 0 else "y = x @ W.T"


def fused_kernel(fmt: Format, path: str) -> Kernel:
    """The kernel that judges the function ``path`` names by the weight that its products reveal.

    Raises:
        UsageError: the format has no products, or no such function.
    """
    if fmt.inner is None:
        raise UsageError(f"--fused: expected a format of weights, found {fmt.name}, which is no weight")
    function = load_kernel(path)
    probe = Probe(fmt, function)
    return Kernel(
        FUSED + path,
        probe,
        builtin=False,
        takes_out=False,
        view=view,
        remarks=lambda: probe.remarks,
    )


@dataclasses.dataclass(frozen=True)
class Path:
    """What one way through the kernel gave.

    Attributes:
        name: such as ``M = 1``.
        bits: recovered weight [K, N], rows that were not probed as in the spec; or None.
        wrong: whether it differs from the spec in more than the sign of a zero.
        error: why there is no weight, or None.
        words: state and extent, for the report.
    """

    name: str
    bits: np.ndarray | None
    wrong: bool
    error: BaseException | None
    words: str

    @property
    def unsupported(self) -> bool:
        return isinstance(self.error, Unsupported)


@dataclasses.dataclass
class Probe:
    """A fused function as a dequantize function. ``remarks`` are those of the last call."""

    fmt: Format
    function: Gemm
    remarks: Remarks = NO_REMARKS

    def __call__(self, weight: PackedWeight, *, dtype: torch.dtype) -> torch.Tensor:
        """The weight that the products use, of ``weight.output_shape``. Where the two paths differ, that
        of a wrong one; the remarks say which.

        Raises:
            Unsupported: the weight is no matrix or not finite, or the function says so on both paths.
            Breach: y or x is not as it should be.
        """
        self.remarks = NO_REMARKS
        if len(weight.output_shape) != 2:
            raise Unsupported(
                f"a product needs a weight of 2 dimensions, found {len(weight.output_shape)} of them"
            )
        want = round_to(self.fmt.unpack(map_tensors(weight, lambda _, t: t.detach().cpu())).values(), dtype)
        if self.fmt.inner == 1:
            want = np.ascontiguousarray(want.T)
        if not bool(torch.isfinite(from_bits(want, dtype)).all()):
            raise Unsupported(NONFINITE)
        paths = [self._one_by_one(weight, dtype, want), self._many(weight, dtype, want)]
        chosen = self._choose(paths)
        assert chosen.bits is not None
        unseen = not chosen.wrong and bool((want == 1 << (8 * dtype.itemsize - 1)).any())
        self.remarks = dataclasses.replace(self.remarks, relaxed=SIGN_OF_ZERO if unseen else "")
        bits = settle(chosen.bits, want)
        if self.fmt.inner == 1:
            bits = np.ascontiguousarray(bits.T)
        return from_bits(bits, dtype).to(weight.device)

    def _choose(self, paths: Sequence[Path]) -> Path:
        """The path to be judged: a failing one first. Raises what that one raised."""
        failing = [path for path in paths if path.wrong or (path.error and not path.unsupported)]
        usable = [path for path in paths if path.bits is not None]
        chosen = (failing or usable or list(paths))[0]
        refused = [path for path in paths if path.unsupported]
        if usable:
            notes = tuple(f"{path.name}: unsupported: {path.error}" for path in refused)
            self.remarks = Remarks(notes=notes)
        if failing:
            words = ", ".join(path.words for path in paths)
            self.remarks = dataclasses.replace(self.remarks, summary=words)
        if chosen.error is not None:
            raise chosen.error
        return chosen

    def _caller(self, weight: PackedWeight, dtype: torch.dtype, want: np.ndarray, rows: int) -> Caller:
        return Caller(self.function, weight, dtype, rows, *want.shape)

    def _one_by_one(self, weight: PackedWeight, dtype: torch.dtype, want: np.ndarray) -> Path:
        """M = 1: a sample of the rows, and all of them, or a thousand, once one is wrong."""
        n_inner = want.shape[0]
        got = want.copy()
        caller = self._caller(weight, dtype, want, 1)

        def run() -> str:
            caller([None])
            rows = sampled(n_inner)
            for k in rows:
                got[k] = caller([k])[0]
            if len(rows) < n_inner and differs(got, want, dtype).any():
                rows = sorted({*rows, *range(min(n_inner, MOST))})
                for k in rows:
                    got[k] = caller([k])[0]
            return "" if len(rows) == n_inner else f" ({len(rows)} of {n_inner} rows probed)"

        return _path("M = 1", run, caller, got, want, dtype)

    def _many(self, weight: PackedWeight, dtype: torch.dtype, want: np.ndarray) -> Path:
        """M = 48: one token of zeros and all rows in blocks of 47, the last filled with rows again."""
        n_inner = want.shape[0]
        got = want.copy()
        caller = self._caller(weight, dtype, want, MANY)
        first_wrong = MANY

        def run() -> str:
            nonlocal first_wrong
            if not n_inner:
                caller([None] * MANY)
            for start in range(0, n_inner, MANY - 1):
                rows = [(start + i) % n_inner for i in range(MANY - 1)]
                # The zeros come first: tokens beyond a tile that are never written are no bias.
                found = caller([None, *rows])[1:]
                bad = differs(found, want[rows], dtype).any(axis=1)
                # A row that is right at one place of x and wrong at another is wrong.
                for i in np.flatnonzero(bad)[::-1]:
                    got[rows[i]] = found[i]
                    first_wrong = min(first_wrong, int(i) + 1)
            return f" (from token {first_wrong} of x on)" if 1 < first_wrong < MANY else ""

        return _path(f"M = {MANY}", run, caller, got, want, dtype)


def differs(got: np.ndarray, want: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """Where bits differ in more than the sign of a zero."""
    magnitude = 2 ** (8 * dtype.itemsize - 1) - 1
    return ~same(got, want, dtype) & (((got | want) & magnitude) != 0)


def sampled(count: int) -> Sequence[int]:
    """At most :data:`SAMPLED` of so many rows: the first, the last, those at the edges of groups of 32 and
    others between, the same ones each time."""
    if count <= SAMPLED:
        return range(count)
    spread = {round(i * (count - 1) / (SAMPLED // 2 - 1)) for i in range(SAMPLED // 2)}
    edges = (k for block in range(1, count // 32 + 1) for k in (32 * block - 1, 32 * block))
    others = (k for k in (*edges, *range(count)) if k < count and k not in spread)
    rest = [k for k, _ in zip(dict.fromkeys(others), range(SAMPLED - len(spread)), strict=False)]
    return sorted(spread | set(rest))


def _path(
    name: str, run: Callable[[], str], caller: Caller, got: np.ndarray, want: np.ndarray, dtype: torch.dtype
) -> Path:
    """Run a path and say how it went; nothing that the function raises gets past."""
    try:
        extent = run()
        caller.finish()
    except Unsupported as refusal:
        return Path(name, None, False, refusal, f"{name} path unsupported")
    except Breach as breach:
        return Path(name, None, False, breach, f"{name} path wrong")
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # as in execute: a CRASH verdict
        words = f"{name} path raised {type(error).__name__} at {caller.where}"
        return Path(name, None, False, error, words)
    wrong = bool(differs(got, want, dtype).any())
    return Path(name, got, wrong, None, f"{name} path {'wrong' if wrong else 'right'}{extent}")
