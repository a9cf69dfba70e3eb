"""Triton's interpreter: probe what it gets wrong, correct what a small patch can.

Every release from 3.0 to 3.9 truncates float32 to bfloat16 and computes bfloat16 arithmetic
on the raw bits, where compiled code rounds to nearest even; with some NumPy versions it
returns garbage without an error. See https://github.com/triton-lang/triton/issues/4972.
Up to 3.6 a loop whose bound is an argument raises TypeError with NumPy 2.4, which converts no
array of one dimension to a number.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from triton.runtime import interpreter as _interpreter

_PATCHED = "_conformance_bfloat16"
_PATCHED_LOOPS = "_conformance_loops"


@triton.jit
def _probe_cast(out, x, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < n, other=0.0)
    tl.store(out + at, v.to(out.dtype.element_ty), mask=at < n)


@triton.jit
def _probe_bf16(product, total, above, x, y, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, BLOCK)
    a = tl.load(x + at, mask=at < n, other=0.0)
    b = tl.load(y + at, mask=at < n, other=0.0)
    tl.store(product + at, a * b, mask=at < n)
    tl.store(total + at, a + b, mask=at < n)
    tl.store(above + at, (a > b).to(tl.int32), mask=at < n)


@triton.jit
def _probe_loop(out, n):  # type: ignore[no-untyped-def]
    total = 0
    for step in range(n):
        total += step
    tl.store(out, total)


@dataclasses.dataclass(frozen=True)
class Report:
    """What the interpreter of this Triton gets right, after correction.

    Attributes:
        corrected: what the patch corrects; empty when upstream is right.
        unjudged: output dtype name to the reason why it cannot be judged here.
        caveats: further things that are wrong and could accuse a right kernel.
    """

    corrected: tuple[str, ...] = ()
    unjudged: tuple[tuple[str, str], ...] = ()
    caveats: tuple[str, ...] = ()

    def reason(self, dtype: str) -> str | None:
        return dict(self.unjudged).get(dtype)


def _samples() -> torch.Tensor:
    """float32 [n]: ties, neighbours of ties, subnormals, overflow edges, NaN, infinities."""
    # The upper halves on either side of: subnormal, float16's overflow, overflow, infinity.
    edges = [half | sign for half in (0x007F, 0x0080, 0x477F, 0x7F7F, 0x7F80) for sign in (0, 0x8000)]
    top = np.array([*range(0, 0x10000, 0x25), *edges], np.uint32) << np.uint32(16)
    bits = np.concatenate([top | np.uint32(low) for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)])
    return torch.from_numpy(np.ascontiguousarray(bits).view(np.float32).copy())


def _same(got: torch.Tensor, want: torch.Tensor) -> bool:
    from conformance.bits import same, to_bits

    return bool(same(to_bits(got), to_bits(want), got.dtype).all())


def _block(n: int) -> int:
    return 1 << (n - 1).bit_length()


def _casts_right(dtype: torch.dtype) -> bool:
    x = _samples()
    out = torch.zeros(x.numel(), dtype=dtype)
    _probe_cast[(1,)](out, x, x.numel(), BLOCK=_block(x.numel()))
    return _same(out, x.to(dtype))


def _arithmetic_right() -> bool:
    x = _samples().to(torch.bfloat16)
    y = x.flip(0).contiguous()
    n = x.numel()
    product, total = torch.zeros_like(x), torch.zeros_like(x)
    above = torch.zeros(n, dtype=torch.int32)
    _probe_bf16[(1,)](product, total, above, x, y, n, BLOCK=_block(n))
    return _same(product, x * y) and _same(total, x + y) and torch.equal(above, (x > y).to(torch.int32))


def _loops_right() -> bool:
    out = torch.zeros(1, dtype=torch.int32)
    try:
        _probe_loop[(1,)](out, 5)
    except Exception:  # whatever it raises, a kernel with such a loop raises too
        return False
    return int(out[0]) == 10


def _to_float32(data: np.ndarray) -> np.ndarray:
    return (data.astype(np.uint32) << np.uint32(16)).view(np.float32)


def _to_bfloat16(values: np.ndarray) -> np.ndarray:
    from oracles.spec.rounding import float32_to_bfloat16

    return float32_to_bfloat16(values).reshape(values.shape)


def correct() -> None:
    """Patch casts to and from bfloat16 and bfloat16 arithmetic; idempotent.

    Arithmetic in float32 with one rounding to bfloat16 is what hardware gives: for one
    operation on bfloat16 operands, rounding through float32 is innocuous (24 >= 2 * 8 + 2
    significand bits).
    """
    builder = _interpreter.InterpreterBuilder
    if getattr(builder, _PATCHED, False):
        return
    cast, binary, handle = builder.cast_impl, builder.binary_op, _interpreter.TensorHandle

    def cast_impl(self: Any, src: Any, dst_type: Any) -> Any:
        source, target = src.dtype.scalar, dst_type.scalar
        if source == target or tl.bfloat16 not in (source, target):
            return cast(self, src, dst_type)
        if source == tl.bfloat16:
            single = handle(_to_float32(src.data), tl.float32)
            return single if target == tl.float32 else cast(self, single, dst_type)
        with np.errstate(all="ignore"):
            single = np.asarray(src.data).astype(np.float32)
        return handle(_to_bfloat16(single), tl.bfloat16)

    def binary_op(self: Any, lhs: Any, rhs: Any, op: Any) -> Any:
        if lhs.dtype.scalar != tl.bfloat16 or rhs.dtype.scalar != tl.bfloat16:
            return binary(self, lhs, rhs, op)
        with np.errstate(all="ignore"):
            result = op(_to_float32(lhs.data), _to_float32(rhs.data))
        if result.dtype == np.bool_:
            return handle(result, tl.int1)
        return handle(_to_bfloat16(result), tl.bfloat16)

    builder.cast_impl = cast_impl
    builder.binary_op = binary_op
    setattr(builder, _PATCHED, True)


def correct_loops() -> None:
    """Patch the conversion of a scalar of a kernel to a Python number, as Triton 3.7 has it; idempotent."""
    patch = _interpreter._patch_lang_tensor
    if getattr(patch, _PATCHED_LOOPS, False):
        return

    def patched(tensor: Any, *scope: Any) -> None:
        patch(tensor, *scope)
        tensor.__index__ = lambda self: int(self.handle.data.squeeze())

    setattr(patched, _PATCHED_LOOPS, True)
    _interpreter._patch_lang_tensor = patched


def probe() -> Report:
    """Probe the interpreter, correct it where it is wrong, probe again.

    Raises:
        RuntimeError: it loses loads or stores without an error, so that nothing it says counts.
    """
    with np.errstate(over="ignore"):
        return _probe()


def _probe() -> Report:
    if not _casts_right(torch.float32):
        raise RuntimeError(
            f"Triton {triton.__version__}'s interpreter returns garbage with NumPy {np.__version__} "
            "(releases 3.0 and 3.1 need numpy<2): nothing can be judged"
        )
    corrected: list[str] = []
    if not _casts_right(torch.bfloat16):
        corrected.append("casts to bfloat16 (it truncates)")
    if not _arithmetic_right():
        corrected.append("bfloat16 arithmetic (it computes on raw bits)")
    if corrected:
        correct()
    if not _loops_right():
        correct_loops()
        if _loops_right():
            corrected.append(f"loops over range(argument) (they raise with NumPy {np.__version__})")
    unjudged: list[tuple[str, str]] = []
    caveats: list[str] = []
    for dtype, name in ((torch.float16, "fp16"), (torch.bfloat16, "bf16")):
        if not _casts_right(dtype):
            unjudged.append(
                (name, f"Triton {triton.__version__}'s interpreter rounds casts to {name} wrongly")
            )
    if not _arithmetic_right():
        caveats.append(
            "bfloat16 arithmetic is wrong: a kernel that multiplies in bfloat16 is accused falsely"
        )
    if not _loops_right():
        caveats.append("loops over range(argument) are wrong: a kernel that has one is accused falsely")
    return Report(tuple(corrected), tuple(unjudged), tuple(caveats))
