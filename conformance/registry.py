"""Formats and kernels. A format is registered by one module in ``conformance/formats``."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import pkgutil
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from conformance.case import Case, parse_fields, split_id
from conformance.dims import Choice, Dim, Text
from conformance.errors import UsageError

if TYPE_CHECKING:
    from conformance.faults import Fault
    from kernels._packed import PackedWeight
    from oracles.base import Oracle
    from oracles.spec import Model

# Dimensions of every case, after the format's own. Order is the order of drawing.
OUT = Choice("out", "fp16", choices=("fp16", "bf16", "fp32"))
ROUTE = Choice("route", "words", choices=("words", "pack", "real"), generated=("words",))
LAYER = Text("layer", "")  # of the real model, on the real route
LAYOUTS = ("contiguous", "offset", "strided", "padded", "transposed")
LAYOUT = Choice("layout", "contiguous", choices=LAYOUTS)
DEST = Choice("dest", "given", choices=("given", "new", *LAYOUTS[1:]))
TILES = ("case", "small", "default")
TILE = Choice("tile", "case", choices=TILES, generated=("case",), near=TILES)
COMMON = (OUT, ROUTE, LAYER, LAYOUT, DEST, TILE)
# What the name of a fused kernel begins with.
FUSED = "fused:"


@dataclasses.dataclass(frozen=True)
class Relaxation:
    """A comparison looser than exact: ``ulp`` steps at most between finite values (0: only the sign
    of a zero may differ). ``why`` names the rounding step that causes it."""

    oracle: str
    dtype: torch.dtype
    ulp: int
    why: str


@dataclasses.dataclass(frozen=True)
class Reach:
    """Where right outputs lie before they are rounded to the output dtype: within ``error`` of ``value``,
    float64 both. 0: the exact model's bits are the right ones; inf: nothing is said."""

    value: np.ndarray
    error: np.ndarray


@dataclasses.dataclass(frozen=True)
class Allowance:
    """A comparison by a proven bound where the format does not prescribe every rounding.

    Attributes:
        reach: of a model, for ``kernel`` or an oracle's name, on a device's type (``cpu``, ``cuda``).
        why: the rounding step that causes it.
    """

    reach: Callable[[Any, str, str], Reach]
    why: str


@dataclasses.dataclass(frozen=True)
class Packing:
    """Result of the pack route: the packed weight, the floats it came from, and how far the
    decoded values may be from them (``bound`` float64, argued by ``why``)."""

    weight: PackedWeight
    floats: np.ndarray
    bound: np.ndarray
    why: str


@dataclasses.dataclass(frozen=True)
class Format:
    """Everything the harness knows about one format.

    Attributes:
        name: id; no other format's name may contain it, since ``-k`` matches substrings.
        summary: one line.
        weight_type: packed type the kernel takes.
        kernel: the kernel under test unless ``--kernel`` names another.
        oracles: upstream answers, the first that can pack is the packer.
        unpack: exact model of a weight.
        dims: the format's own dimensions, before the common ones.
        words: packed weight of a case on the words route (CPU tensors).
        pack: packed weight of a case on the pack route, through an oracle's packer.
        pack_real: the same for a real float weight [R, C], with the case's other dimensions.
        real_variants: dimensions of the cases that every layer of the real model is packed with.
        real_step: under the interpreter, where a real layer takes seconds, only every so manieth
            pair of layer and variant is run.
        locate: words for where an element sits, such as ``block 1, byte 32, low nibble``.
        tiles: launch arguments of the built-in kernel for each value of ``tile``; ``case``
            makes a small case one program of the interpreter.
        faults: wrong decoders that a mismatch is compared with.
        relaxations: comparisons looser than exact, each with its reason.
        allowance: how far outputs may be from the exact model's by a proven bound; None: not at all.
        pack_dims: dimensions drawn otherwise on the pack route, where upstream's packer limits
            what its input may be.
        tile_cases: field texts of cases for the edges of tiles.
        large: field texts of cases with more rows, groups or blocks than the drawn ones have.
        zero_size: field texts of cases without elements.
        nonfinite: field texts of cases with inf or NaN scales.
        record_all: whether all kinds of cases are recorded, or each choice alone, to keep the set small.
        facts: names about a weight for the conditions of the known-faults file, beyond its case's.
        axes: integer labels of the output's shape that say where an element belongs, what shares a
            scale or table first (``group``, ``block``), then ``slot``, its place in the packed word;
            ``word`` and ``scale`` (equal where the scale is one) if there are any. Rows and columns
            are added for every format (:mod:`conformance.axes`).
        inner: axis of a two-dimensional output that a product with activations sums over: 0 where the
            output is [K, N], 1 where it is [N, K]; None: this format has no fused kernels.
    """

    name: str
    summary: str
    weight_type: type[PackedWeight]
    kernel: Callable[..., torch.Tensor]
    oracles: tuple[Oracle, ...]
    unpack: Callable[[Any], Model]
    dims: tuple[Dim, ...]
    words: Callable[[Case], PackedWeight]
    pack: Callable[[Case, Oracle], Packing] | None
    pack_real: Callable[[Case, torch.Tensor, Oracle], Packing] | None
    locate: Callable[[Any, tuple[int, ...]], str]
    tiles: Mapping[str, Mapping[str, int]]
    faults: tuple[Fault, ...] = ()
    relaxations: tuple[Relaxation, ...] = ()
    allowance: Allowance | None = None
    real_variants: tuple[Mapping[str, Any], ...] = ()
    real_step: int = 1
    pack_dims: tuple[Dim, ...] = ()
    tile_cases: tuple[str, ...] = ()
    large: tuple[str, ...] = ()
    zero_size: tuple[str, ...] = ()
    nonfinite: tuple[str, ...] = ()
    record_all: bool = True
    facts: Callable[[Any], Mapping[str, Any]] | None = None
    axes: Callable[[Any], Mapping[str, np.ndarray]] | None = None
    inner: int | None = None

    @functools.cached_property
    def all_dims(self) -> tuple[Dim, ...]:
        return self.dims + COMMON

    def case(self, **values: Any) -> Case:
        return Case.build(self.name, self.all_dims, values)

    def parse(self, fields: str) -> Case:
        """Case of field texts, as after the colon of an id."""
        return parse_fields(self.name, self.all_dims, split_id(f"{self.name}:{fields}")[1])


