"""Name what a wrong product does: a wrong weight of the catalogue, or activations with fewer bits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from conformance.bits import to_float
from conformance.faults import Context
from conformance.fused_activations import SIGNIFICANT
from conformance.fused_view import view
from conformance.registry import Format
from conformance.verdict import Cause
from oracles.spec.rounding import round_to


class Product(Protocol):
    """A product that was computed; see :class:`conformance.products.Batch`."""

    @property
    def x(self) -> np.ndarray: ...

    @property
    def dtype(self) -> torch.dtype: ...

    def beyond(self, w: np.ndarray, x: np.ndarray | None = None) -> np.ndarray: ...


def causes(
    fmt: Format, weight: Any, batches: Sequence[Product], choices: Mapping[str, np.ndarray]
) -> tuple[Cause, ...]:
    """Faults whose product gives every output of the batches within its bound."""
    found = (*_of_weight(fmt, weight, batches), *_of_activations(batches, choices))
    text = "cause unknown; the tests with one-hot activations show the weight itself"
    return found or (Cause("unknown", text),)


def _of_weight(fmt: Format, weight: Any, batches: Sequence[Product]) -> tuple[Cause, ...]:
    """Wrong weights, rounded or kept in float32."""
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
    return tuple(found)


def _nearest(dtype: torch.dtype) -> Callable[[np.ndarray], np.ndarray]:
    return lambda values: to_float(round_to(values, dtype), dtype)


def _tf32(values: np.ndarray) -> np.ndarray:
    """To the nearest of 11 bits, ties away from zero, as ``cvt.rna.tf32`` does."""
    fraction, exponent = np.frexp(values)
    return np.ldexp(np.copysign(np.floor(np.abs(fraction) * 2**11 + 0.5), values), exponent - 11)


def _cut(bits: int) -> Callable[[np.ndarray], np.ndarray]:
    """The leading bits: what a matrix unit reads of float32, or a shift makes."""

    def cut(values: np.ndarray) -> np.ndarray:
        fraction, exponent = np.frexp(values)
        return np.ldexp(np.trunc(fraction * 2**bits), exponent - bits)

    return cut


# Name, words, significant bits, rounding of exact values.
NARROW: tuple[tuple[str, str, int, Callable[[np.ndarray], np.ndarray]], ...] = (
    ("activation-in-bfloat16", "rounded to bfloat16", 8, _nearest(torch.bfloat16)),
    ("activation-in-bfloat16", "cut off to bfloat16", 8, _cut(8)),
    ("activation-in-float16", "rounded to float16", 11, _nearest(torch.float16)),
    ("activation-in-tf32", "rounded to TF32", 11, _tf32),
    ("activation-in-tf32", "cut off to TF32", 11, _cut(11)),
)


def _of_activations(batches: Sequence[Product], choices: Mapping[str, np.ndarray]) -> tuple[Cause, ...]:
    """x of fewer bits, with the weight as it is or of as many bits as x."""
    found: dict[str, Cause] = {}
    for name, words, bits, narrow in NARROW:
        if bits >= SIGNIFICANT[batches[0].dtype] or name in found:
            continue
        given = [narrow(batch.x) for batch in batches]
        weights = [(words, w) for w in choices.values()]
        weights += [(f"{words}, and the weight too", narrow(w)) for w in choices.values()]
        for text, w in weights:
            if not np.isfinite(w).all() or not all(np.isfinite(x).all() for x in given):
                continue
            if not any(batch.beyond(w, x).any() for batch, x in zip(batches, given, strict=True)):
                found[name] = Cause(
                    name,
                    f"x is {text} (every output is within the bound of this product)",
                    f"a loss of precision: up to 2**-{bits} of each activation, or twice that",
                    "multiply x in its own dtype; float32 matrix products need input_precision='ieee'",
                )
                break
    return tuple(found.values())
