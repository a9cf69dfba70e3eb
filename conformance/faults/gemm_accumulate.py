"""Faults of the integer sums of an int8 matrix product: each a wrong decoder of ``_gemm.py``."""

from __future__ import annotations

import numpy as np

from conformance.faults import Fault
from conformance.faults import _gemm as wrong

_GARBAGE = "loads and runs, output is garbage"
_CHANNELS = "some outputs are off by a large amount, others right: degraded to garbled text"

TAILS = tuple(
    fault
    for tile in (4, 16, 32, 64, 128)
    for fault in (
        Fault(
            f"k-tail-skipped-{tile}",
            f"the last K % {tile} products are not added",
            "layers whose K is no multiple lose a few inputs: slightly to badly degraded",
            "mask the last tile of K instead of ending before it",
            wrong.tail_skipped(tile),
            (
                "https://github.com/tile-ai/tilelang/issues/2381",
                "https://github.com/tile-ai/tilelang-ascend/issues/1341",
            ),
            kind="tails",
            trigger=f"K % {tile} != 0 and codes other than 0 in that tail; hides in multiples of {tile}",
        ),
        Fault(
            f"k-tail-clamped-{tile}",
            f"lanes behind K, up to a multiple of {tile}, read code K - 1 again",
            "the last input counts many times",
            "mask loads with 0; do not clamp the index",
            wrong.tail_clamped(tile),
            kind="tails",
            trigger=f"K % {tile} != 0 and a last code other than 0; hides in multiples of {tile}",
        ),
        Fault(
            f"k-tail-overlaps-{tile}",
            f"the last tile of {tile} starts at K - {tile}: codes before the tail count twice",
            "some inputs count twice in layers whose K is no multiple",
            "mask the last tile of K, or mask what overlaps",
            wrong.tail_overlapping(tile),
            kind="tails",
            trigger=f"K above {tile} and K % {tile} != 0; hides in multiples of {tile}",
        ),
    )
)
LAST_TILES = tuple(
    Fault(
        f"k-last-tile-only-{tile}",
        f"acc = dot(...) instead of acc += dot(...): the last tile of {tile} alone counts",
        _GARBAGE,
        "hand the accumulator on to the next product",
        wrong.last_tile_only(tile),
        kind="sums",
        trigger=f"K above {tile}; hides where one tile holds all of K",
    )
    for tile in (32, 64, 128, 256)
)