@dataclasses.dataclass(frozen=True)
class Remarks:
    """What an adapter around a user's function adds to the verdict of its last call.

    Attributes:
        summary: appended to the verdict's sentence, or empty.
        notes: counted and shown with the verdict.
        relaxed: what the call could not show, so that EXACT is WITHIN(0 ulp) for this reason; or empty.
    """

    summary: str = ""
    notes: tuple[str, ...] = ()
    relaxed: str = ""


NO_REMARKS = Remarks()


@dataclasses.dataclass(frozen=True)
class Kernel:
    """A dequantize function under test.

    ``builtin`` kernels take launch arguments from the format's ``tiles``; a user's kernel is
    called with ``(weight, dtype=..., out=...)`` alone, without ``out`` if it has no such
    parameter. ``view`` is how the kernel sees its format and ``remarks`` what its last call has to
    add, both of fused kernels alone (:mod:`conformance.fused`).
    """

    name: str
    function: Callable[..., torch.Tensor]
    builtin: bool
    takes_out: bool = True
    view: Callable[[Format], Format] | None = None
    remarks: Callable[[], Remarks] | None = None

    def viewed(self, fmt: Format) -> Format:
        """The format as this kernel is judged by it."""
        return fmt if self.view is None else self.view(fmt)


def formats() -> dict[str, Format]:
    """All registered formats by name. Imports the kernels: choose the device before."""
    import conformance.formats as package

    found: dict[str, Format] = {}
    for info in sorted(pkgutil.iter_modules(package.__path__), key=lambda info: info.name):
        if info.name.startswith("_"):
            continue
        module = importlib.import_module(f"{package.__name__}.{info.name}")
        for entry in module.FORMATS:
            found[entry.name] = entry
    for name in found:
        clash = next((other for other in found if other != name and name in other), None)
        if clash:
            raise ValueError(
                f"format {name!r} would be selected by -k {name} along with {clash!r}: rename one"
            )
        names = [oracle.name for oracle in found[name].oracles]
        twice = next((oracle for oracle in names if names.count(oracle) > 1), None)
        if twice:
            raise ValueError(
                f"format {name!r} has two oracles {twice!r}, whose votes would be one: rename one"
            )
    return found


def find_format(name: str) -> Format:
    known = formats()
    if name not in known:
        raise UsageError(f"format: expected one of {', '.join(known)}, found {name!r}")
    return known[name]


def parse_case(text: str) -> Case:
    """Case of an id as printed. Raises :class:`UsageError` that names what is wrong."""
    name, fields = split_id(text)
    return parse_fields(name, find_format(name).all_dims, fields)


def builtin_kernel(fmt: Format) -> Kernel:
    return Kernel(f"{fmt.kernel.__module__}:{fmt.kernel.__name__}", fmt.kernel, builtin=True)


def launch_arguments(fmt: Format, kernel: Kernel, tile: str, interpreter: bool) -> Mapping[str, int] | None:
    """Launch arguments of the built-in kernel. The interpreter's cost is per operation and not per
    element, so there a case is one big program unless it asks for tile edges."""
    if not kernel.builtin or (tile == "case" and not interpreter):
        return None
    return fmt.tiles[tile]
