"""bitsandbytes: its native functions, and its pure-Python path as a second opinion.

``NF4``, ``FP4``, ``BLOCKWISE8`` and ``LLM_INT8`` call the public function; the device of the
tensors decides whether its CPU or its CUDA code answers. The ``_PYTHON`` oracles call the
PyTorch implementation that bitsandbytes falls back to. LLM.int8() has only that one.

Results are what bitsandbytes returns, its wrong values and wrong shapes included. Tensors are
passed contiguous: the native code reads raw pointers and ignores strides, which are a matter
of the caller's memory and not of the format.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from kernels import fp4, nf4
from kernels._blockwise import BlockwiseWeight, NestedAbsmax
from kernels.blockwise8 import Blockwise8Weight
from kernels.fp4 import FP4Weight
from kernels.llm_int8 import LLMInt8Weight
from kernels.nf4 import FourBitWeight, NF4Weight
from oracles.base import Declined, Oracle, Provenance
from oracles.upstream import Missing, load, version_of

TESTED = "0.50.2"

_FOUR_BIT_PYTHON = "_dequantize_4bit_compute"
_BLOCKWISE_PYTHON = "_dequantize_blockwise_compute"

F = TypeVar("F", bound=FourBitWeight)


def _functional() -> Any:
    return load("bitsandbytes.functional")


def _default_ops() -> Any:
    return load("bitsandbytes.backends.default.ops")


def _eager(name: str) -> Callable[..., torch.Tensor]:
    # load() imports it uncompiled; a bitsandbytes that the user imported first is compiled
    # for seconds at each new shape, unless the function inside is called.
    return inspect.unwrap(getattr(_default_ops(), name))


# --- can it answer? -------------------------------------------------------------------


def _missing(device: torch.device) -> str | None:
    """Reason why bitsandbytes has nothing for ``device``, or None."""
    try:
        supported = load("bitsandbytes").supported_torch_devices
    except Missing as error:
        return error.reason
    if device.type not in supported:
        return f"bitsandbytes has no backend for tensors on {device.type}"
    return None


def missing_native(device: torch.device) -> str | None:
    """As :func:`_missing`; also a reason when native code would be replaced by the Python path."""
    reason = _missing(device)
    if reason is not None:
        return reason
    extension = load("bitsandbytes.cextension")
    if isinstance(extension.lib, extension.ErrorHandlerMockBNBNativeLibrary):
        why = " ".join(str(extension.lib.error_msg).split())
        return f"the native library of bitsandbytes did not load: {why}"
    if device.type == "cuda" and not extension.lib.compiled_with_cuda:
        return "the native library of bitsandbytes that is loaded has no GPU code"
    return None


def _missing_python(name: str) -> Callable[[torch.device], str | None]:
    def missing(device: torch.device) -> str | None:
        reason = _missing(device)
        if reason is None and not hasattr(_default_ops(), name):
            return f"bitsandbytes {version_of('bitsandbytes')} has no backends.default.ops.{name}"
        return reason

    return missing


def _provenance(function: str) -> Callable[[], Provenance]:
    return lambda: Provenance("bitsandbytes", version_of("bitsandbytes"), TESTED, function, "call")


# --- what it does not accept ----------------------------------------------------------


def _decline_empty_on_gpu(tensor: torch.Tensor) -> None:
    # A launch of no blocks is an error for CUDA, upon which the library ends the process.
    if tensor.device.type == "cuda" and tensor.numel() == 0:
        raise Declined("bitsandbytes has no GPU launch for zero elements")


def decline_other_table(weight: FourBitWeight, bits: Sequence[int]) -> None:
    table = weight.codebook.detach().cpu().contiguous().view(torch.int32).numpy().view("u4")
    if table.tolist() != list(bits):
        raise Declined("bitsandbytes decodes with its own table only")


def _decline_shape(weight: FourBitWeight) -> None:
    """Shapes at which ``dequantize_4bit`` raises. (At others it returns a wrong shape.)"""
    shape = weight.shape
    if weight.device.type == "cpu":
        if not shape:
            raise Declined("bitsandbytes reads the last dimension of the shape on the CPU, and there is none")
        if shape[-1] % 2 or weight.blocksize >= 2048:  # the cases it gives to its Python path
            _decline_shape_python(weight)
    if weight.packed.shape[0] == 1 and len(shape) > 2:
        raise Declined("bitsandbytes transposes the result of a one-row packed tensor: 2 dimensions at most")


def _decline_shape_python(weight: FourBitWeight) -> None:
    if 0 in weight.shape[1:]:
        raise Declined("bitsandbytes' Python path cannot reshape zero elements to this shape")


# --- packed types to and from bitsandbytes' own ----------------------------------------


def quant_state(weight: BlockwiseWeight, dtype: torch.dtype, quant_type: str | None = None) -> Any:
    """The ``bitsandbytes.functional.QuantState`` that decodes ``weight`` to ``dtype``.

    Args:
        weight: a blockwise weight; its tensors are shared, not copied, where contiguous.
        dtype: output dtype.
        quant_type: ``"nf4"`` or ``"fp4"``; None for 8-bit blockwise, which has no shape either.

    Raises:
        Missing: bitsandbytes cannot be imported.
    """
    make = _functional().QuantState
    nested: dict[str, Any] = {}
    if weight.nested is not None:
        second = make(
            absmax=weight.nested.absmax.contiguous(),
            code=weight.nested.codebook.contiguous(),
            blocksize=weight.nested.blocksize,
            dtype=torch.float32,
        )
        nested = {"offset": weight.nested.offset, "state2": second}
    return make(
        absmax=weight.absmax.contiguous(),
        shape=torch.Size(weight.shape) if quant_type else None,
        code=weight.codebook.contiguous(),
        blocksize=weight.blocksize,
        quant_type=quant_type,
        dtype=dtype,
        **nested,
    )


def _nested(state: Any) -> NestedAbsmax | None:
    if not state.nested:
        return None
    return NestedAbsmax(state.state2.code, state.state2.absmax, state.offset, state.state2.blocksize)


def _absmax_python(weight: BlockwiseWeight) -> torch.Tensor:
    """absmax float32 [B], a nested one decoded by bitsandbytes' Python path."""
    absmax, nested = weight.absmax.contiguous(), weight.nested
    if nested is None:
        return absmax
    decoded = _eager(_BLOCKWISE_PYTHON)(
        absmax, nested.absmax.contiguous(), nested.codebook.contiguous(), nested.blocksize, torch.float32
    )
    return decoded + nested.offset


