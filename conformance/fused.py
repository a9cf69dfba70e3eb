"""Fused weight-only products as black boxes: the weight that ``gemm(x, weight)`` really uses.

A fused kernel never writes the decoded weight. With x one-hot, y is a row of it::

    y = x @ W      where the format's output is [K, N]    (``Format.inner`` 0)
    y = x @ W.T    where it is [N, K], as torch.nn.Linear (``Format.inner`` 1)

Two ways through the kernel are taken, because libraries have code of their own for each: one token
(M = 1), and M = 48, more than any tile of 32. Each call's y and x are checked. The recovered weight is then
judged as a dequantize function's result, by the same references and the same catalogue of faults.

The interpreter takes tens of milliseconds for each program of each call, so there a probe is ``brief``: fewer
rows with M = 1, and blocks of a long K with M = 48, as long as all are right.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from conformance.bits import from_bits, same
from conformance.errors import UsageError
from conformance.execution import Breach
from conformance.fused_calls import Caller
from conformance.fused_view import settle, view
from conformance.loading import load_kernel
from conformance.registry import FUSED, NO_REMARKS, Format, Kernel, Remarks
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
# The same of a brief probe: rows with M = 1, the least when it is called again on a weight that was right;
# and blocks of rows with M = 48. So many that they times K stay below a limit, and four at least.
BRIEF = 12
LEAST = 4
WORK = {1: 4_000, MANY: 8_000}

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
    """A fused function as a dequantize function. ``remarks`` are those of the last call; ``brief``: the
    calls are slow."""

    fmt: Format
    function: Gemm
    remarks: Remarks = NO_REMARKS
    brief: bool = False
    _right: tuple[PackedWeight, torch.dtype] | None = None

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
        # With M = 48 all rows are a few calls: if they are wrong there, M = 1 need not show them all.
        many = self._many(weight, dtype, want)
        one = self._one_by_one(weight, dtype, want, many.bits if many.wrong else None)
        chosen = self._choose([one, many])
        right = not (chosen.wrong or chosen.error)
        self._right = (weight, dtype) if right else None
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

    def _rows(self, weight: PackedWeight, dtype: torch.dtype, n_inner: int) -> int:
        """How many rows M = 1 is shown at first."""
        if not self.brief:
            return SAMPLED
        known = self._right is not None and self._right[0] is weight and self._right[1] is dtype
        return LEAST if known else min(BRIEF, max(LEAST, WORK[1] // max(1, n_inner)))

    def _one_by_one(
        self, weight: PackedWeight, dtype: torch.dtype, want: np.ndarray, other: np.ndarray | None
    ) -> Path:
        """M = 1: a sample of the rows. Once one is wrong, the others are as in ``other`` (a wrong weight
        [K, N], or None) if the sample is; else all are probed, or a thousand."""
        n_inner = want.shape[0]
        got = want.copy()
        caller = self._caller(weight, dtype, want, 1)

        def run() -> str:
            caller([None])
            rows = sampled(n_inner, self._rows(weight, dtype, n_inner))
            for k in rows:
                got[k] = caller([k])[0]
            if len(rows) < n_inner and differs(got, want, dtype).any():
                if other is not None and not differs(got[list(rows)], other[list(rows)], dtype).any():
                    got[:] = other
                else:
                    rows = sorted({*rows, *range(min(n_inner, MOST))})
                    for k in rows:
                        got[k] = caller([k])[0]
            return _extent(len(rows), n_inner)

        return _path("M = 1", run, caller, got, want, dtype)

    def _many(self, weight: PackedWeight, dtype: torch.dtype, want: np.ndarray) -> Path:
        """M = 48: one token of zeros and all rows in blocks of 47, the last filled with rows again. A brief
        probe leaves blocks of a long K out as long as the others are right."""
        n_inner = want.shape[0]
        got = want.copy()
        caller = self._caller(weight, dtype, want, MANY)
        first_wrong = MANY

        def block(start: int) -> None:
            nonlocal first_wrong
            rows = [(start + i) % n_inner for i in range(MANY - 1)]
            # The zeros come first: tokens beyond a tile that are never written are no bias.
            found = caller([None, *rows])[1:]
            bad = differs(found, want[rows], dtype).any(axis=1)
            # A row that is right at one place of x and wrong at another is wrong.
            for i in np.flatnonzero(bad)[::-1]:
                got[rows[i]] = found[i]
                first_wrong = min(first_wrong, int(i) + 1)

        def run() -> str:
            if not n_inner:
                caller([None] * MANY)
            starts = range(0, n_inner, MANY - 1)
            most = max(LEAST, WORK[MANY] // n_inner) if self.brief and n_inner else len(starts)
            shown = [starts[i] for i in sampled(len(starts), most)]
            for start in shown:
                block(start)
            if len(shown) < len(starts) and differs(got, want, dtype).any():
                for start in sorted(set(starts) - set(shown)):
                    block(start)
                shown = list(starts)
            if 1 < first_wrong < MANY:
                return f" (from token {first_wrong} of x on)"
            return _extent(sum(min(MANY - 1, n_inner - start) for start in shown), n_inner)

        return _path(f"M = {MANY}", run, caller, got, want, dtype)


def _extent(probed: int, count: int) -> str:
    return "" if probed == count else f" ({probed} of {count} rows probed)"


def differs(got: np.ndarray, want: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """Where bits differ in more than the sign of a zero."""
    magnitude = 2 ** (8 * dtype.itemsize - 1) - 1
    return ~same(got, want, dtype) & (((got | want) & magnitude) != 0)


def sampled(count: int, most: int = SAMPLED) -> Sequence[int]:
    """At most ``most`` (4 or more) of so many rows: the first, the last, those at the edges of groups of 32
    and others between, the same ones each time."""
    if count <= most:
        return range(count)
    spread = {round(i * (count - 1) / (most // 2 - 1)) for i in range(most // 2)}
    edges = (k for block in range(1, count // 32 + 1) for k in (32 * block - 1, 32 * block))
    others = (k for k in (*edges, *range(count)) if k < count and k not in spread)
    rest = [k for k, _ in zip(dict.fromkeys(others), range(most - len(spread)), strict=False)]
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
