"""Judge an output that is there already, of a kernel that this process cannot call.

::

    from conformance.standalone import diagnose
    from kernels.gptq import GPTQWeight

    weight = GPTQWeight(qweight, qzeros, scales, None, bits=4, group_size=128, zeros="v1")
    verdict = diagnose("gptq", weight, output)
    print(verdict.kind, verdict.summary, verdict.reading, verdict.causes)

What needs a kernel to run is not seen: writes outside of the output, unwritten elements, results that
change from run to run.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch

from conformance.bits import NAMES, same, to_bits
from conformance.case import Case
from conformance.detect.model import Reading
from conformance.detect.verify import case_of
from conformance.errors import UsageError
from conformance.execution import Execution
from conformance.given_output import not_plain
from conformance.harness import Checked, Harness
from conformance.investigate import look_into
from conformance.judge import Judge, exact
from conformance.product_case import product_fields
from conformance.registry import Format, find_format
from conformance.runtime import Runtime
from conformance.verdict import Cause, Verdict
from kernels._packed import OUTPUT_DTYPES, PackedWeight, describe, map_tensors

TRANSPOSED = Cause(
    "transposed",
    "the output is right once it is transposed: element [i, j] has the value of [j, i] (reproduces the whole "
    "output)",
    "a matrix product takes rows for columns; with a square weight nothing else tells",
    "swap the strides of the store, or transpose the result",
)


def diagnose(
    fmt_name: str,
    weight: PackedWeight,
    got: torch.Tensor,
    *,
    source: str = "the given tensor",
    where: str = "",
    harness: Harness | None = None,
) -> Verdict:
    """Verdict of an output that some kernel gave for a packed weight.

    Args:
        fmt_name: id of a format.
        weight: packed weight of that format's type; it is not written.
        got: float16, bfloat16 or float32, of ``weight.output_shape``. A transposed output is
            accepted if that alone is wrong with it, and is then a ``MISMATCH`` with the cause
            ``transposed``.
        source: name of the output in the report.
        where: where it was, for the report; its device if empty.
        harness: asks its oracles too; without one the spec model alone is the reference.

    Returns:
        The verdict, with located elements, causes and measures. It is ``EXACT`` if every bit is right.

    Raises:
        UsageError: unknown format, a weight of another type or that its own check refuses, an output
            of another dtype or shape. Names field, expected and found.
    """
    fmt = find_format(fmt_name)
    _check(fmt, weight, got)
    weight = map_tensors(weight, lambda _, tensor: tensor.detach().cpu())
    dtype = got.dtype
    try:
        known = exact(fmt, weight, dtype)
    except (IndexError, ValueError) as error:
        raise UsageError(f"weight: expected values in range, found: {_in_depth(weight) or error}") from error
    want = known.bits
    bits = to_bits(got)
    case = case_for(fmt, weight, NAMES[dtype])
    where = where or str(got.device)
    transposed = want.ndim == 2 and _same(bits.reshape(-1), want.T.reshape(-1), dtype)
    if bits.shape != want.shape:
        if not transposed or bits.shape != want.T.shape:
            raise UsageError(_wrong_shape(bits, want, dtype))
        summary = (
            f"wrong result: expected shape {list(want.shape)}, found {list(bits.shape)}, which is transposed"
        )
        return Verdict("MISMATCH", case, source, where, summary, causes=(TRANSPOSED,), elements=want.size)
    answers = () if harness is None else harness.ask(fmt, case, weight, dtype, want)
    execution = Execution(bits=bits)
    verdict = Judge(fmt, source, where)(case, weight, dtype, execution, answers, known)
    verdict = look_into(fmt, Checked(verdict, weight, execution)).verdict
    if verdict.failed and transposed and want.size:
        verdict = dataclasses.replace(verdict, causes=(TRANSPOSED, *verdict.causes))
    return verdict


def case_for(fmt: Format, weight: Any, out: str) -> Case:
    """A case with the weight's sizes and conventions. The tensors are the weight's, not the case's."""
    harness = Harness(Runtime(torch.device("cpu"), True), {fmt.name: fmt}, {})
    case = case_of(harness, _reading(fmt, weight), weight, out).replace(**product_fields(fmt, weight))
    if not hasattr(weight, "granularity"):
        return case
    per = {"channel": "row" if weight.axis == 0 else "column"}.get(weight.granularity, weight.granularity)
    zero = weight.zero_point
    return case.replace(
        per=per,
        codes=describe(weight.codes.dtype),
        range="narrow" if weight.narrow_range else "full",
        zero="none" if zero is None else "same" if zero.dtype == weight.codes.dtype else "int32",
        sdtype=NAMES[weight.scale.dtype],
    )


def _reading(fmt: Format, weight: Any) -> Reading:
    """The weight's sizes under the names that detection has for them."""
    shape = tuple(weight.output_shape)
    return Reading(
        fmt.name,
        rows=getattr(weight, "n_rows", shape[0] if shape else 1),
        cols=getattr(weight, "n_outputs", shape[-1] if shape else 1),
        bits=getattr(weight, "bits", 4),
        group_size=getattr(weight, "group_size", getattr(weight, "blocksize", None)),
        zeros=getattr(weight, "zeros", None),
        nested=getattr(weight, "nested", None) is not None,
    )


def _check(fmt: Format, weight: PackedWeight, got: torch.Tensor) -> None:
    if not isinstance(weight, fmt.weight_type):
        raise UsageError(f"weight: expected {fmt.weight_type.__name__}, found {type(weight).__name__}")
    try:
        weight.validate()
    except (TypeError, ValueError) as error:
        raise UsageError(f"weight, {error}") from error
    groups = getattr(weight, "g_idx", None)
    if groups is not None and groups.numel():
        low, high, count = int(groups.min()), int(groups.max()), weight.scales.shape[0]  # type: ignore[attr-defined]
        if low < 0 or high >= count:
            worst = low if low < 0 else high
            raise UsageError(f"weight, g_idx: expected groups 0 to {count - 1}, found {worst}")
    reason = not_plain(got) if isinstance(got, torch.Tensor) else type(got).__name__
    if reason:
        raise UsageError(f"got: expected a plain tensor, found {reason}")
    if got.dtype not in OUTPUT_DTYPES:
        raise UsageError(f"got: expected dtype {describe(OUTPUT_DTYPES)}, found {describe(got.dtype)}")


def _in_depth(weight: PackedWeight) -> str:
    """What the check that reads values says, such as a group that is not there."""
    try:
        weight.validate(deep=True)
    except (TypeError, ValueError) as error:
        return str(error)
    return ""


def _same(got: np.ndarray, want: np.ndarray, dtype: torch.dtype) -> bool:
    return got.shape == want.shape and bool(same(got, want, dtype).all())


def _wrong_shape(bits: np.ndarray, want: np.ndarray, dtype: torch.dtype) -> str:
    text = f"got: expected shape {list(want.shape)}, found {list(bits.shape)}"
    if bits.shape == want.shape[::-1]:
        n_wrong = int(np.count_nonzero(~same(bits.T, want, dtype)))
        return (
            f"{text}, which is transposed, and {n_wrong} of {want.size} elements differ once it is turned: "
            "give the transpose (--transposed) to have it looked into"
        )
    if bits.size != want.size:
        return f"{text}, and no transposition of it fits"
    order = "are those of" if _same(bits.reshape(-1), want.reshape(-1), dtype) else "differ from"
    return f"{text} with as many elements, which taken in order {order} the right output"
