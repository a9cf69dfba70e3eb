"""What quantizing activations by token does to them: not a fault of a kernel, but often taken for one.

A token has one scale, set by its largest number. Where a few channels are much larger than the rest (in
language models they are the same channels for all tokens: https://arxiv.org/abs/2208.07339), the rest is
left with the codes around 0, and the product is far off although every step is exact.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from conformance.errors import UsageError
from kernels.gemm_quantize import QuantizeInput, Rule
from oracles.spec.gemm_quantize import quantized

# Codes of up to 3 bits and a sign. A normal distribution over a row of a few thousand numbers reaches
# about 4 standard deviations, so that a standard deviation is 32 codes and one code in six is this small;
# with an outlier of four times that reach, more than half of them are.
SMALL = 7
HALF = 0.5
# int8 sums stay inside int32 up to this K; the largest product is 128 * 128.
LONGEST = 2**31 // 2**14
# Channels that are named.
NAMED = 4


def look(x: torch.Tensor, rule: Rule = "scale") -> Iterator[str]:
    """Lines about activations [M, K] (float16, bfloat16 or float32) under a rule of ``gemm_quantize``.

    Raises:
        UsageError: another dtype or number of dimensions, no elements, or no token that is finite.
    """
    if x.ndim != 2 or not x.numel():
        raise UsageError(f"x: expected [M, K] with elements, found shape {list(x.shape)}")
    try:
        weight = QuantizeInput(x, rule, True)
        weight.validate()
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from error
    values = x.double().numpy()
    bad = ~np.isfinite(values).all(axis=1)
    if bad.all():
        raise UsageError(
            f"x: expected a token without infinity and NaN, found none among {len(bad)}: nothing was measured"
        )
    yield f"{x.shape[0]} tokens of {x.shape[1]} channels, rule {rule}"
    if bad.any():
        yield f"{int(bad.sum())} tokens have an infinity or NaN and are left out: they are NaN in the product"
    good = values[~bad]
    if not good.any():
        yield "all activations are 0: there is nothing to quantize, and a division by their scale gives NaN"
        return
    model = quantized(QuantizeInput(x[torch.from_numpy(~bad)], rule, True))
    codes = model.codes - model.zero[:, None]
    yield from _codes(codes, good, model.values().astype(np.float64))
    yield from _channels(good)
    yield from _numbers(good, x.dtype)


def _decibel(signal: np.ndarray, error: np.ndarray) -> float:
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(10 * np.log10(np.square(signal).sum() / np.square(error).sum()))


def _codes(codes: np.ndarray, x: np.ndarray, decoded: np.ndarray) -> Iterator[str]:
    size = np.abs(codes)
    edges = [0, 1, 2, 4, 8, 16, 32, 64, 256]
    counts, _ = np.histogram(size, edges)
    shares = ", ".join(
        f"{low if high - low == 1 else f'{low}-{min(high - 1, 255)}'}: {100 * count / size.size:.1f} %"
        for low, high, count in zip(edges, edges[1:], counts, strict=False)
    )
    yield f"|code| {shares}"
    yield f"SNR of the quantized activations {_decibel(x, decoded - x):.1f} dB"
    # Zeros have the code 0 under every scale.
    small = float((size[x != 0] <= SMALL).mean())
    if small > HALF:
        yield (
            f"outlier-dominated: {100 * small:.0f} % of the numbers other than 0 have codes of {SMALL} or "
            f"less in size, since the largest number of each token sets its scale"
        )


def _channels(x: np.ndarray) -> Iterator[str]:
    """Which channels set the scales, and what a scale by channel would give."""
    rms = np.sqrt(np.square(x).mean(axis=1))
    largest = np.abs(x).max(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(rms > 0, largest / rms, 0.0)
    yield f"largest / rms of a token: median {np.median(ratio):.1f}, at most {ratio.max():.1f}"
    setting = np.bincount(np.abs(x).argmax(axis=1)[largest > 0], minlength=x.shape[1])
    order = np.argsort(-setting, kind="stable")[:NAMED]
    named = ", ".join(f"{int(c)} ({100 * setting[c] / len(x):.0f} %)" for c in order if setting[c])
    if named:
        yield f"channels that set the scale of most tokens: {named}"
    by_channel = np.abs(x).max(axis=0) / 127
    step = np.where(by_channel > 0, by_channel, 1.0)
    smoothed = np.rint(x / step) * step
    rest = np.abs(np.delete(x, order[setting[order] > len(x) / 10], axis=1))
    yield (
        f"with a scale by channel (folded into the weight, as SmoothQuant does) "
        f"{_decibel(x, smoothed - x):.1f} dB; without the channels above the largest number is "
        f"{rest.max(initial=0.0):.4g} instead of {largest.max():.4g}"
    )


def _numbers(x: np.ndarray, dtype: torch.dtype) -> Iterator[str]:
    largest = np.abs(x).max(axis=1)
    zero = int((largest == 0).sum())
    if zero:
        yield f"{zero} tokens are all 0: a kernel that divides by their scale gives NaN"
    held = largest[largest > 0]
    half = np.finfo(np.float16)
    subnormal = int((held / 127 < float(half.smallest_normal)).sum())
    if subnormal:
        yield (
            f"a scale computed in float16 is subnormal for {subnormal} tokens, and its inverse overflows "
            f"below {127 / float(half.max):.3g}: compute it in float32"
        )
    if dtype is torch.float16 and held.size and held.max() * 127 > float(half.max):
        yield "127 * x overflows in float16: compute the codes in float32"
    if x.shape[1] >= LONGEST:
        yield f"K = {x.shape[1]}: int8 sums can leave int32 from K = {LONGEST} on; split K"
