"""Faults of scales and bias of an fp8 matrix product: each a wrong decoder of ``_gemm_fp8_scales.py``."""

from __future__ import annotations

import numpy as np
import torch

from conformance.faults import Fault
from conformance.faults import _gemm_fp8_scales as wrong

_DEGRADED = "fluent but degraded text; perplexity rises without an error"
_GARBAGE = "loads and runs, output is garbage"
_LAST_BIT = "1 ULP of float32 here and there; shows in 16 bits only beside a tie"
_HALVES = (("fp16", torch.float16), ("bf16", torch.bfloat16))

BLOCKS = (
    Fault(
        "k-block-scale-of-first",
        "scales of the first block of K for all of them: scaled once, after the sum",
        _DEGRADED,
        "scale the sum of each block of K",
        wrong.blocks_of_k(np.zeros_like),
        kind="groups",
        trigger="scales by block and K above 128",
    ),
    Fault(
        "k-block-scale-of-tile-256",
        "scales at tile_start // 128 for a tile of K that spans two blocks",
        "every other block of K has the scale of its neighbour",
        "a tile of K must not be wider than a block, or needs a scale for each column",
        wrong.blocks_of_k(lambda block: block // 2 * 2),
        kind="groups",
        trigger="scales by block and K above 128",
    ),
    Fault(
        "k-block-scale-of-next",
        "scales of the next block of K",
        _DEGRADED,
        "load the scales of the block that was summed, not of the one that is loaded ahead",
        wrong.blocks_of_k(lambda block: np.minimum(block + 1, block.size - 1)),
        kind="groups",
        trigger="scales by block and K above 128; the last block keeps its own",
    ),
    Fault(
        "k-last-block-unscaled",
        "the sum of the last block of K without its scales",
        "off by a factor of thousands where K has a short last block",
        "scale what is left when the loop over K ends",
        wrong.last_block_unscaled,
        ("https://github.com/pytorch/FBGEMM/issues/6159",),
        kind="tails",
        trigger="scales by block, K that is no multiple of 128, scales other than 1",
    ),
    Fault(
        "k-block-by-extent",
        "block k // ceil(K / blocks) instead of k // 128",
        "codes beside block edges get the neighbour's scale",
        "a block has 128 codes whatever K is; read `weight_block_size`",
        wrong.k_by_extent,
        ("https://github.com/NVIDIA/TensorRT-Model-Connect/pull/1115",),
        kind="groups",
        trigger="scales by block and K above 128 that is no multiple of it",
    ),
    Fault(
        "w-block-by-extent",
        "the scale of a channel at n // ceil(N / rows of scales) instead of n // 128",
        "channels beside block edges get the neighbour's scale",
        "a block has 128 channels whatever N is; read `weight_block_size`",
        wrong.rows_by_extent,
        ("https://github.com/NVIDIA/TensorRT-Model-Connect/pull/1115",),
        kind="groups",
        trigger="weight scales by block and N above 128 that is no multiple of it",
    ),
    Fault(
        "w-block-of-first",
        "scales of the first 128 channels for all of them",
        _DEGRADED,
        "index rows of scales by n // 128",
        wrong.rows_by(lambda n, count: np.zeros_like(n)),
        kind="groups",
        trigger="weight scales by block and N above 128",
    ),
    Fault(
        "w-block-of-next",
        "scales of the next 128 channels",
        _DEGRADED,
        "index rows of scales by n // 128",
        wrong.rows_by(lambda n, count: np.minimum(n // 128 + 1, count - 1)),
        kind="groups",
        trigger="weight scales by block and N above 128; the last block keeps its own",
    ),
    Fault(
        "w-last-block-scale-previous",
        "channels of a short last block with the scales of the block before it: N // 128 rows of scales",
        "the last channels of a layer are off by the ratio of two scales",
        "there are ceil(N / 128) rows of scales",
        wrong.short_last_rows,
        kind="tails",
        trigger="weight scales by block and N above 128 that is no multiple of it",
    ),
    *(
        Fault(
            f"{side}-block-scales-transposed",
            f"the scales {shape} read with the other axis first",
            "garbage; as many blocks along both axes hide the shape error",
            "take strides from the tensor; kernels want the scales in one order or the other",
            wrong.transposed(f"{side}_scale"),
            links,
            kind="order",
            trigger=f"scales by block, K above 128 and {other}",
        )
        for side, shape, other, links in (
            ("a", "[M, KB]", "M of 2 and more", ()),
            ("w", "[NB, KB]", "N above 128", ("https://github.com/unslothai/unsloth/pull/8953",)),
        )
    ),
)

SCALES = (
    *(
        Fault(
            f"{side}-scale-of-{which}",
            f"{side}_scale of {whose}",
            _DEGRADED,
            f"index the scale by the {what} itself",
            wrong.side(f"{side}_scale", wrong.lines(change)),
            kind="groups",
            trigger=f"two {what}s whose scales differ; hides per tensor",
        )
        for side, what in (("a", "token"), ("w", "channel"))
        for which, whose, change in (
            ("next", f"the next {what}", wrong.next_one),
            ("next-wrapped", f"the next {what}, and of the first for the last", wrong.next_wrapped),
            ("previous-wrapped", f"the {what} before, and of the last for the first", wrong.previous_wrapped),
            ("first", f"the first {what}", wrong.first_one),
        )
    ),
    *(
        Fault(
            f"{side}-scale-ignored",
            f"{side}_scale taken as 1",
            _GARBAGE,
            "multiply by both scales",
            wrong.side(f"{side}_scale", np.ones_like),
            kind="scales",
            trigger="a scale other than 1",
        )
        for side in ("a", "w")
    ),
    *(
        Fault(
            f"{side}-scale-inverted",
            f"1 / {side}_scale: the factor of quantization instead of that of decoding",
            _GARBAGE,
            "checkpoints have scales that decode (`weight_scale`, and `weight_scale_inv` in spite of its "
            "name); torchao's float8 training has the reciprocal",
            wrong.side(f"{side}_scale", np.reciprocal),
            kind="scales",
            trigger="a scale other than 1",
        )
        for side in ("a", "w")
    ),
    *(
        Fault(
            f"{side}-scale-through-{name}",
            f"{side}_scale rounded to {name} first",
            "a relative error of half an ULP of that dtype in whole rows, columns or blocks",
            "keep scales in float32",
            wrong.side(f"{side}_scale", lambda scale, dtype=dtype: wrong.through(dtype, scale)),  # type: ignore[misc]
            kind="precision",
            trigger=f"a scale that {name} cannot hold",
        )
        for side in ("a", "w")
        for name, dtype in _HALVES
    ),
    *(
        Fault(
            f"scale-product-in-{name}",
            f"both scales rounded to {name} and multiplied in it",
            "a relative error of half an ULP of that dtype; products below its range are 0",
            "multiply scales in float32",
            wrong.scale_product_in(dtype),
            kind="precision",
            trigger=f"scales that {name} cannot hold; both by block, or neither",
        )
        for name, dtype in _HALVES
    ),
    *(
        Fault(
            name,
            f"{text} in another order's place",
            _LAST_BIT,
            "multiply in the order that the format names",
            wrong.order(order),
            kind="precision",
            trigger="another order, float32 output, scales of many bits; both by block, or neither",
        )
        for name, order, text in (
            ("activation-scale-first", "a-w", "fp32(fp32(x * a_scale) * w_scale)"),
            ("weight-scale-first", "w-a", "fp32(fp32(x * w_scale) * a_scale)"),
            ("scales-multiplied-first", "product", "fp32(x * fp32(a_scale * w_scale))"),
        )
    ),
    Fault(
        "block-sum-fused",
        "the last scale of each block and the addition with one rounding (a fused multiply-add)",
        _LAST_BIT,
        "compile without contraction, or take the fused result for the format's; DeepGEMM fuses",
        wrong.sums_fused,
        kind="precision",
        trigger="scales by block, K above 128, float32 output",
    ),
)

BIAS = (
    Fault(
        "bias-missing",
        "y without the bias",
        _DEGRADED,
        "add the bias after the scales",
        wrong.bias_as(np.zeros_like),
        kind="bias",
        trigger="a bias other than 0; hides in layers without one",
    ),
    Fault(
        "bias-twice",
        "y + bias + bias",
        _DEGRADED,
        "add it in the kernel or after it, not in both",
        wrong.with_bias(lambda model, bias: model.scaled() + bias + bias),
        kind="bias",
        trigger="a bias other than 0",
    ),
    Fault(
        "bias-before-scales",
        "(sum + bias) * scales: the bias is scaled too",
        "the bias all but vanishes",
        "add the bias after the scales",
        wrong.bias_first,
        kind="bias",
        trigger="a bias other than 0 and scales other than 1, none of them by block",
    ),
    Fault(
        "bias-of-each-k-block",
        "the bias once for every 128 of K",
        _DEGRADED,
        "add it after the loop over K, or by one split alone",
        wrong.bias_of_each_block,
        kind="bias",
        trigger="a bias other than 0 and K above 128",
    ),
    Fault(
        "bias-of-next-channel",
        "bias[n + 1]",
        _DEGRADED,
        "index the bias by the channel itself",
        wrong.bias_as(wrong.next_one),
        kind="bias",
        trigger="two channels whose bias differs; the last one keeps its own",
    ),
    *(
        Fault(
            f"bias-through-{name}",
            f"the bias rounded to {name} first",
            "the last bits of the bias; invisible in that output dtype but for a rounding here and there",
            "widen the bias to float32",
            wrong.bias_as(lambda bias, dtype=dtype: wrong.through(dtype, bias)),  # type: ignore[misc]
            kind="bias",
            trigger=f"a bias that {name} cannot hold, and float32 output",
        )
        for name, dtype in _HALVES
    ),
    Fault(
        "bias-after-rounding",
        "dtype(dtype(y) + dtype(bias)): rounded before the bias and after it",
        "1 ULP of the output dtype in every other element",
        "add the bias in float32, before the one rounding",
        wrong.bias_after_rounding,
        kind="bias",
        trigger="16-bit output and a bias; hides in float32",
    ),
)

FAULTS = BLOCKS + SCALES + BIAS
