"""Products of a fused kernel with random activations: what they show that one-hot activations cannot."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch

from conformance.bits import to_float
from conformance.faults.product import faults, tails
from conformance.fused_activations import DRAWN, SIGNIFICANT, TOKENS, inputs, one_term, tokens_of
from conformance.fused_causes import NARROW
from conformance.fused_nonfinite import AGAIN, LOST, SPREAD
from conformance.gemm_bound import Accumulation, product
from conformance.products import Products
from conformance.registry import parse_case
from conformance.verdict import Verdict
from kernels import Unsupported
from oracles.spec.rounding import round_to
from tests import fused_kernels as planted
from tests.harness_runs import FORMATS
from tests.test_fused import harness
from tests.test_gemm_bound import rounded

FP = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}


def judged(gemm: planted.Gemm, case: str, **options: Any) -> Verdict:
    name = case.partition(":")[0]
    return Products(harness(name, gemm, **options)).judge(parse_case(case)).verdict


def names(verdict: Verdict) -> list[str]:
    return [cause.name for cause in verdict.causes]


# --- activations of fewer bits --------------------------------------------------------------------


def narrow_x(dtype: torch.dtype) -> planted.Gemm:
    return lambda x, weight: planted.nf4(x.to(dtype).to(x.dtype), weight)


def cut(tensor: torch.Tensor, bits: int) -> torch.Tensor:
    """float32 with so many low bits of the word cleared."""
    return (tensor.float().view(torch.int32) & -(1 << bits)).view(torch.float32)


def cut_to_bfloat16(x, weight):
    return planted.nf4(cut(x, 16).to(x.dtype), weight)


def tf32_of_x(x, weight):
    return planted.nf4(cut(x, 13), weight)


def tf32_of_both(x, weight):
    w = cut(planted.matrix("nf4", weight).float(), 13)
    return cut(x, 13) @ w


SHAPES = ["65x1", "3x2", "5x70", "4x2048", "3x8192"]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("gemm", "out", "cause"),
    [
        (narrow_x(torch.bfloat16), "fp16", "activation-in-bfloat16"),
        (narrow_x(torch.bfloat16), "fp32", "activation-in-bfloat16"),
        (narrow_x(torch.float16), "fp32", "activation-in-float16"),
        (cut_to_bfloat16, "fp16", "activation-in-bfloat16"),
        (tf32_of_x, "fp32", "activation-in-tf32"),
        (tf32_of_both, "fp32", "activation-in-tf32"),
    ],
    ids=["fp16-bf16", "fp32-bf16", "fp32-fp16", "fp16-cut", "fp32-tf32", "fp32-tf32-both"],
)
def test_activations_of_fewer_bits_are_named(gemm, out, cause, shape):
    verdict = judged(gemm, f"nf4:shape={shape},out={out}")
    assert verdict.kind == "MISMATCH"
    assert cause in names(verdict)


def test_a_dtype_that_holds_the_activations_is_no_fault():
    assert judged(narrow_x(torch.float32), "nf4:shape=5x70").kind in ("EXACT", "WITHIN")
    assert judged(narrow_x(torch.bfloat16), "nf4:shape=5x70,out=bf16").kind in ("EXACT", "WITHIN")


def test_names_of_activations_are_those_of_no_weight():
    weights = {fault.name for inner in (0, 1) for fault in (*faults(inner), *tails(inner))}
    assert not weights & {name for name, *_ in NARROW}


@pytest.mark.parametrize("truncating", [False, True])
@pytest.mark.parametrize(("out", "bits"), [("fp16", 8), ("fp32", 8), ("fp32", 11)])
@pytest.mark.parametrize("n_inner", [1, 64, 16384])
def test_one_term_shows_a_rounded_activation_however_long_the_sum(n_inner, out, bits, truncating):
    w = rounded(np.random.default_rng(n_inner).standard_normal((n_inner, 3)), FP[out])
    x = one_term("test", 16, w, FP[out])
    right = product(x, w, FP[out], Accumulation(truncating=truncating))
    fraction, exponent = np.frexp(x)
    near = np.ldexp(np.rint(fraction * 2**bits), exponent - bits)
    assert (np.abs(near @ w - right.exact) > right.bound).any(axis=1).mean() > 0.5


@pytest.mark.parametrize("out", FP)
@pytest.mark.parametrize("tokens", [1, 2, 3, 8, 33])
@pytest.mark.parametrize("scale", [2.0**-140, 2.0**-20, 1.0, 2.0**15])
def test_activations_are_numbers_of_the_dtype(tokens, out, scale):
    """Exact, none subnormal, and of every kind: sparse, full, and of eight bits."""
    dtype = FP[out]
    w = np.random.default_rng(3).standard_normal((40, 5)) * scale
    xs = inputs("test", tokens, w, dtype)
    assert len(xs) == (3 if tokens == 1 else 1)
    for x in xs:
        assert x.shape == (tokens, 40)
        assert (to_float(round_to(x, dtype), dtype) == x).all()
        assert (np.abs(x[x != 0]) >= torch.finfo(dtype).smallest_normal).all()
    rows = np.concatenate(xs)
    kinds = {(bool((row != 0).sum() == 1), significant(row)) for row in rows}
    assert (True, SIGNIFICANT[dtype]) in kinds
    if len(rows) > 1:
        assert (False, SIGNIFICANT[dtype]) in kinds
    if len(rows) > 2:
        assert any(not single and bits <= 8 for single, bits in kinds)


def significant(values: np.ndarray) -> int:
    """Bits of the widest significand."""
    fraction, _ = np.frexp(values)
    return next(bits for bits in range(25) if (fraction * 2.0**bits % 1 == 0).all())


def test_a_weight_of_zeros_has_activations():
    assert not one_term("test", 4, np.zeros((3, 2)), torch.float16).any()


# --- numbers of tokens ------------------------------------------------------------------------------


def doubled(when: Any) -> planted.Gemm:
    return lambda x, weight: planted.nf4(x, weight) * (2 if when(len(x)) else 1)


@pytest.mark.parametrize(
    "when",
    [
        lambda m: 2 < m < 16,
        lambda m: 16 < m < 33,
        lambda m: m > 64,
        lambda m: m not in (1, 2, 16, 33, 48, 64),
        lambda m: m not in (*TOKENS, 48),
    ],
    ids=["3-15", "17-32", "65-", "constants-of-old", "constants"],
)
def test_numbers_of_tokens_between_are_tried(when):
    case = "nf4:shape=9x30"
    verdict = judged(doubled(when), case)
    assert verdict.kind == "MISMATCH"
    wrong = [str(tokens) for tokens in tokens_of(case) if when(tokens)]
    assert f"all with M = {', '.join(wrong)} (" in verdict.summary


def test_one_number_of_tokens_is_drawn_for_each_case():
    last = [tokens_of(f"nf4:shape={n}x64")[-1] for n in range(1, 200)]
    assert last == [tokens_of(f"nf4:shape={n}x64")[-1] for n in range(1, 200)]
    assert not set(last) & set(TOKENS)
    assert len(set(last)) > 80
    assert DRAWN[0] <= min(last) < 20
    assert 230 < max(last) < DRAWN[1]


# --- the weight and the calls ------------------------------------------------------------------------


def clears_codes(x, weight):
    y = planted.nf4(x, weight)
    if len(x) == 64:
        weight.packed.zero_()
    return y


def replaces(x, weight):
    y = planted.nf4(x, weight)
    object.__setattr__(weight, "absmax", weight.absmax.clone())
    return y


def refuses_and_writes(x, weight):
    weight.absmax.mul_(2)
    raise Unsupported("not here")


def writes_behind_codes(x, weight):
    packed = weight.packed
    packed.as_strided((1,), (1,), packed.storage_offset() + packed.numel()).zero_()
    return planted.nf4(x, weight)


@pytest.mark.parametrize(
    ("gemm", "kind", "words"),
    [
        (clears_codes, "INPUT_MUTATED", "packed: "),
        (planted.writes_weight, "INPUT_MUTATED", "absmax: "),
        (replaces, "INPUT_MUTATED", "replaced by others"),
        (refuses_and_writes, "INPUT_MUTATED", "absmax: "),
        (writes_behind_codes, "OOB_WRITE", "1 bytes past the end of packed"),
    ],
)
def test_a_weight_that_is_written_is_told(gemm, kind, words):
    verdict = judged(gemm, "nf4:shape=9x30")
    assert verdict.kind == kind
    assert words in verdict.summary
    if gemm is clears_codes:
        assert "(M = 64)" in verdict.summary


def test_a_weight_comes_in_the_layout_of_the_case():
    seen = []

    def gemm(x, weight):
        seen.append(weight.absmax.stride())
        return planted.nf4(x, weight)

    assert judged(gemm, "nf4:shape=9x64,layout=strided").kind in ("EXACT", "WITHIN")
    assert set(seen) == {(2,)}


def test_a_call_that_leaves_something_for_the_next():
    calls: dict[int, int] = {}

    def gemm(x, weight):
        calls[len(x)] = calls.get(len(x), 0) + 1
        return planted.nf4(x, weight) * (calls[len(x)] if len(x) > 1 else 1)

    verdict = judged(gemm, "nf4:shape=9x30")
    assert verdict.kind == "MISMATCH"
    assert verdict.causes == (AGAIN,)
    assert "called again with M = 33; the first call was right" in verdict.summary


# --- activations that are not finite ---------------------------------------------------------------


def zeros_for_nan(x, weight):
    return planted.nf4(torch.nan_to_num(x), weight)


def clamped(x, weight):
    largest = torch.finfo(x.dtype).max
    return planted.nf4(x.clamp(-largest, largest), weight)


def negative_infinity_lost(x, weight):
    return planted.nf4(torch.where(x == -torch.inf, torch.zeros_like(x), x), weight)


def shared_scale(x, weight):
    """Right for one token; more share a scale, which is taken from the largest of all."""
    one = x.abs().amax() * 0 + 1
    return planted.nf4(x * one if len(x) > 1 else x, weight)


@pytest.mark.parametrize(
    ("gemm", "cause", "words"),
    [
        (zeros_for_nan, LOST, "nan in token 0"),
        (clamped, LOST, "M = 1, k = "),
        (negative_infinity_lost, LOST, "-inf in token 32"),
        (shared_scale, SPREAD, "outputs of tokens that are finite are beyond the bound (M = 33"),
    ],
)
def test_activations_that_are_not_finite(gemm, cause, words):
    verdict = judged(gemm, "nf4:shape=9x30")
    assert verdict.kind == "NONFINITE_CLASS"
    assert verdict.causes == (cause,)
    assert words in verdict.summary


def test_a_term_with_a_zero_weight_may_be_left_out():
    """NaN times 0 is NaN, but a sparse kernel has no such term."""

    def sparse(x, weight):
        w = planted.matrix("nf4", weight).to(x.dtype)
        used = torch.where((w != 0)[None], x.float()[:, :, None] * w.float(), 0.0)
        return used.sum(dim=1).to(x.dtype)

    case = "nf4:shape=9x30,words=ramp"
    fmt = FORMATS["nf4"]
    assert (fmt.unpack(fmt.words(fmt.parse("shape=9x30,words=ramp"))).values() == 0).any()
    assert judged(sparse, case).kind in ("EXACT", "WITHIN")


def test_a_function_may_refuse_activations_that_are_not_finite():
    def gemm(x, weight):
        if not bool(torch.isfinite(x).all()):
            raise Unsupported("finite x only")
        return planted.nf4(x, weight)

    verdict = judged(gemm, "nf4:shape=9x30")
    assert verdict.kind in ("EXACT", "WITHIN")
    assert any("finite x only" in note for note in verdict.notes)


# --- products rounded to the dtype of x ----------------------------------------------------------------


def rounded_products(x, weight, narrow=False):
    """Each product in the dtype of x, summed in float32, as bitsandbytes does on a GPU; with ``narrow`` its
    weight as well."""
    w = planted.matrix("nf4", weight).to(x.dtype)
    if narrow:
        model = FORMATS["nf4"].unpack(planted.planted.dense(weight))
        table, absmax = (torch.from_numpy(part).to(x.dtype) for part in (model.codebook, model.absmax))
        values = table[torch.from_numpy(model.codes)] * absmax[torch.from_numpy(model.block)]
        w = values.view(weight.output_shape).T
    return torch.stack([(token[:, None] * w).float().sum(dim=0) for token in x]).to(x.dtype)


@pytest.mark.parametrize("shape", ["32x64", "64x256"])
@pytest.mark.parametrize(("out", "cause"), [("fp16", "absmax-in-float16"), ("bf16", "absmax-in-bfloat16")])
def test_rounded_products_are_allowed_and_a_narrow_weight_is_still_named(shape, out, cause):
    case = f"nf4:shape={shape},out={out}"
    allowed = Accumulation(rounded_terms=True)
    assert judged(rounded_products, case).kind == "MISMATCH"
    assert judged(rounded_products, case, accumulation=allowed).kind in ("EXACT", "WITHIN")
    narrow = functools.partial(rounded_products, narrow=True)
    assert names(judged(narrow, case, accumulation=allowed)) == [cause]


# --- scales applied after the product, or after the sum ----------------------------------------------


def table_first(x, weight):
    """(x * table) * absmax in float32, then the sum."""
    model = FORMATS["nf4"].unpack(planted.planted.dense(weight))
    table = torch.from_numpy(model.codebook[model.codes]).view(weight.output_shape)
    absmax = torch.from_numpy(model.absmax[model.block]).view(weight.output_shape)
    return ((x.float()[:, None, :] * table) * absmax).sum(dim=-1).to(x.dtype)


def channel_last(x, weight):
    """The sum over codes in float32, then absmax and 1/127, of a llm_int8 weight."""
    codes = planted.planted.dense(weight).codes.float()
    sums = x.float() @ codes.T
    return (sums * (weight.absmax.contiguous() / 127)).to(x.dtype)


def constant_last(x, weight):
    codes = planted.planted.dense(weight).codes.float()
    inverse = torch.tensor(1 / 127, dtype=torch.float32)
    return ((x.float() @ codes.T) * weight.absmax.contiguous() * inverse).to(x.dtype)


@pytest.mark.parametrize("out", FP)
@pytest.mark.parametrize("shape", ["65x1", "65x2", "33x3", "9x300"])
@pytest.mark.parametrize(
    ("name", "gemm"), [("nf4", table_first), ("llm_int8", channel_last), ("llm_int8", constant_last)]
)
def test_a_scale_may_come_later(name, gemm, shape, out):
    verdict = judged(gemm, f"{name}:shape={shape},out={out}")
    assert verdict.kind in ("EXACT", "WITHIN"), verdict.summary
