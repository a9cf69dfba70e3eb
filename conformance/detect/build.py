"""A layer's tensors as the project's packed type, under a named reading."""

from __future__ import annotations

from typing import Any, cast

import torch

from conformance.detect.layers import Layer
from conformance.detect.model import Reading, Report
from conformance.detect.source import Checkpoint
from conformance.errors import UsageError
from kernels._packed import PackedWeight


def build(checkpoint: Checkpoint, layer: Layer, reading: Reading) -> PackedWeight:
    """Load one layer and make the packed weight that its reading says it is.

    Raises:
        UsageError: the format has no kernel here, or the tensors are not those of the
            reading (deep checks included); names layer and field.
    """
    if not reading.has_kernel:
        raise UsageError(f"{layer.prefix}: expected a format with a kernel, found {reading.name}")
    try:
        weight = _build(checkpoint, layer, reading)
        weight.validate()
    except (KeyError, TypeError, ValueError) as error:
        text = (
            f"{error.args[0]}: expected such a field, found none"
            if isinstance(error, KeyError)
            else str(error)
        )
        raise UsageError(f"{layer.prefix}, read as {reading.name}: {text}") from error
    return weight


def _build(checkpoint: Checkpoint, layer: Layer, reading: Reading) -> PackedWeight:
    def tensor(field: str) -> torch.Tensor:
        layer.fields[field]
        return checkpoint.load(layer.name(field))

    # The kernels' types are imported here: they read TRITON_INTERPRET when first imported.
    size = cast(int, reading.group_size)
    if reading.format == "gptq":
        from kernels.gptq import GPTQWeight

        return GPTQWeight(
            qweight=tensor("qweight"),
            qzeros=tensor("qzeros"),
            scales=tensor("scales"),
            g_idx=tensor("g_idx") if "g_idx" in layer.fields else None,
            bits=reading.bits,
            group_size=size,
            zeros=cast(Any, reading.zeros),
            in_features=reading.rows,
        )
    if reading.format == "awq_cols":
        from kernels.awq_cols import AWQColsWeight

        return AWQColsWeight(tensor("qweight"), tensor("qzeros"), tensor("scales"), size)
    if reading.format == "awq_rows":
        from kernels.awq_rows import AWQRowsWeight

        return AWQRowsWeight(tensor("qweight"), tensor("qzeros"), tensor("scales"), size)
    if reading.format == "awq_quads":
        from kernels.awq_quads import AWQQuadsWeight

        return AWQQuadsWeight(tensor("qweight"), tensor("scales"), tensor("qzeros"), size)
    if reading.format == "llm_int8":
        from kernels.llm_int8 import LLMInt8Weight

        return LLMInt8Weight(tensor("weight"), tensor("SCB"))
    return _four_bit(checkpoint, layer, reading)


def _four_bit(checkpoint: Checkpoint, layer: Layer, reading: Reading) -> PackedWeight:
    from conformance.detect.blockwise import STATE, read_state
    from kernels._blockwise import NestedAbsmax
    from kernels.fp4 import FP4Weight
    from kernels.nf4 import NF4Weight

    def tensor(field: str) -> torch.Tensor:
        layer.fields[f"weight.{field}"]
        return checkpoint.load(layer.name(f"weight.{field}"))

    report = Report(layer.prefix, layer.family)
    state = read_state(checkpoint, layer, STATE + reading.format, report)
    if state is None:
        raise ValueError(report.damage[0])
    nested = None
    if reading.nested:
        # The offset is the one scalar that the file has as JSON: a float32's repr, so exact.
        nested = NestedAbsmax(
            tensor("nested_quant_map"),
            tensor("nested_absmax"),
            torch.tensor(float(state["nested_offset"]), dtype=torch.float32),
            state["nested_blocksize"],
        )
    kind = NF4Weight if reading.format == "nf4" else FP4Weight
    packed = checkpoint.load(layer.name("weight"))
    # Some writers store the packed bytes flat or as a row.
    return kind(
        packed.reshape(-1, 1),
        tensor("absmax"),
        tensor("quant_map"),
        tuple(state["shape"]),
        state["blocksize"],
        nested,
    )
