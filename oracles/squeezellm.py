"""SqueezeLLM: recorded answers, because there is no package to call; and what else can be called.

==================== ==================== ==========================================================
oracle               kind                 answers
==================== ==================== ==========================================================
``squeezellm``       recorded             the nine weights of ``oracles/recorded/squeezellm.txt``
``torchao``          call                 weights without outliers and full rows: torchao's lookup of
                                          a table a column, on codes that compressed-tensors unpacked
``autogptq``         (packs only)         packs codes: the bits of GPTQ's ``qweight``
``compressed-tensors`` (packs only)       packs codes: its own packer, of the same layout
==================== ==================== ==========================================================
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from kernels._packed import flat, named_tensors
from kernels.squeezellm import SqueezeLLMWeight
from oracles import autogptq, compressed_tensors
from oracles.base import Declined, Oracle, Provenance
from oracles.spec.rounding import numpy_bytes
from oracles.upstream import Missing, hidden, load, version_of

RECORDED = Path(__file__).parent / "recorded" / "squeezellm.safetensors"
REVISION = "a5d71f3"
TORCHAO_TESTED = "0.18.0"

_CODEBOOK = "torchao.prototype.quantization.codebook_coreml.codebook_ops"
_HELPERS = "compressed_tensors.compressors.pack_quantized.helpers"
_FIELDS = ("qweight", "lookup_table", "rows", "cols", "vals", "full_rows", "full_row_indices")


# --- recorded ----------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class RecordedCase:
    """One recorded weight.

    Attributes:
        name: of the case in the file.
        weight: as packed by the original project.
        codes: uint8 [K, N], what it packed.
        answer: float32 [K, N], its kernels' answer.
    """

    name: str
    weight: SqueezeLLMWeight
    codes: torch.Tensor
    answer: torch.Tensor


# Of the file, which is never rewritten: a damaged one must not look like a wrong upstream.
SHA256 = "f6be894ae3392bd3b9f101d484cf23d3d0ed18dcf1c5c80794c139abc34ea69e"
NAMES = (
    "w4",
    "w3",
    "w4_k256_n384",
    "w3_k384_n256",
    "w4_dup",
    "w4_sparse",
    "w3_sparse",
    "w4_hybrid",
    "w3_hybrid",
)


def recorded_names() -> tuple[str, ...]:
    """Names of the recorded cases, in the file's order."""
    return NAMES


@functools.cache
def _damage() -> str | None:
    """What is wrong with the file, or None."""
    try:
        found = hashlib.sha256(RECORDED.read_bytes()).hexdigest()
    except OSError as error:
        return f"expected the recorded answers in oracles/recorded/{RECORDED.name}, found {error.strerror}"
    if found != SHA256:
        return f"expected oracles/recorded/{RECORDED.name} as it was recorded, found it altered (sha256)"
    return None


@functools.cache
def _parameters() -> dict[str, dict[str, Any]]:
    with safe_open(RECORDED, "pt") as file:
        return json.loads(file.metadata()["cases"])


@functools.lru_cache(maxsize=16)
def recorded_case(name: str) -> RecordedCase:
    """One recorded case, on the CPU; its tensors are shared: do not write them.

    Raises:
        KeyError: no case of that name.
        ValueError: the file is missing or damaged.
    """
    damage = _damage()
    if damage is not None:
        raise ValueError(damage)
    parameters = _parameters()[name]
    with safe_open(RECORDED, "pt") as file:
        stored = set(file.keys())
        tensors = {
            field: file.get_tensor(f"{name}.{field}") for field in _FIELDS if f"{name}.{field}" in stored
        }
        return RecordedCase(
            name=name,
            weight=SqueezeLLMWeight(bits=int(parameters["bits"]), **tensors),
            codes=file.get_tensor(f"{name}.codes"),
            answer=file.get_tensor(f"{name}.weight"),
        )


def digest(weight: SqueezeLLMWeight) -> str:
    """sha256 over names, dtypes, shapes and bytes of the packed tensors, and the bit width."""
    found = hashlib.sha256(f"bits={weight.bits}".encode())
    for name, tensor in named_tensors(weight):
        found.update(f";{name} {tensor.dtype} {list(tensor.shape)}:".encode())
        found.update(numpy_bytes(tensor).tobytes())
    return found.hexdigest()


@functools.cache
def _by_digest() -> dict[str, str]:
    return {digest(recorded_case(name).weight): name for name in recorded_names()}


@functools.cache
def _recorded_shapes() -> frozenset[tuple[int, ...]]:
    return frozenset(recorded_case(name).weight.output_shape for name in recorded_names())


