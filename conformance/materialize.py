"""Case to packed weight. On the words route a pure function of the case; on the others, of the
case and the upstream packer (a bundle keeps the tensors, so replay needs no packer)."""

from __future__ import annotations

from pathlib import Path

from conformance.case import Case
from conformance.errors import UsageError
from conformance.realmodel import load_layer
from conformance.registry import Format, Packing
from kernels._packed import PackedWeight
from oracles.base import Declined, Oracle


def materialize(
    fmt: Format, case: Case, packer: Oracle | None = None, model: Path | None = None
) -> tuple[PackedWeight, Packing | None]:
    """Packed weight on the CPU, and where it was packed from floats, those.

    Args:
        packer: oracle whose packer the routes ``pack`` and ``real`` use.
        model: safetensors file of the route ``real``.

    Raises:
        UsageError: the case's dimensions do not fit together, or its route cannot be taken.
        Declined: upstream's packer does not accept the input.
    """
    packing = None
    route = case["route"]
    try:
        if route == "words":
            weight = fmt.words(case)
        else:
            function = fmt.pack if route == "pack" else fmt.pack_real
            if function is None or packer is None:
                raise UsageError(
                    f"route: expected words, found {route}, but no packer for {fmt.name} is installed"
                )
            if route == "pack":
                assert fmt.pack is not None
                packing = fmt.pack(case, packer)
            else:
                assert fmt.pack_real is not None
                if model is None:
                    raise UsageError(
                        "layer: expected a model to take it from, found none; give one with --model"
                    )
                packing = fmt.pack_real(case, load_layer(model, case["layer"]), packer)
            weight = packing.weight
        weight.validate()
    except Declined:
        raise
    except (TypeError, ValueError) as error:
        raise UsageError(f"{case.id}: {error}") from error
    except (IndexError, MemoryError, OverflowError) as error:
        raise UsageError(
            f"{case.id}: expected sizes that can be had, found {type(error).__name__}: {error}"
        ) from error
    return weight, packing
