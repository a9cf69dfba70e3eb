"""What nf4, fp4 and blockwise8 share: materialization, packing bound, locating."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from conformance.axes import Labels, in_order
from conformance.case import Case
from conformance.dims import Choice, Dim, Patterned, Pick, Shape, one_of
from conformance.faults import blockwise, rounding
from conformance.patterns import (
    FINITE_SCALES,
    SCALE_PATTERNS,
    WORD_PATTERNS,
    Pattern,
    scale_values,
    word_bytes,
)
from conformance.randomness import raw_bytes, raw_ints
from conformance.registry import Format, Packing
from kernels._blockwise import BlockwiseWeight, NestedAbsmax
from kernels.nf4 import FourBitWeight
from oracles.base import Oracle
from oracles.spec.blockwise import unpack

ABSMAX = Choice("absmax", "plain", choices=("plain", "nested"))
WORDS = Patterned("words", Pattern("random", 0), known=WORD_PATTERNS)
SCALES = Patterned("scales", Pattern("ordinary", 0), known=SCALE_PATTERNS, generated=FINITE_SCALES)
# The limit admits 257 blocks of 256: a second nested scale at four block sizes.
SHAPE = Shape("shape", (1, 64), block="blocksize", limit=70_000)

STORAGES = {
    "uint8": torch.uint8,
    "int8": torch.int8,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "int32": torch.int32,
    "fp32": torch.float32,
}


@dataclasses.dataclass(frozen=True)
class Storage(Choice):
    """``quant_storage``: dtypes whose size divides the packed bytes of the shape drawn before."""

    def draw(self, pick: Pick, drawn: Mapping[str, Any]) -> str:
        n_bytes = -(-math.prod(drawn["shape"]) // 2)
        return one_of(pick, [c for c in self.choices if n_bytes % STORAGES[c].itemsize == 0])


# Around the edges of a tile of 16 lanes (words or bytes), of a word and of a block.
# More than two second-level blocks of 256, in rows that are no whole number of blocks.
LARGE = ("shape=3x5500,blocksize=32,absmax=nested", "shape=300x65,blocksize=64")
TILE_CASES = (
    "shape=1x127",
    "shape=1x128",
    "shape=1x129",
    # Whole words of 16 bits, but not of 32: of 8-bit codes, and of 4-bit ones.
    "shape=1x130",
    "shape=1x132",
    "shape=1x136",
    "shape=5x63",
    "shape=1x1031",
    "shape=1x8200,blocksize=32,absmax=nested",
    "shape=3x300,blocksize=4096",
    # Ties of the output's rounding, which draws of a whole run may miss.
    "scales=ties(0)",
)
# Torch calls a tensor of one word contiguous whatever its stride, and refuses to view it as bytes then.
STRIDED_WORDS = ("shape=1x3,storage=fp16,layout=strided", "shape=5x63,storage=fp16,layout=transposed")
REAL_VARIANTS = ({"absmax": "plain"}, {"absmax": "nested"})

STORAGE = Storage("storage", "uint8", choices=tuple(STORAGES))
CODEBOOK = Choice(
    "codebook", "own", choices=("own", "rounded4", "other"), generated=("own", "own", "own", "rounded4")
)


# Floats whose scales the packer can invert and average in float32.
PACK_SCALES = dataclasses.replace(SCALES, generated=("one", "ordinary", "negative", "small", "huge"))
PACK_CODEBOOK = dataclasses.replace(CODEBOOK, generated=("own",))


def blocksizes(default: int) -> Choice:
    return Choice("blocksize", default, choices=(64, 32, 128, 256, 512, 1024, 2048, 4096))


def four_bit_dims() -> tuple[Dim, ...]:
    return (blocksizes(64), SHAPE, ABSMAX, STORAGE, CODEBOOK, WORDS, SCALES)


def eight_bit_dims() -> tuple[Dim, ...]:
    return (blocksizes(256), dataclasses.replace(SHAPE, default=(1, 256)), ABSMAX, WORDS, SCALES)


@functools.lru_cache(maxsize=16)
def table(name: str, own: torch.Tensor) -> torch.Tensor:
    """Codebook float32 [16] or [256]: the format's own, rounded to 4 digits, or unrelated values."""
    if name == "own":
        return own
    if name == "rounded4":
        return torch.from_numpy(np.round(own.double().numpy(), 4).astype(np.float32))
    return scale_values(Pattern("negative", own.numel()), own.numel())


