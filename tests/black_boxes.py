"""Int8 matrix products as a user would write them in torch, with one step wrong where asked for."""

from __future__ import annotations

import torch


def gemm(
    w, *, dtype, out=None,
    depth=lambda k: k, wrap=lambda acc: acc, sign=-1, token=lambda s: s, channel=lambda s: s,
    bias_first=False, store=lambda y, dtype: y.to(dtype), one_token=None,
) -> torch.Tensor:  # fmt: skip
    """A right product of an ``Int8GemmInput`` unless a step is replaced."""
    if one_token is not None and w.a.shape[0] == 1:
        return gemm(w, dtype=dtype, out=out, **one_token)
    b = (w.b if w.b_layout == "NK" else w.b.t()).long()
    kept = depth(w.a.shape[1])
    acc = wrap(w.a.long()[:, :kept] @ b[:, :kept].t())
    if w.a_zero is not None:
        acc = acc + sign * w.a_zero.long()[:, None] * b.sum(dim=1)
    a_scale, w_scale = token(w.a_scale)[:, None], channel(w.w_scale)[None, :]
    y = acc.float()
    bias = 0 if w.bias is None else w.bias.float()
    if bias_first:
        y = y + bias
    if w.order == "product":
        y = y * (a_scale * w_scale)
    elif w.order == "absmax":
        y = y * (a_scale * w_scale) * torch.tensor(1 / 127**2, dtype=torch.float32)
    else:
        y = y * a_scale * w_scale if w.order == "a-w" else y * w_scale * a_scale
    if w.bias is not None and not bias_first:
        y = y + bias
    y = store(y, dtype)
    return y if out is None else out.copy_(y)


def dynamic(x, *, dtype, out=None, rounding=torch.round, **wrong) -> torch.Tensor:
    """A product of a ``DynamicGemmInput`` of rule ``scale``."""
    from kernels import Unsupported

    if x.rule != "scale":
        raise Unsupported("rule scale only")
    values = x.x.float()
    scale = values.abs().amax(dim=1) / 127
    inverse = 1 / scale
    codes = rounding((values * inverse[:, None]).nan_to_num(0.0, 0.0, 0.0)).clamp(-127, 127).to(torch.int8)
    return gemm(x.quantized(codes, scale, None), dtype=dtype, out=out, **wrong)


def half_away(x: torch.Tensor) -> torch.Tensor:
    return torch.sign(x) * torch.floor(x.abs() + 0.5)


WRONG = {
    "int16 sums": ({"wrap": lambda acc: acc.to(torch.int16).long()}, "accumulation"),
    "tail of K": ({"depth": lambda k: k // 4 * 4}, "accumulation"),
    "one token": ({"one_token": {"depth": lambda k: k // 16 * 16}}, "accumulation"),
    "zero added": ({"sign": 1}, "zero point"),
    "zero ignored": ({"sign": 0}, "zero point"),
    "next token": ({"token": lambda s: s.roll(-1)}, "activation scale"),
    "first channel": ({"channel": lambda s: s[:1].expand_as(s)}, "weight scale"),
    "bias first": ({"bias_first": True}, "bias"),
    "truncated": (
        {"store": lambda y, dtype: (y.view(torch.int32) >> 16).to(torch.int16).view(dtype)
         if dtype is torch.bfloat16 else y.to(dtype)},
        "output rounding",
    ),
}  # fmt: skip