FAULTS = (
    Fault(
        "sum-int8",
        "sums modulo 2**8",
        _GARBAGE,
        "the output dtype of the product is int32",
        wrong.wrapped(8),
        kind="sums",
        trigger="a sum outside of -128..127: two products suffice; hides in one-hot operands",
    ),
    Fault(
        "sum-int16-wraps",
        "sums modulo 2**16",
        _GARBAGE,
        "accumulate in int32",
        wrong.wrapped(16),
        ("https://github.com/microsoft/BitNet/issues/629",),
        kind="sums",
        trigger="a sum outside of -32768..32767: three large products of one sign; hides in small codes",
    ),
    Fault(
        "sum-int16-saturates",
        "sums clamped to -32768..32767",
        "large activations lose their size: degraded, worst in outlier channels",
        "accumulate in int32",
        wrong.clamped(16),
        ("https://github.com/uxlfoundation/oneDNN/issues/518",),
        kind="sums",
        trigger="a sum outside of -32768..32767: codes `top` or `extremes`; hides in random codes of small K",
    ),
    Fault(
        "sum-pairs-saturate-int16",
        "a[k] * b[k] + a[k + 1] * b[k + 1] clamped to 16 bits before it is added (vpmaddubsw)",
        "outputs of large neighbouring codes are too small; worse with unsigned activations",
        "use VNNI, or 7-bit codes (reduce_range)",
        wrong.summed(wrong.pairs_clamped),
        (
            "https://github.com/uxlfoundation/oneDNN/issues/476",
            "https://github.com/pytorch/FBGEMM/issues/199",
            "https://github.com/pytorch/pytorch/issues/17458",
        ),
        kind="sums",
        trigger="two neighbouring products beyond 32767 together: uint8 codes above 128; hides in int8 codes",
    ),
    Fault(
        "sum-int32-saturates",
        "sums clamped to int32 instead of wrapped",
        "none below K = 131072 (65794 with unsigned activations)",
        "split K, or leave .satfinite out",
        wrong.clamped(32),
        kind="sums",
        trigger="a sum beyond int32: K of 131072 and more with extreme codes; hides in every layer of today",
    ),
    Fault(
        "sum-fp16",
        "products added one after another in float16",
        "sums above 2048 are rounded, above 65504 infinite: degraded to garbage",
        "accumulate in int32; tl.dot of int8 operands takes out_dtype=tl.int32",
        wrong.floating(np.float16),
        ("https://github.com/microsoft/onnxruntime/pull/29611",),
        kind="sums",
        trigger="a sum or product above 2048 with more than 11 bits; hides in small codes",
    ),
    Fault(
        "sum-fp32",
        "products added one after another in float32",
        "none below K = 1024; then the last bits of large sums",
        "accumulate in int32",
        wrong.floating(np.float32),
        kind="sums",
        trigger="sums beyond 2**24: K above 1024 and large codes of one sign; hides in every small K",
    ),
    Fault(
        "a-other-signedness",
        "unsigned activations read as int8, or signed ones as uint8",
        _GARBAGE,
        "load the activations with the dtype they are stored in",
        wrong.operands(lambda a, b, unsigned: (wrong.other_signedness(a, unsigned), b)),
        ("https://github.com/intel/auto-round/pull/2273",),
        kind="bits",
        trigger="an activation code with its high bit set; hides after a ReLU with symmetric codes",
    ),
    Fault(
        "b-other-signedness",
        "weights read as uint8",
        _GARBAGE,
        "the weight's codes are int8",
        wrong.operands(lambda a, b, unsigned: (a, wrong.other_signedness(b, False))),
        kind="bits",
        trigger="a negative weight code",
    ),
    Fault(
        "a-shift-not-restored",
        "sum of (a - 128) * b: unsigned activations shifted for a signed product, and not shifted back",
        "every channel is off by 128 times the sum of its weights",
        "add 128 times the sum of the weight's codes",
        wrong.shift_not_restored,
        kind="bits",
        trigger="uint8 activations and a channel whose codes do not add up to 0; hides in int8 activations",
    ),
    Fault(
        "codes-clamped-to-127",
        "code -128 read as -127, in both operands",
        "none for symmetric quantizers, which never give -128",
        "multiply all 256 codes",
        wrong.operands(lambda a, b, unsigned: (np.maximum(a, -127), np.maximum(b, -127))),
        kind="bits",
        trigger="the code -128 against a code other than 0",
    ),
    Fault(
        "b-transposed",
        "b[k, n] read where b[n, k] is meant (square weights hide the shape error)",
        "garbage in square layers only",
        "take the layout from the weight",
        wrong.operands(lambda a, b, unsigned: (a, b.T) if b.shape[0] == b.shape[1] > 1 else None),
        kind="order",
        trigger="N = K of 2 and more; any other shape is an error instead",
    ),
    Fault(
        "a-transposed",
        "a[k, m] read where a[m, k] is meant",
        "garbage where as many tokens as inputs",
        "take strides from the tensor",
        wrong.operands(lambda a, b, unsigned: (a.T, b) if a.shape[0] == a.shape[1] > 1 else None),
        kind="order",
        trigger="M = K of 2 and more; any other shape is an error instead",
    ),
    Fault(
        "result-transposed",
        "acc[n, m] stored where acc[m, n] is meant",
        "garbage where as many tokens as outputs",
        "a column-major product gives the transposed result",
        wrong.transposed_result,
        kind="order",
        trigger="M = N of 2 and more; any other shape is an error instead",
    ),
    Fault(
        "b-words-reversed",
        "the four codes of each 32-bit word of b in the other order",
        _GARBAGE,
        "byte 0 of a word is its first code",
        wrong.summed(wrong.words_reversed),
        kind="order",
        trigger="K of 4 and more, codes of a word that differ in both operands; hides in constant rows",
    ),
    *LAST_TILES,
    *TAILS,
)
