"""Group the tensors of a checkpoint into layers, by their names alone."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

from conformance.detect.source import Info

# Fields that belong to a layer beside its weight; the first one that a layer has names its family.
WORDS = ("qweight", "qzeros", "scales", "g_idx")
BLOCKWISE = (
    "weight.absmax",
    "weight.quant_map",
    "weight.nested_absmax",
    "weight.nested_quant_map",
    "weight.quant_state.bitsandbytes__nf4",
    "weight.quant_state.bitsandbytes__fp4",
)
ROWS = ("SCB", "weight_format")
COMPRESSED = (
    "weight_packed",
    "weight_shape",
    "weight_scale",
    "weight_scale_inv",
    "weight_zero_point",
    "weight_g_idx",
    "weight_global_scale",
)
FAMILIES = {
    "words": WORDS,
    "bitsandbytes 4-bit": BLOCKWISE,
    "LLM.int8": ROWS,
    "compressed-tensors": COMPRESSED,
}
FLOATS = ("float64", "float32", "float16", "bfloat16")


@dataclasses.dataclass(frozen=True)
class Layer:
    """Tensors of one layer.

    Attributes:
        prefix: name of the module.
        family: a key of :data:`FAMILIES`; ``float``, or ``unknown`` for a 2-D weight of
            another dtype.
        fields: tensors by the name after the prefix.
    """

    prefix: str
    family: str
    fields: Mapping[str, Info]

    def name(self, field: str) -> str:
        """Name of a field's tensor in the file."""
        return f"{self.prefix}.{field}" if self.prefix else field

    @property
    def n_bytes(self) -> int:
        return sum(info.n_bytes for info in self.fields.values())


def group(tensors: Mapping[str, Info]) -> list[Layer]:
    """Layers by name. Norms, biases and the like are none."""
    families: dict[str, str] = {}
    fields: dict[str, dict[str, Info]] = {}
    weights: dict[str, Info] = {}
    for name, info in tensors.items():
        family, prefix, field = _place(name)
        if field == "weight":
            weights[prefix] = info
        if family:
            families.setdefault(prefix, family)
        if family or field == "weight":
            fields.setdefault(prefix, {})[field] = info
    layers = []
    for prefix, found in fields.items():
        family = families.get(prefix, "")
        if not family:
            weight = weights[prefix]
            if len(weight.shape) != 2:
                continue
            family = "float" if weight.dtype in FLOATS else "unknown"
        layers.append(Layer(prefix, family, found))
    return sorted(layers, key=lambda layer: _natural(layer.prefix))


def _natural(name: str) -> list[tuple[int, str]]:
    """Sort key by which layer 2 comes before layer 10; the order within a file is by dtype and size."""
    return [
        (int(part), "") if part.isascii() and part.isdigit() else (-1, part)
        for part in re.split(r"([0-9]+)", name)
    ]


def _place(name: str) -> tuple[str, str, str]:
    """Family (empty for a plain weight), prefix and field of a tensor's name."""
    for family, known in FAMILIES.items():
        for field in known:
            if name == field or name.endswith("." + field):
                return family, name[: -len(field)].rstrip("."), field
    if name == "weight" or name.endswith(".weight"):
        return "", name[: -len("weight")].rstrip("."), "weight"
    return "", name, ""
