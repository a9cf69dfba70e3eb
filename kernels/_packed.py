"""What every packed-weight type has in common, and the checks they share.

A packed weight is a frozen dataclass that holds exactly the tensors a checkpoint
stores and the integers needed to read them. Tensors may sit in nested dataclasses;
their names are then dotted (``nested.absmax``), here and in every error message.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch

OUTPUT_DTYPES = (torch.float16, torch.bfloat16, torch.float32)

W = TypeVar("W", bound="PackedWeight")


@dataclasses.dataclass(frozen=True)
class PackedWeight:
    """Base of the packed types.

    ``validate()`` raises ``TypeError`` or ``ValueError`` that names field, expected
    and found. It never waits for the device; ``validate(deep=True)`` adds the checks
    that read tensor values (and so synchronize a GPU).
    """

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Shape of the dequantized tensor."""
        raise NotImplementedError

    def validate(self, *, deep: bool = False) -> None:
        raise NotImplementedError

    @property
    def device(self) -> torch.device:
        return named_tensors(self)[0][1].device


_names: dict[type, tuple[str, ...]] = {}


def _field_names(kind: type) -> tuple[str, ...]:
    """Of a dataclass, in order; of another type, none."""
    if kind not in _names:
        fields = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
        _names[kind] = tuple(field.name for field in fields)
    return _names[kind]


@functools.cache
def _arguments(kind: type) -> tuple[str, ...]:
    """Fields that a dataclass is made of; others follow from them."""
    return tuple(field.name for field in dataclasses.fields(kind) if field.init)


def named_tensors(weight: Any, prefix: str = "") -> list[tuple[str, torch.Tensor]]:
    """``(dotted name, tensor)`` of every tensor of ``weight``, in field order."""
    found: list[tuple[str, torch.Tensor]] = []
    for name in _field_names(type(weight)):
        value = getattr(weight, name)
        if isinstance(value, torch.Tensor):
            found.append((prefix + name, value))
        elif _field_names(type(value)):
            found += named_tensors(value, f"{prefix}{name}.")
    return found


def map_tensors(weight: W, function: Callable[[str, torch.Tensor], torch.Tensor], prefix: str = "") -> W:
    """Return a copy of ``weight`` with each tensor replaced by ``function(name, tensor)``."""
    # As dataclasses.replace, which looks at every field once more.
    values: dict[str, Any] = {}
    for name in _arguments(type(weight)):  # type: ignore[arg-type]
        value = getattr(weight, name)
        if isinstance(value, torch.Tensor):
            value = function(prefix + name, value)
        elif _field_names(type(value)):
            value = map_tensors(value, function, f"{prefix}{name}.")
        values[name] = value
    return type(weight)(**values)


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """The elements in order as one dense dimension; copies only what is strided.

    A tensor of one element counts as contiguous whatever its strides, and ``reshape(-1)`` keeps
    them: viewing the result as another dtype would then fail.
    """
    dense = tensor.contiguous()
    return dense.as_strided((dense.numel(),), (1,))


def describe(dtypes: torch.dtype | tuple[torch.dtype, ...]) -> str:
    names = [str(d).removeprefix("torch.") for d in (dtypes if isinstance(dtypes, tuple) else (dtypes,))]
    return names[0] if len(names) == 1 else "one of " + ", ".join(names)


def expect_tensor(
    field: str,
    value: object,
    *,
    dtype: torch.dtype | tuple[torch.dtype, ...],
    shape: tuple[int, ...] | None = None,
) -> torch.Tensor:
    """Return ``value`` when it is a tensor of that dtype and shape.

    Raises:
        TypeError: not a tensor, of another dtype, sparse, or with a negation that is still to be done.
        ValueError: of another shape.
    """
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{field}: expected a tensor, found {type(value).__name__}")
    if value.layout is not torch.strided:
        raise TypeError(f"{field}: expected a strided tensor, found {value.layout}")
    # A kernel reads memory, where the negation is not done yet.
    if value.is_neg():
        raise TypeError(f"{field}: expected a tensor without a pending negation, found one (resolve_neg)")
    allowed = dtype if isinstance(dtype, tuple) else (dtype,)
    if value.dtype not in allowed:
        raise TypeError(f"{field}: expected dtype {describe(dtype)}, found {describe(value.dtype)}")
    if shape is not None and tuple(value.shape) != shape:
        raise ValueError(f"{field}: expected shape {list(shape)}, found {list(value.shape)}")
    return value


def expect_int(field: str, value: object, *, minimum: int = 0) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{field}: expected an int, found {type(value).__name__}")
    if value < minimum:
        raise ValueError(f"{field}: expected at least {minimum}, found {value}")
    return value


def expect_power_of_two(field: str, value: object) -> int:
    size = expect_int(field, value)
    if size < 1 or size & (size - 1):
        raise ValueError(f"{field}: expected a power of two, found {size}")
    return size


def expect_one_device(weight: PackedWeight) -> None:
    """Raise ``ValueError`` when the tensors of ``weight`` are on different devices."""
    (first_name, first), *others = named_tensors(weight)
    expected = first.device
    for name, tensor in others:
        if tensor.device != expected:
            raise ValueError(
                f"{name}: expected device {expected} (the device of {first_name}), found {tensor.device}"
            )


def expect_finite(field: str, tensor: torch.Tensor) -> None:
    """Raise ``ValueError`` at the first non-finite value (reads the tensor: synchronizes)."""
    bad = ~torch.isfinite(tensor)
    if bool(bad.any()):
        flat = bad.reshape(-1).nonzero()[0].item()
        found = tensor.reshape(-1)[int(flat)].item()
        raise ValueError(f"{field}: expected finite values, found {found} at flat index {flat}")
