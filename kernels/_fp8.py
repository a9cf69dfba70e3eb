"""What the packed types of the fp8 e4m3 matrix product share: blocks, and what a device must have."""

from __future__ import annotations

import torch

from kernels import Unsupported
from kernels._packed import expect_tensor

E4M3 = torch.float8_e4m3fn
BLOCK = 128


def blocks(size: int) -> int:
    """Blocks of 128 in ``size``, a short last one included."""
    return -(-size // BLOCK)


def expect_scale(
    field: str, value: object, lines: int, blocked: tuple[int, int], *, per_line: bool = True
) -> str:
    """How a float32 scale is shared: ``tensor`` [1], ``line`` [lines] or ``block``, of shape ``blocked``.

    Raises:
        TypeError, ValueError: another dtype or shape; names the field.
    """
    tensor = expect_tensor(field, value, dtype=torch.float32)
    shape = tuple(tensor.shape)
    if shape == (1,):
        return "tensor"
    if per_line and shape == (lines,):
        return "line"
    if shape == blocked:
        return "block"
    line = f"[{lines}] or " if per_line else ""
    raise ValueError(f"{field}: expected shape [1], {line}{list(blocked)}, found {list(shape)}")


def expect_fp8_unit(device: torch.device) -> None:
    """Raise :class:`kernels.Unsupported` on an NVIDIA GPU for which e4m3fn does not compile."""
    if device.type != "cuda" or torch.version.hip is not None:
        return
    major, minor = torch.cuda.get_device_capability(device)
    if (major, minor) < (8, 9):
        raise Unsupported(
            f"device: expected compute capability 8.9 or higher for fp8 products, found {major}.{minor}"
        )
