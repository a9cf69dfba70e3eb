"""Faults of nf4, fp4 and blockwise8: each a wrong decoder of ``_blockwise.py``."""

from __future__ import annotations

from conformance.faults import Fault
from conformance.faults import _blockwise as wrong
from conformance.faults.codebooks import CODEBOOKS, LITERALS

_DEGRADED = "fluent but degraded text; perplexity rises without an error"
_GARBAGE = "loads and runs, output is garbage"

FOUR_BITS = (
    Fault(
        "nibble-swap",
        "q[2j] from the low nibble, q[2j+1] from the high one",
        _GARBAGE,
        "the even element is in the high nibble",
        wrong.nibble_swap,
        (
            "https://github.com/triton-lang/triton/pull/5197",
            "https://github.com/sgl-project/sglang/pull/23625",
        ),
        kind="order",
        trigger="a byte with two different nibbles; hides in bytes 0x00, 0x11, ... 0xFF",
    ),
    Fault(
        "nibbles-split-by-32",
        "byte j of each 16 holds elements j (low nibble) and j + 16 (high): GGUF's order",
        "fluent nonsense",
        "byte j holds elements 2j (high nibble) and 2j + 1 (low)",
        wrong.split_32,
        ("https://github.com/kekzl/imp/pull/567", "https://github.com/kekzl/imp/pull/722"),
        kind="order",
        trigger="a block with different codes; hides in constant blocks, and in a packer that splits too",
    ),
    Fault(
        "nibbles-split-in-halves",
        "high nibbles hold the first half of the weight, low ones the second: HQQ's order",
        _GARBAGE,
        "byte j holds elements 2j (high nibble) and 2j + 1 (low)",
        wrong.split_halves,
        kind="order",
        trigger="three elements of different codes; right for n <= 2; hides in a packer that splits too",
    ),
    Fault(
        "odd-tail-low-nibble",
        "the last code of an odd length from the low nibble",
        "the last weight of a layer is wrong",
        "the last code is in the high nibble like every even one; the low one is padding",
        wrong.odd_tail_low,
        kind="tails",
        trigger="odd n and a padding nibble unlike the last code; hides in every even length",
    ),
    *CODEBOOKS,
    *LITERALS,
)
EIGHT_BITS = (
    Fault(
        "tail-block-absmax-previous",
        "the short last block uses the absmax of the block before it",
        "the last weights of a layer are off by the ratio of two scales",
        "the number of blocks is ceil(n / blocksize)",
        wrong.tail_previous,
        kind="tails",
        trigger="n % blocksize != 0, at least two blocks, and an absmax that changes; hides in whole blocks",
    ),
    Fault(
        "tail-block-absmax-zero",
        "the short last block is scaled by 0",
        "the last weights of a layer vanish",
        "mask elements by n, not blocks by n // blocksize",
        wrong.tail_scale(0.0),
        kind="tails",
        trigger="n % blocksize != 0 and a tail that is not 0; hides in whole blocks",
    ),
    Fault(
        "tail-block-blank",
        "the short last block is +0 whatever its codes",
        "the last weights of a layer vanish",
        "decode the last block too: the number of blocks is ceil(n / blocksize)",
        wrong.tail_blank,
        kind="tails",
        trigger="n % blocksize != 0 and a tail that is not +0 (a negative 0 or a NaN absmax shows it too)",
    ),
    Fault(
        "tail-block-absmax-one",
        "the short last block is not scaled",
        "the last weights of a layer are codebook values",
        "scale the tail like every other block",
        wrong.tail_scale(1.0),
        kind="tails",
        trigger="n % blocksize != 0 and a last absmax other than 1",
    ),
    Fault(
        "block-index-plus-one",
        "block b uses absmax[b + 1]",
        _DEGRADED,
        "block = i // blocksize",
        wrong.shifted(1),
        kind="groups",
        trigger="two blocks with different absmax; the last block keeps its own",
    ),
    Fault(
        "block-index-minus-one",
        "block b uses absmax[b - 1]",
        _DEGRADED,
        "block = i // blocksize",
        wrong.shifted(-1),
        kind="groups",
        trigger="two blocks with different absmax; the first block keeps its own",
    ),
    Fault(
        "block-boundary-early",
        "block = (i + 1) // blocksize",
        "one weight in each block is off by the ratio of two scales",
        "block = i // blocksize, with i from 0",
        wrong.early,
        kind="groups",
        trigger="two blocks with different absmax and a block whose last element is not 0",
    ),
    Fault(
        "first-block-everywhere",
        "every block uses absmax[0]",
        _DEGRADED,
        "advance the absmax index with the tile",
        wrong.first_block,
        kind="groups",
        trigger="two blocks with different absmax; hides in a weight of one block",
    ),
    Fault(
        "blocksize-64-fixed",
        "block = i // 64 whatever the block size",
        _DEGRADED,
        "read the block size from the weight",
        wrong.fixed_blocksize(64),
        ("https://github.com/mit-han-lab/llm-awq/issues/21",),
        kind="groups",
        trigger="another block size than 64 and two blocks with different absmax",
    ),
    Fault(
        "blocksize-inferred",
        "block = i // ceil(n / number of blocks) instead of i // blocksize",
        "absmax drifts away from its block, from the first block's end on",
        "read the block size from the weight: shapes do not tell it where the last block is short",
        wrong.inferred_blocksize,
        (
            "https://github.com/NVIDIA/TensorRT-Model-Connect/pull/1115",
            "https://github.com/axolotl-ai-cloud/axolotl/pull/3486",
        ),
        kind="groups",
        trigger=(
            "a last block that lacks as many elements as there are blocks (n = 65), absmax that differ; "
            "hides in whole blocks"
        ),
    ),
    Fault(
        "blocks-restart-at-rows",
        "block = row * (columns // blocksize) + column // blocksize",
        _DEGRADED,
        "blocks run over the flattened weight",
        wrong.row_blocks,
        kind="groups",
        trigger=(
            "two rows, columns % blocksize != 0, absmax that differ; hides in rows of whole blocks, as most "
            "layers have"
        ),
    ),
    Fault(
        "nested-absmax-skipped",
        "absmax = the raw uint8 code",
        _GARBAGE,
        "dequantize absmax first: code2[q] * absmax2 + offset",
        wrong.nested("skipped"),
        ("https://github.com/bitsandbytes-foundation/bitsandbytes/pull/1549",),
        kind="scales",
        trigger="a nested absmax",
    ),
    Fault(
        "nested-offset-skipped",
        "absmax = code2[q] * absmax2, without + offset",
        _GARBAGE,
        "add the offset (the mean that was subtracted)",
        wrong.nested("no-offset"),
        kind="scales",
        trigger="a nested absmax with an offset other than 0; hides when absmax averages 0",
    ),
    Fault(
        "nested-offset-first",
        "absmax = (code2[q] + offset) * absmax2",
        _GARBAGE,
        "multiply, then add",
        wrong.nested("offset-first"),
        kind="scales",
        trigger="a nested absmax with an offset other than 0 and absmax2 other than 1",
    ),
    Fault(
        "nested-first-group",
        "absmax2[0] for every group of absmax codes",
        "weights after the first 256 blocks are off",
        "group = block // 256",
        wrong.nested("first-group"),
        kind="groups",
        trigger="a nested absmax of more than 256 blocks; hides in every smaller weight",
    ),
    Fault(
        "nested-fma",
        "code2[q] * absmax2 + offset contracted into one FMA: one rounding instead of two",
        "1 ULP of absmax here and there; invisible in a model",
        "enable_fp_fusion=False, or arithmetic that cannot fuse",
        wrong.nested("fused"),
        kind="precision",
        trigger="a nested absmax, fp32 output, and a code whose product rounds; hides behind any tolerance",
    ),
    Fault(
        "nested-product-in-fp16",
        "code2[q] * absmax2 in float16, + offset in float32",
        "absmax is off by 2**-11 of itself; blocks with tiny scales vanish",
        "widen both factors to float32 before their product",
        wrong.nested("fp16-product"),
        ("https://github.com/ikawrakow/ik_llama.cpp/pull/2503",),
        kind="precision",
        trigger="a nested absmax whose product has over 11 bits, or is below 2**-24; hides behind rtol 1e-3",
    ),
    Fault(
        "scale-through-fp16",
        "absmax rounded to float16 first",
        "2**-11 relative error; inf or 0 for extreme scales",
        "keep absmax in float32",
        wrong.scale_fp16,
        kind="precision",
        trigger=(
            "absmax with more than 11 significant bits, above 65504 or below 2**-24; hides in powers of two"
        ),
    ),
)
# Of four bits too, but after the others: in two or three blocks it is one of them as well.
BYTES = (
    Fault(
        "absmax-index-by-byte",
        "block = (i // 2) // blocksize: the index of the byte, as a kernel that walks bytes has it",
        _DEGRADED,
        "block = i // blocksize of the element; a byte holds two",
        wrong.by_byte,
        kind="groups",
        trigger=(
            "two blocks with different absmax; with two it is also absmax[0] everywhere, with three the "
            "absmax of the block before may fit as well"
        ),
    ),
)
FAULTS = (*FOUR_BITS, *EIGHT_BITS, *BYTES)