def _dequantize_recorded(weight: SqueezeLLMWeight, dtype: torch.dtype) -> torch.Tensor:
    known = weight.output_shape in _recorded_shapes()  # hashing every drawn weight is not needed
    name = _by_digest().get(digest(weight)) if known else None
    if name is None:
        raise Declined("recorded vectors only")
    # The original layer sums in float32 and ends with ``y.to(dtype)`` of its input.
    return recorded_case(name).answer.to(weight.device).to(dtype)


def _missing_recorded(device: torch.device) -> str | None:
    return _damage()


SQUEEZELLM = Oracle(
    name="squeezellm",
    provenance=lambda: Provenance(
        "SqueezeLLM", REVISION, REVISION, "quant_cuda.vecquant*matmul*_nuq_perchannel", "recorded"
    ),
    missing=_missing_recorded,
    dequantize=_dequantize_recorded,
)


# --- a lookup by torchao -------------------------------------------------------------------


def _missing_torchao(device: torch.device) -> str | None:
    try:
        load(_HELPERS)
        load(_CODEBOOK)
    except Missing as error:
        return error.reason
    return None


def unpack_codes(weight: SqueezeLLMWeight) -> torch.Tensor:
    """Codes int64 [K, N] by compressed-tensors' ``unpack_from_int32``, on the weight's device."""
    n_rows, n_cols = weight.output_shape
    # One word a column would keep the strides of the transposition, which upstream cannot view.
    packed = flat(weight.qweight.t()).reshape(n_cols, -1)
    signed = load(_HELPERS).unpack_from_int32(packed, weight.bits, torch.Size((n_cols, n_rows)))
    return (signed.to(torch.int64) + 2 ** (weight.bits - 1)).t().contiguous()


def _dequantize_torchao(weight: SqueezeLLMWeight, dtype: torch.dtype) -> torch.Tensor:
    if weight.rows is not None or weight.full_rows is not None:
        raise Declined("torchao's codebook lookup has no outliers and no full rows")
    if 0 in weight.output_shape:
        raise Declined("compressed-tensors cannot unpack zero elements")
    table = weight.lookup_table.contiguous()[None, :, :, None]
    with hidden():
        # A table covers all rows (-1) of one column.
        return load(_CODEBOOK).dequantize_codebook(unpack_codes(weight), table, weight.bits, [-1, 1], dtype)


TORCHAO = Oracle(
    name="torchao",
    provenance=lambda: Provenance(
        "torchao", version_of("torchao"), TORCHAO_TESTED, f"{_CODEBOOK}.dequantize_codebook", "call"
    ),
    missing=_missing_torchao,
    dequantize=_dequantize_torchao,
)


# --- packers -------------------------------------------------------------------------------


def pack_autogptq(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """``qweight`` int32 [K * bits / 32, N] of codes [K, N] by AutoGPTQ's ``QuantLinear.pack``.

    Raises:
        Declined: K or N is no multiple of 32.
    """
    # With scale 1 and zero 0 its quantizer gives the codes themselves.
    ones = torch.ones(1, codes.shape[1])
    assert autogptq.AUTOGPTQ.pack is not None
    packed = autogptq.AUTOGPTQ.pack(
        codes.float(), ones, torch.zeros_like(ones, dtype=torch.int32), bits=bits, group_size=-1
    )
    return packed.qweight


def pack_compressed_tensors(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """``qweight`` int32 [K * bits / 32, N] of codes [K, N] by compressed-tensors' ``pack_to_int32``.

    Raises:
        Declined: no element.
    """
    if codes.numel() == 0:
        raise Declined("compressed-tensors cannot pack zero elements")
    return compressed_tensors.pack_codes(codes, bits)


def _packer(
    name: str,
    package: str,
    tested: str,
    function: str,
    missing: Callable[[torch.device], str | None],
    pack: Callable[[torch.Tensor, int], torch.Tensor],
) -> Oracle:
    return Oracle(
        name=name,
        provenance=lambda: Provenance(package, version_of(package), tested, function, "call"),
        missing=missing,
        dequantize=None,
        pack=pack,
    )


AUTOGPTQ = _packer(
    "autogptq",
    "auto-gptq",
    autogptq.TESTED,
    "auto_gptq.nn_modules.qlinear.qlinear_cuda.QuantLinear.pack",
    autogptq.AUTOGPTQ.missing,
    pack_autogptq,
)
COMPRESSED_TENSORS = _packer(
    "compressed-tensors",
    "compressed-tensors",
    compressed_tensors.TESTED,
    f"{_HELPERS}.pack_to_int32",
    compressed_tensors.COMPRESSED_TENSORS.missing,
    pack_compressed_tensors,
)
