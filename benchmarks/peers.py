"""What others do with the same weight: upstream's own functions, and a plain formula in torch.

No other library is imported before it is asked for. A peer's figure is shown whatever its bits are,
with how many differ: it is not the one under test. One of the peers decodes nothing: the limit that the
device sets (:mod:`benchmarks.limits`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from benchmarks import limits, references
from benchmarks.cases import BenchCase
from benchmarks.results import LIMIT
from conformance.errors import UsageError
from kernels._packed import PackedWeight
from kernels.awq_cols import AWQColsWeight
from kernels.fp4 import FP4Weight
from kernels.gptq import GPTQWeight
from kernels.nf4 import NF4Weight
from oracles.autoawq import upstream_module
from oracles.bnb import quant_state
from oracles.upstream import hidden, load

Call = Callable[[], torch.Tensor]
Prepare = Callable[[Any, torch.dtype], Call]


@dataclasses.dataclass(frozen=True)
class Peer:
    """Attributes: name; formats it decodes, none for all; dtypes it gives."""

    name: str
    formats: tuple[str, ...]
    dtypes: tuple[str, ...]

    @property
    def decodes(self) -> bool:
        """Whether its output is to be looked at."""
        return True

    def read(self, weight: PackedWeight) -> PackedWeight:
        """The weight as this peer reads it."""
        return weight

    def choices(
        self, weights: Sequence[PackedWeight], dtype: torch.dtype, outs: Sequence[torch.Tensor]
    ) -> list[list[Call]]:
        """Calls to time, one a weight; where there are several lists of them, the fastest counts."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Decoder(Peer):
    """Attributes: prepare: what to call for a weight, whose result is the output; adapt: see
    :meth:`Peer.read`; upstream: whether it is another library's code, which must not see this checkout's
    package ``kernels``."""

    prepare: Prepare
    adapt: Callable[[Any], PackedWeight] = lambda weight: weight
    upstream: bool = True

    def read(self, weight: PackedWeight) -> PackedWeight:
        return self.adapt(weight)

    def choices(
        self, weights: Sequence[PackedWeight], dtype: torch.dtype, outs: Sequence[torch.Tensor]
    ) -> list[list[Call]]:
        # Upstream libraries greet on standard output when they are imported.
        with (
            hidden() if self.upstream else contextlib.nullcontext(),
            contextlib.redirect_stdout(sys.stderr),
        ):
            calls = [self.prepare(self.adapt(weight), dtype) for weight in weights]
            calls[0]()  # whatever upstream imports late is imported now
        return [_kept(calls)]


class Limit(Peer):
    """Kernels that decode nothing and write into ``outs``."""

    @property
    def decodes(self) -> bool:
        return False

    def choices(
        self, weights: Sequence[PackedWeight], dtype: torch.dtype, outs: Sequence[torch.Tensor]
    ) -> list[list[Call]]:
        return limits.candidates(weights, outs)


def _kept(calls: Sequence[Call]) -> list[Call]:
    """The same calls, which keep what they return until they are made again.

    Else the allocator gives every call the memory that the one before gave back: an output that fits into
    the L2 stays there and is never written to memory.
    """
    held: dict[int, torch.Tensor] = {}

    def keeping(index: int, call: Call) -> torch.Tensor:
        held[index] = call()
        return held[index]

    return [functools.partial(keeping, index, call) for index, call in enumerate(calls)]


def _bitsandbytes(weight: Any, dtype: torch.dtype) -> Call:
    functional: Any = load("bitsandbytes.functional")
    if isinstance(weight, (NF4Weight, FP4Weight)):
        state = quant_state(weight, dtype, "nf4" if isinstance(weight, NF4Weight) else "fp4")
        return lambda: functional.dequantize_4bit(weight.packed, state)
    state = quant_state(weight, dtype)
    return lambda: functional.dequantize_blockwise(weight.packed, state)