@functools.cache
def dynamic_map() -> torch.Tensor:
    """A 256-entry float32 map, ascending from -1 to 1, dense around 0. Any map is legal on the
    words route; upstream's own comes with the pack route."""
    magnitude = np.arange(1, 129, dtype=np.float32) / np.float32(128)
    positive = magnitude * magnitude * magnitude
    return torch.from_numpy(np.concatenate([-positive[::-1], positive]).astype(np.float32))


@functools.cache
def _offset(negative: bool) -> torch.Tensor:
    """What is added to a nested absmax: float32 []."""
    offset = scale_values(Pattern("ordinary", 1), 1).reshape(())
    return -offset if negative else offset


def words(case: Case, weight_type: type[BlockwiseWeight], own: torch.Tensor) -> BlockwiseWeight:
    """Packed weight of random bytes and scales of the case's profile."""
    shape, blocksize = case["shape"], case["blocksize"]
    n = math.prod(shape)
    n_blocks = -(-n // blocksize)
    n_bytes = -(-n * weight_type.bits // 8)
    data = torch.from_numpy(word_bytes(case["words"], n_bytes, weight_type.bits))
    if weight_type.bits == 4:
        storage = STORAGES[case["storage"]]
        packed = data.reshape(-1, 1) if storage is torch.uint8 else _restore(data, storage)
        codebook = table(case["codebook"], own)
    else:
        packed, codebook = data.reshape(shape), own
    nested = None
    if case["absmax"] == "nested":
        n_groups = -(-n_blocks // 256)
        absmax = torch.from_numpy(raw_bytes(f"absmax/{case['scales']}", n_blocks))
        offset = _offset((case["words"].number or 0) % 2 == 1)
        nested = NestedAbsmax(dynamic_map(), scale_values(case["scales"], n_groups), offset)
    else:
        absmax = scale_values(case["scales"], n_blocks)
    return weight_type(packed, absmax, codebook, shape, blocksize, nested)


def _restore(data: torch.Tensor, storage: torch.dtype) -> torch.Tensor:
    if data.numel() % storage.itemsize:
        # The packed type's own check names the mismatch.
        return torch.zeros((0, 1), dtype=storage)
    return data.view(storage).reshape(-1, 1)


def floats(case: Case) -> torch.Tensor:
    """Float weights of a case on the pack route: float32 of its shape, magnitudes by ``scales``."""
    n = math.prod(case["shape"])
    pattern = case["words"]
    if pattern.name == "zeros":
        unit = np.zeros(n, np.float32)
    elif pattern.name == "ones":
        unit = np.ones(n, np.float32)
    elif pattern.name == "onehot":
        unit = np.zeros(n, np.float32)
        unit[(pattern.number or 0) % n] = 1
    elif pattern.name == "ramp":
        unit = (np.arange(n) % 257 - 128).astype(np.float32) / np.float32(128)
    else:
        unit = (raw_ints(f"floats/{pattern.number}", n, 2**24) - 2**23).astype(np.float32) / np.float32(2**23)
    scale = scale_values(case["scales"], -(-n // case["blocksize"])).numpy()
    with np.errstate(all="ignore"):
        scaled = unit * scale[np.arange(n) // case["blocksize"]]
    return torch.from_numpy(scaled).reshape(case["shape"])


WHY = (
    "the packer normalizes in float32 (reciprocal of absmax, then product): two roundings move a value "
    "at most 2**-22 of absmax across a decision boundary"
)
# Seen by sweeping: the 8-bit CPU packer switches codes only at half-integers of (x + 1) * 32767.5,
# because it looks the code of the normalized value x up in a table of 65536 entries.
GRID = 1 / 65535
WHY_8 = WHY + "; the 8-bit one first rounds the normalized value to a grid of 65536 points, 1/65535 at most"


def bounded(weight: BlockwiseWeight, values: torch.Tensor) -> Packing:
    """The packing with its bound: half the gap to the next code on that side, and for a nested
    absmax half the gap of its own codes too."""
    model = unpack(weight)
    flat = values.double().numpy().reshape(-1)
    n_blocks = model.absmax.size
    true = np.zeros(n_blocks)
    np.maximum.at(true, model.block, np.abs(flat))
    entries = np.unique(model.codebook.astype(np.float64))
    at = np.searchsorted(entries, model.codebook.astype(np.float64)[model.codes])
    # Beyond its ends a map has no further code: the values down to -1 and up to 1 go to the last
    # one. (The dynamic map ends at -0.993.)
    ends = 2 * np.maximum(0, np.array([entries[0] + 1, 1 - entries[-1]]))
    gaps = np.concatenate([ends[:1], np.diff(entries), ends[1:]])
    below, above = gaps[at], gaps[at + 1]
    decoded = model.values().reshape(-1).astype(np.float64)
    half_gap = np.where(flat >= decoded, above, below) / 2
    slack = 2.0**-22 + (GRID if weight.bits == 8 else 0.0)
    bound = (half_gap + slack) * true[model.block]
    if weight.nested is not None:
        code2 = np.sort(weight.nested.codebook.double().numpy())
        widest = max(np.diff(code2).max() / 2, code2[0] + 1, 1 - code2[-1])
        group = np.arange(n_blocks) // weight.nested.blocksize
        off = np.abs(weight.nested.absmax.double().numpy()[group]) * (widest + GRID + 2.0**-22)
        # On which side of its code a value was is not known once its absmax is another.
        bound = (np.maximum(above, below) / 2 + slack) * true[model.block]
        bound += np.abs(entries[at]) * (off + 2.0**-22 * true)[model.block]
    why = WHY_8 if weight.bits == 8 or weight.nested is not None else WHY
    return Packing(weight, flat.reshape(values.shape), bound.reshape(values.shape), why)


def pack(case: Case, oracle: Oracle) -> Packing:
    """Float weights through the oracle's own packer."""
    assert oracle.pack is not None
    values = floats(case)
    options = {"blocksize": case["blocksize"], "nested": case["absmax"] == "nested"}
    if "storage" in case:
        options["storage"] = STORAGES[case["storage"]]
    return bounded(oracle.pack(values.clone(), **options), values)


def pack_real(case: Case, values: torch.Tensor, oracle: Oracle) -> Packing:
    """A real float weight through the oracle's own packer."""
    assert oracle.pack is not None
    nested = case["absmax"] == "nested"
    return bounded(oracle.pack(values.clone(), blocksize=case["blocksize"], nested=nested), values)


def locate(weight: BlockwiseWeight, index: tuple[int, ...]) -> str:
    """Row, column, block, byte, nibble and code of an element."""
    model = unpack(weight)
    flat = int(np.ravel_multi_index(index, weight.shape)) if weight.shape else 0
    block = int(model.block[flat])
    place = f"byte {flat}"
    if weight.bits == 4:
        place = f"byte {flat // 2} {'low' if flat % 2 else 'high'} nibble (word {flat // 8}, slot {flat % 8})"
    last = (
        " (the last, short one)" if weight.numel % weight.blocksize and block == model.absmax.size - 1 else ""
    )
    return f"block {block}{last}, {place}, code {int(model.codes[flat])}, absmax {model.absmax[block]:.6g}"


def axes(weight: BlockwiseWeight) -> Labels:
    """Block, and the place in a 32-bit word of codes."""
    block = np.arange(weight.numel, dtype=np.int64).reshape(weight.shape) // weight.blocksize
    return in_order(weight.output_shape, 32 // weight.bits, block=block)


def four_bit_format(
    name: str,
    summary: str,
    weight_type: type[FourBitWeight],
    kernel: Callable[..., torch.Tensor],
    codebook: torch.Tensor,
    oracles: tuple[Oracle, ...],
) -> Format:
    """Registration of a bitsandbytes 4-bit format; the two differ in their table alone."""
    return Format(
        name=name,
        summary=summary,
        weight_type=weight_type,
        kernel=kernel,
        oracles=oracles,
        unpack=unpack,
        dims=four_bit_dims(),
        words=lambda case: words(case, weight_type, codebook),
        pack=pack,
        pack_real=pack_real,
        locate=locate,
        axes=axes,
        tiles={"case": {"lanes": 16384}, "small": {"lanes": 16}, "default": {}},
        faults=blockwise.FAULTS + rounding.FAULTS,
        inner=1,
        real_variants=REAL_VARIANTS,
        pack_dims=(PACK_SCALES, PACK_CODEBOOK),
        tile_cases=TILE_CASES + STRIDED_WORDS,
        large=LARGE,
        zero_size=("shape=0x64", "shape=3x0", "shape=0"),
        nonfinite=(
            "shape=3x65,scales=inf(1)",
            "shape=3x65,scales=nan(1)",
            "shape=3x65,scales=inf(2),words=zeros",
            "shape=1x8193,blocksize=32,absmax=nested,scales=inf(3)",
            "shape=1x8193,blocksize=32,absmax=nested,scales=nan(3)",
        ),
    )
