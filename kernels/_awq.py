"""What the three AWQ layouts share: names of the dtypes, group arithmetic, checks, device helpers."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels._packed import expect_int, expect_tensor

SCALE_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
CODES_PER_WORD = 8


def padded_groups(n_rows: int, group_size: int) -> int:
    """Groups that AutoAWQ's GEMV layouts make room for, with padding: a multiple of 8.

    ``n_rows`` is K and ``group_size`` is not -1. Groups of 32 and 64 are padded to 4 and 2
    words of zeros, because the CUDA kernels read the zeros of 1024 codes at once; 16 is
    padded to 8 words by GPTQModel only.
    """
    words = -(-(n_rows // group_size) // CODES_PER_WORD)
    multiple = max(1, 128 // group_size)
    return -(-words // multiple) * multiple * CODES_PER_WORD


def expect_matrix(
    field: str, value: object, *, dtype: torch.dtype | tuple[torch.dtype, ...], shape: tuple[int, int]
) -> torch.Tensor:
    """:func:`expect_tensor` for a matrix, which also says when it is the transpose that fits."""
    tensor = expect_tensor(field, value, dtype=dtype)
    if tuple(tensor.shape) != shape and tuple(tensor.shape) == shape[::-1]:
        raise ValueError(
            f"{field}: expected shape {list(shape)}, found {list(tensor.shape)}, which is transposed"
        )
    return expect_tensor(field, value, dtype=dtype, shape=shape)


def expect_two_dimensions(field: str, value: object, *, dtype: torch.dtype, names: str) -> torch.Tensor:
    tensor = expect_tensor(field, value, dtype=dtype)
    if tensor.dim() != 2:
        raise ValueError(f"{field}: expected 2 dimensions {names}, found shape {list(tensor.shape)}")
    return tensor


def expect_group_size(value: object) -> int:
    """Return the group size when it is -1 or positive."""
    # -1 as a divisor was a real fault: https://github.com/vllm-project/vllm/pull/37329
    size = expect_int("group_size", value, minimum=-1)
    if size == 0:
        raise ValueError("group_size: expected -1 or at least 1, found 0")
    return size


def expect_padded_group_size(value: object, n_rows: int) -> int:
    """Return the group size when the GEMV layouts define a padding for it and it divides K."""
    size = expect_group_size(value)
    if n_rows == 0:
        return size
    rows = n_rows if size == -1 else size
    found = f"{size} (K = {n_rows})" if size == -1 else f"{size}"
    if rows < 128 and rows not in (16, 32, 64):
        raise ValueError(
            f"group_size: expected 16, 32, 64 or at least 128 (the layout defines no padding for "
            f"others), found {found}"
        )
    if n_rows % rows:
        raise ValueError(f"group_size: expected a divisor of K = {n_rows}, found {found}")
    return size


# A lane decodes SIDE codes side by side: a whole word's, or one half of them, so that what it writes
# is one store of 16 bytes. Neighbouring lanes then load the same word.


@triton.jit
def column_codes(w, lane, SIDE: tl.constexpr):
    """Codes of int32 words packed along N, in column order: column c is in slot 0 4 1 5 2 6 3 7 [c].

    Words are signed; masking after the shift drops the copies of the sign bit.
    """
    if SIDE == 8:
        even = tl.join(tl.join(w, w >> 8), tl.join(w >> 4, w >> 12))
        odd = tl.join(tl.join(w >> 16, w >> 24), tl.join(w >> 20, w >> 28))
        codes = tl.join(even, odd)
    else:
        w = w >> (lane & 1) * 8
        codes = tl.join(tl.join(w, w >> 4), tl.join(w >> 16, w >> 20))
    return tl.reshape(codes, [codes.numel]) & 15


@triton.jit
def row_codes(w, lane, SIDE: tl.constexpr):
    """Codes of int32 words packed along K, in order: code i is in slot i."""
    if SIDE == 8:
        even = tl.join(tl.join(w, w >> 16), tl.join(w >> 8, w >> 24))
        odd = tl.join(tl.join(w >> 4, w >> 20), tl.join(w >> 12, w >> 28))
        codes = tl.join(even, odd)
    else:
        w = w >> (lane & 1) * 16
        codes = tl.join(tl.join(w, w >> 8), tl.join(w >> 4, w >> 12))
    return tl.reshape(codes, [codes.numel]) & 15