def _bitsandbytes_rows(weight: Any, dtype: torch.dtype) -> Call:
    functional: Any = load("bitsandbytes.functional")
    return lambda: functional.int8_vectorwise_dequant(weight.codes, weight.absmax)


def _autoawq_triton(weight: AWQColsWeight, dtype: torch.dtype) -> Call:
    module: Any = upstream_module("awq.modules.triton.gemm")
    return lambda: module.awq_dequantize_triton(weight.qweight, weight.scales, weight.qzeros)


def _autoawq_torch(weight: AWQColsWeight, dtype: torch.dtype) -> Call:
    module: Any = upstream_module("awq.utils.packing_utils")
    return lambda: module.dequantize_gemm(weight.qweight, weight.qzeros, weight.scales, 4, weight.group_rows)


def _gptqmodel_triton(weight: GPTQWeight, dtype: torch.dtype) -> Call:
    module: Any = load("gptqmodel.nn_modules.triton_utils.dequant")
    g_idx = weight.g_idx
    if g_idx is None:
        g_idx = torch.arange(weight.n_rows, dtype=torch.int32, device=weight.device) // weight.group_rows
    maxq = 2**weight.bits - 1
    return lambda: module.dequant(
        dtype, weight.qweight, weight.scales, weight.qzeros, g_idx, weight.bits, 32, maxq
    )


def _eager(weight: PackedWeight, dtype: torch.dtype) -> Call:
    return functools.partial(references.formula, weight, dtype)


@functools.lru_cache(maxsize=1)
def _compiled_formula(
    function: Callable[..., torch.Tensor], shape: tuple[int, ...], dtype: torch.dtype
) -> Callable[..., torch.Tensor]:
    # One function serves many variants and sizes: what was compiled before counts against the limit
    # of recompilations, after which dynamo goes on eagerly without a word.
    torch.compiler.reset()
    return torch.compile(function, dynamic=False, fullgraph=True)


def _compiled(weight: PackedWeight, dtype: torch.dtype) -> Call:
    formula = _compiled_formula(references.find_formula(weight), weight.output_shape, dtype)
    return functools.partial(formula, weight, dtype)


ALL = ("fp16", "bf16", "fp32")
PEERS = (
    Decoder("bitsandbytes", ("nf4", "fp4", "blockwise8"), ALL, _bitsandbytes),
    Decoder("bitsandbytes", ("llm_int8",), ("fp32",), _bitsandbytes_rows),
    # It computes and answers in the dtype of the scales, which checkpoints have in float16.
    Decoder("AutoAWQ Triton", ("awq_cols",), ("fp16",), _autoawq_triton),
    Decoder("AutoAWQ torch", ("awq_cols",), ("fp16",), _autoawq_torch),
    # It reads stored zeros as they are: the same words, which then mean other zeros.
    Decoder(
        "GPTQModel Triton",
        ("gptq",),
        ALL,
        _gptqmodel_triton,
        lambda weight: dataclasses.replace(weight, zeros="v2"),
    ),
    Decoder("torch eager", (), ALL, _eager, upstream=False),
    Decoder("torch.compile", (), ("fp16",), _compiled, upstream=False),
    Limit(LIMIT, (), ALL),
)
NAMES = tuple(dict.fromkeys(peer.name for peer in PEERS))


def find_peers(names: Sequence[str]) -> tuple[Peer, ...]:
    """Peers of these names; all of them for no name.

    Raises:
        UsageError: a name of none.
    """
    for name in names:
        if name not in NAMES:
            raise UsageError(f"peer: expected one of {', '.join(NAMES)}, found {name!r}")
    return tuple(peer for peer in PEERS if not names or peer.name in names)


def peers_of(case: BenchCase, peers: Sequence[Peer]) -> tuple[Peer, ...]:
    """Those of ``peers`` that have an answer for the format and dtype of a case."""
    return tuple(
        peer
        for peer in peers
        if (not peer.formats or case.format in peer.formats) and case.dtype in peer.dtypes
    )