# --- 4 bit -----------------------------------------------------------------------------


def _dequantize_4bit(
    weight: FourBitWeight, dtype: torch.dtype, *, quant_type: str, bits: Sequence[int]
) -> torch.Tensor:
    decline_other_table(weight, bits)
    _decline_empty_on_gpu(weight.packed)
    _decline_shape(weight)
    # The shape goes on as it is: the AVX512 code depends on its last dimension.
    return _functional().dequantize_4bit(weight.packed.contiguous(), quant_state(weight, dtype, quant_type))


def _dequantize_4bit_python(
    weight: FourBitWeight, dtype: torch.dtype, *, quant_type: str, bits: Sequence[int]
) -> torch.Tensor:
    decline_other_table(weight, bits)
    _decline_shape_python(weight)
    data = weight.packed.contiguous().view(torch.uint8).reshape(-1)
    code = _functional().get_4bit_type(quant_type, device=weight.device)
    return _eager(_FOUR_BIT_PYTHON)(data, _absmax_python(weight), code, weight.blocksize, weight.shape, dtype)


def _pack_4bit(
    weight: torch.Tensor,
    *,
    blocksize: int = 64,
    nested: bool = False,
    storage: torch.dtype = torch.uint8,
    quant_type: str,
    packed_type: type[F],
) -> F:
    """Quantize a float weight of any shape with ``bitsandbytes.functional.quantize_4bit``.

    Args:
        weight: float16, bfloat16 or float32.
        blocksize: elements a scale covers.
        nested: quantize the absmax too (``compress_statistics``).
        storage: dtype of the packed tensor (``quant_storage``).

    Raises:
        Declined: the packed bytes are no whole number of ``storage`` elements, or bitsandbytes
            fails for so few.
    """
    n_bytes = -(-weight.numel() // 2)
    if n_bytes % storage.itemsize:
        # On a GPU it would allocate too little and write past the end.
        raise Declined(f"bitsandbytes cannot store {n_bytes} bytes as {storage}")
    if n_bytes == 1 and storage != torch.uint8 and weight.device.type == "cpu":
        raise Declined("bitsandbytes on the CPU cannot store a single byte but as uint8")
    _decline_empty_on_gpu(weight)
    packed, state = _functional().quantize_4bit(
        weight, blocksize=blocksize, compress_statistics=nested, quant_type=quant_type, quant_storage=storage
    )
    return packed_type(packed, state.absmax, state.code, tuple(state.shape), state.blocksize, _nested(state))


def _four_bit_oracles(
    quant_type: str, bits: Sequence[int], packed_type: type[FourBitWeight]
) -> tuple[Oracle, Oracle]:
    pack = functools.partial(_pack_4bit, quant_type=quant_type, packed_type=packed_type)
    direct = Oracle(
        name="bitsandbytes",
        provenance=_provenance("bitsandbytes.functional.dequantize_4bit"),
        missing=missing_native,
        dequantize=functools.partial(_dequantize_4bit, quant_type=quant_type, bits=bits),
        pack=pack,
    )
    python = Oracle(
        name="bitsandbytes-python",
        provenance=_provenance(f"bitsandbytes.backends.default.ops.{_FOUR_BIT_PYTHON}"),
        missing=_missing_python(_FOUR_BIT_PYTHON),
        dequantize=functools.partial(_dequantize_4bit_python, quant_type=quant_type, bits=bits),
        pack=pack,
    )
    return direct, python


NF4, NF4_PYTHON = _four_bit_oracles("nf4", nf4.CODEBOOK_BITS, NF4Weight)
FP4, FP4_PYTHON = _four_bit_oracles("fp4", fp4.CODEBOOK_BITS, FP4Weight)


# --- 8-bit blockwise -------------------------------------------------------------------


def _dequantize_blockwise(weight: Blockwise8Weight, dtype: torch.dtype) -> torch.Tensor:
    _decline_empty_on_gpu(weight.packed)
    return _functional().dequantize_blockwise(weight.packed.contiguous(), quant_state(weight, dtype))


def _dequantize_blockwise_python(weight: Blockwise8Weight, dtype: torch.dtype) -> torch.Tensor:
    flat = _eager(_BLOCKWISE_PYTHON)(
        weight.packed.contiguous().reshape(-1),
        _absmax_python(weight),
        weight.codebook.contiguous(),
        weight.blocksize,
        dtype,
    )
    return flat.reshape(weight.packed.shape)


def _pack_blockwise(
    weight: torch.Tensor, *, blocksize: int = 4096, nested: bool = False, codebook: torch.Tensor | None = None
) -> Blockwise8Weight:
    """Quantize a float weight of any shape with ``bitsandbytes.functional.quantize_blockwise``.

    Args:
        weight: float16, bfloat16 or float32.
        blocksize: elements a scale covers; of absmax codes too, when nested.
        nested: quantize the absmax too.
        codebook: float32 [256], ascending; bitsandbytes' dynamic map by default.

    Raises:
        Declined: zero elements, or a block size under 64, on a GPU.
    """
    _decline_empty_on_gpu(weight)
    if weight.device.type == "cuda" and blocksize < 64:
        raise Declined("bitsandbytes quantizes blocks of 64 and more on a GPU")
    packed, state = _functional().quantize_blockwise(
        weight, code=codebook, blocksize=blocksize, nested=nested
    )
    return Blockwise8Weight(
        packed, state.absmax, state.code, tuple(weight.shape), state.blocksize, _nested(state)
    )


BLOCKWISE8 = Oracle(
    name="bitsandbytes",
    provenance=_provenance("bitsandbytes.functional.dequantize_blockwise"),
    missing=missing_native,
    dequantize=_dequantize_blockwise,
    pack=_pack_blockwise,
)
BLOCKWISE8_PYTHON = Oracle(
    name="bitsandbytes-python",
    provenance=_provenance(f"bitsandbytes.backends.default.ops.{_BLOCKWISE_PYTHON}"),
    missing=_missing_python(_BLOCKWISE_PYTHON),
    dequantize=_dequantize_blockwise_python,
    pack=_pack_blockwise,
)


# --- LLM.int8() ------------------------------------------------------------------------


def _dequantize_rows(weight: LLMInt8Weight, dtype: torch.dtype) -> torch.Tensor:
    return _functional().int8_vectorwise_dequant(weight.codes, weight.absmax).to(dtype)


def _pack_rows(weight: torch.Tensor) -> LLMInt8Weight:
    """Quantize a float weight [R, C] with ``bitsandbytes.functional.int8_vectorwise_quant``.

    bitsandbytes' own ``Linear8bitLt`` casts the weight to float16 first; that is the caller's
    to do, because the packed weight is then close to the cast one.

    Raises:
        Declined: not 2-D, no columns, or on a GPU not float16 or without rows.
    """
    if weight.dim() != 2 or weight.shape[1] == 0:
        raise Declined(f"bitsandbytes quantizes rows of one column or more, not shape {list(weight.shape)}")
    _decline_empty_on_gpu(weight)
    if weight.device.type == "cuda" and weight.dtype != torch.float16:
        raise Declined("bitsandbytes quantizes float16 rows only on a GPU")
    codes, absmax, _ = _functional().int8_vectorwise_quant(weight.contiguous())
    return LLMInt8Weight(codes, absmax)


LLM_INT8 = Oracle(
    name="bitsandbytes",
    provenance=_provenance("bitsandbytes.functional.int8_vectorwise_dequant"),
    missing=_missing,
    dequantize=_dequantize_rows,
    pack=_pack_rows,
)
