"""The bound of fp8 sums: tensor cores that cut never leave it, faults do, and what it calls exact is."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from conformance import fp8_bound
from conformance.allowed import within
from conformance.bits import DTYPES, from_bits
from conformance.candidates import predict
from conformance.context import context
from conformance.execution import Execution
from conformance.faults import Context
from conformance.fp8_bound import PROMOTED, TERMS, kernel_reach, oracle_reach, sums
from conformance.judge import Answer, Judge
from conformance.materialize import materialize
from conformance.registry import Allowance, Reach
from oracles.spec.gemm_fp8 import Fp8GemmModel
from oracles.spec.rounding import round_to
from tests.harness_runs import FORMATS, drawn
from tests.mutants import mutant

FMT = FORMATS["gemm_fp8"]


def model_of(text: str) -> Fp8GemmModel:
    return FMT.unpack(materialize(FMT, FMT.parse(text))[0])


# --- accumulators ---------------------------------------------------------------------------------


def cut(value: np.ndarray, quantum: np.ndarray) -> np.ndarray:
    """Toward minus infinity, as shifting a two's complement number right does."""
    return np.floor(value / quantum) * quantum


def exponent(sizes: np.ndarray) -> np.ndarray:
    """Power of two at or below each size; 2**-6 for what is smaller."""
    held = np.maximum(sizes, 2.0**-6)
    return 2.0 ** np.floor(np.log2(held))


def tensor_core(a: np.ndarray, b: np.ndarray, chain: int, bits: int = 13) -> np.ndarray:
    """a [M, K] times b [N, K]: 32 products and the sum so far are aligned to the largest exponent, cut
    below ``bits`` of it, added, and the sum is cut to as many bits; after ``chain`` instructions it is
    added up in float32."""
    kept: np.ndarray = np.zeros((a.shape[0], b.shape[0]), np.float32)
    inside = np.zeros(kept.shape)
    for number, first in enumerate(range(0, a.shape[1], TERMS)):
        x, y = a[:, first : first + TERMS], b[:, first : first + TERMS]
        terms = x[:, None, :] * y[None, :, :]
        top = (exponent(np.abs(x))[:, None, :] * exponent(np.abs(y))[None, :, :]).max(axis=2)
        top = np.maximum(top, np.where(inside == 0, 0, exponent(np.abs(inside))))
        quantum = top * 2.0**-bits
        total = cut(terms, quantum[..., None]).sum(axis=2) + cut(inside, quantum)
        inside = cut(total, np.maximum(exponent(np.abs(total)) * 2.0**-bits, 2.0**-149))
        if (number + 1) % chain == 0:
            kept, inside = (kept + inside.astype(np.float32)), np.zeros(kept.shape)
    return (kept + inside.astype(np.float32)).astype(np.float64)


def float32_in_order(a: np.ndarray, b: np.ndarray, order: np.ndarray) -> np.ndarray:
    total: np.ndarray = np.zeros((a.shape[0], b.shape[0]), np.float32)
    for k in order:
        total = total + (a[:, k, None] * b[None, :, k]).astype(np.float32)
    return total.astype(np.float64)


OPERANDS = [
    "M=3,N=9,K=32,a=random(1),b=random(1)",
    "M=3,N=9,K=160,a=random(2),b=random(2)",
    "M=2,N=5,K=1000,a=random(3),b=random(3)",
    "M=3,N=9,K=257,a=ramp,b=random(4)",
    "M=3,N=9,K=100,a=sub(1),b=random(5)",
    "M=3,N=9,K=100,a=sub(1),b=sub(2)",
    "M=2,N=3,K=500,a=max,b=max",
    "M=3,N=9,K=300",
]


@pytest.mark.parametrize("chain", range(1, PROMOTED + 1))
@pytest.mark.parametrize("text", OPERANDS)
def test_tensor_cores_that_cut_stay_within(text, chain):
    model = model_of(text)
    found = sums(model, tensor_cores=True)
    off = np.abs(tensor_core(model.a, model.b, chain) - found.exact[0])
    assert (off <= found.error[0]).all()


def test_cutting_shows_at_all():
    """The accumulator above is not exact by chance: without it the tests before this would show nothing."""
    model = model_of(OPERANDS[1])
    exact = sums(model, tensor_cores=True).exact[0]
    assert (tensor_core(model.a, model.b, 1) != exact).mean() > 0.5


@pytest.mark.parametrize("text", OPERANDS)
def test_float32_in_any_order_stays_within(text):
    model = model_of(text)
    found = sums(model, tensor_cores=False)
    n_inner = model.a.shape[1]
    for order in (
        np.arange(n_inner),
        np.arange(n_inner)[::-1],
        np.random.default_rng(1).permutation(n_inner),
    ):
        assert (np.abs(float32_in_order(model.a, model.b, order) - found.exact[0]) <= found.error[0]).all()


def test_what_is_called_exact_is_so_in_every_accumulator():
    """On the suite's own cases; most outputs are."""
    exact = judged = 0
    for case in drawn("gemm_fp8", 150, out="fp32"):
        model = FMT.unpack(materialize(FMT, case)[0])
        if np.isnan(model.a).any() or np.isnan(model.b).any():
            continue
        found = sums(model, tensor_cores=True)
        for span, want, error in zip(model.spans(), found.exact, found.error, strict=True):
            a, b = model.a[:, span], model.b[:, span]
            for chain in (1, PROMOTED):
                got = tensor_core(a, b, chain)
                assert (got == want)[error == 0].all(), case.id
            exact, judged = exact + int((error == 0).sum()), judged + error.size
    assert exact > judged / 2


def test_a_sum_one_bit_too_wide_is_not_called_exact():
    """2**12 units and one more."""
    plain = model_of("M=1,N=1,K=32,a=zeros,b=zeros")
    a, b = np.zeros((1, 32)), np.zeros((1, 32))
    a[0, :18], b[0, :18] = [*[16] * 15, 15, 15, 1], [*[16] * 15, 15, 2, 1]
    assert (a * b).sum() == 2**12
    assert sums(dataclasses.replace(plain, a=a, b=b), tensor_cores=True).error.item() == 0
    a[0, 18], b[0, 18] = 1, 1
    wider = dataclasses.replace(plain, a=a, b=b)
    assert sums(wider, tensor_cores=True).error.item() > 0
    assert sums(wider, tensor_cores=False).error.item() == 0


# --- outputs --------------------------------------------------------------------------------------


def answer_of(model: Fp8GemmModel, chain: int, dtype: torch.dtype) -> np.ndarray:
    """What the text gives on top of an accumulator that cuts."""
    parts = [tensor_core(model.a[:, span], model.b[:, span], chain) for span in model.spans()]
    made = dataclasses.replace(model, sums=np.stack(parts)) if parts else model
    return round_to(made.values(), dtype)


@pytest.mark.parametrize("out", DTYPES)
def test_a_right_kernel_on_tensor_cores_never_fails(out):
    """The verdict itself, as on a GPU: EXACT or WITHIN, whatever the case."""
    kinds = set()
    for case in drawn("gemm_fp8", 150, out=out):
        weight = materialize(FMT, case)[0]
        model = FMT.unpack(weight)
        got = answer_of(model, PROMOTED, DTYPES[out])
        reach = kernel_reach(model, tensor_cores=True)
        want = round_to(model.values(), DTYPES[out])
        right = (got == want) | within(got, reach, DTYPES[out])
        assert right.all(), case.id
        kinds.add(bool((got == want).all()))
    assert kinds == {True, False}


SCALE_STEPS = (
    "a-scale-of-next",
    "w-scale-of-next",
    "a-scale-ignored",
    "k-block-scale-of-next",
    "bias-before-scales",
)


@pytest.mark.parametrize("fault", SCALE_STEPS)
@pytest.mark.parametrize(
    "operands", ["a=random(1),b=random(1)", "a=ramp,b=random(3)", "a=whole(1),b=whole(2)"]
)
def test_one_wrong_scale_leaves_the_bound_of_tensor_cores(fault, operands):
    """The other side: of arbitrary codes too."""
    text = f"M=16,N=130,K=256,{operands},bias=fp32,out=fp32"
    if fault == "k-block-scale-of-next":
        text += ",aper=block,wper=block"
    weight = materialize(FMT, FMT.parse(text))[0]
    model = FMT.unpack(weight)
    wrong = next(one for one in FMT.faults if one.name == fault)
    got = wrong.decode(Context(weight, model, torch.float32))
    want = round_to(model.values(), torch.float32)
    reach = kernel_reach(model, tensor_cores=True)
    assert not ((got == want) | within(got, reach, torch.float32)).all()


def test_one_step_of_a_scale_shows_where_sums_are_exact():
    """1 ULP of float32 in one token's scale."""
    weight = materialize(FMT, FMT.parse("M=4,N=9,K=96,out=fp32"))[0]
    model = FMT.unpack(weight)
    scale = weight.a_scale.clone()
    scale[2] = torch.nextafter(scale[2], torch.tensor(1.0))
    got = round_to(FMT.unpack(dataclasses.replace(weight, a_scale=scale)).values(), torch.float32)
    inside = within(got, kernel_reach(model, tensor_cores=True), torch.float32)
    want = round_to(model.values(), torch.float32)
    differs = ((got != want) & ~inside).any(axis=1)
    assert differs.tolist() == [False, False, True, False]


def test_an_oracle_may_scale_first():
    """torch on a CPU: within its own reach, and mostly not within that of the kernel, which is exact."""
    outside = 0
    for case in drawn("gemm_fp8", 100, out="fp32"):
        model = FMT.unpack(materialize(FMT, case)[0])
        if model.blocked or not np.isfinite(model.a_scale).all() or not np.isfinite(model.w_scale).all():
            continue
        with np.errstate(all="ignore"):
            a = model.a.astype(np.float32) * model.a_scale[0][:, None]
            b = model.b.astype(np.float32) * model.w_scale[0][:, None]
            value = a @ b.T
            if model.bias is not None:
                value = value + model.bias[None, :]
        got, want = round_to(value, torch.float32), round_to(model.values(), torch.float32)
        mine = (got == want) | within(got, oracle_reach(model, tensor_cores=False), torch.float32)
        assert mine.all(), case.id
        kernel = (got == want) | within(got, kernel_reach(model, tensor_cores=False), torch.float32)
        outside += not kernel.all()
    assert outside > 5


@pytest.mark.parametrize("name", ["a-scale-of-next", "w-scale-of-first", "sign-ignored", "bias-missing"])
@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_a_fault_is_named_where_sums_are_not_exact(name, device):
    """The sums of the faulty kernel are as free as those of a right one."""
    text = "M=5,K=512,N=9,a=random(1),b=random(2),bias=fp32,out=fp32"
    weight = materialize(FMT, FMT.parse(text))[0]
    fault = next(one for one in FMT.faults if one.name == name)
    distorted = predict(fault.decode, context(FMT, weight, torch.float32, device)).model
    assert distorted is not None
    if device == "cpu":
        a, b = distorted.a.astype(np.float32), distorted.b.astype(np.float32)
        sums = np.add.accumulate(a[:, None, ::-1] * b[None, :, ::-1], axis=2, dtype=np.float32)[..., -1][None]
        got = round_to(dataclasses.replace(distorted, sums=sums.astype(np.float64)).values(), torch.float32)
    else:
        got = answer_of(distorted, PROMOTED, torch.float32)
    assert (got != round_to(distorted.values(), torch.float32)).any(), "the sums are exact after all"
    assert judged(text, device, got).causes[0].name == name


# --- the verdict ----------------------------------------------------------------------------------


def judged(text: str, device: str, bits: np.ndarray, answers: tuple[Answer, ...] = ()):
    """A verdict on output bits, as a kernel on ``device`` would get it."""
    case = FMT.parse(text)
    weight = materialize(FMT, case)[0]
    rules = Judge(FMT, "mine", device)
    return rules(case, weight, DTYPES[case["out"]], Execution(bits=bits), answers)


RANDOM = "M=3,N=9,K=160,a=random(2),b=random(2),out=fp32"


def test_the_device_decides_the_bound():
    """What tensor cores may give is wrong of a float32 sum."""
    got = answer_of(model_of(RANDOM), PROMOTED, torch.float32)
    on_gpu, on_cpu = judged(RANDOM, "cuda:0", got), judged(RANDOM, "cpu", got)
    assert (on_gpu.kind, on_gpu.label) == ("WITHIN", "WITHIN(bound)")
    assert "within the proven bound: fp8 tensor cores align" in on_gpu.summary
    assert on_cpu.kind == "MISMATCH"


def test_an_oracle_within_its_bound_is_no_fault():
    model = model_of(RANDOM)
    want = round_to(model.values(), torch.float32)
    other = answer_of(model, 1, torch.float32)
    verdict = judged(RANDOM, "cuda:0", want, (Answer("torch", other),))
    assert verdict.kind == "WITHIN"
    assert verdict.summary.startswith("kernel = spec; ")
    assert "from torch" in verdict.summary


def test_an_oracle_beyond_its_bound_is_one():
    want = round_to(model_of(RANDOM).values(), torch.float32)
    twice = round_to(2 * model_of(RANDOM).values(), torch.float32)
    assert judged(RANDOM, "cuda:0", want, (Answer("torch", twice),)).kind == "ORACLE_FAULT"
    assert judged(RANDOM, "cuda:0", twice).kind == "MISMATCH"


def test_nan_is_not_within_any_bound():
    got = round_to(model_of(RANDOM).values(), torch.float32)
    got[1, 2] = 0x7FC00000
    verdict = judged(RANDOM, "cuda:0", got)
    assert verdict.kind == "NONFINITE_CLASS"
    assert [one.index for one in verdict.located] == [(1, 2)]


def test_within_is_closed_and_exact_where_nothing_is_allowed():
    value = np.array([1.0, 1.0, 1.0, 1.0, np.inf])
    error = np.array([0.0, 2.0**-10, 2.0**-10, np.inf, 0.0])
    got = round_to(np.array([1.0, 1 + 2.0**-10, 1 + 2.0**-9, 5.0, np.inf]), torch.float32)
    inside = within(got, Reach(value, error), torch.float32)
    assert inside.tolist() == [False, True, False, True, False]


def test_a_case_that_may_overflow_is_not_judged_there():
    model = model_of("M=2,N=3,K=64,a=random(1),b=random(2),scales=over(1),out=fp32")
    reach = kernel_reach(dataclasses.replace(model, a_scale=np.full_like(model.a_scale, 3e38)), True)
    assert np.isinf(reach.error).all()


def test_a_fault_keeps_its_name_on_exact_sums():
    run = mutant(FMT, next(one for one in FMT.faults if one.name == "w-block-by-extent"))
    weight = materialize(FMT, FMT.parse("M=3,N=257,K=160,wper=block,aper=block,out=fp32"))[0]
    bits = run(weight, dtype=torch.float32).view(torch.int32).numpy().view(np.uint32)
    verdict = judged("M=3,N=257,K=160,wper=block,aper=block,out=fp32", "cuda:0", bits)
    assert [cause.name for cause in verdict.causes] == ["w-block-by-extent"]
    assert from_bits(bits, torch.float32).shape == (3, 257)
    assert fp8_bound.ALLOWANCE is FMT.allowance


def test_a_sum_of_zeros_may_have_either_sign():
    """A sum that begins with its first product is -0 where that is; others keep the sign of the text."""
    model = model_of("M=16,K=1,N=16,aper=unit,wper=unit")
    got = (model.a * model.b[:, 0]).astype(np.float32)
    reach = kernel_reach(model, False)
    want = round_to(model.values(), torch.float32)
    bits = got.view(np.uint32).astype(want.dtype)
    differ = bits != want
    assert differ.any()
    assert (got[differ] == 0).all()
    assert within(bits, reach, torch.float32)[differ].all()
    assert not within(np.where(want == 0, 1, want), reach, torch.float32)[want == 0].any()
    assert not (reach.error[got != 0] > 0).any()


OVERFLOWING = "M=3,N=9,K=160,a=random(2),b=random(2),scales=huge(1),out=fp32"


def test_outputs_without_a_bound_are_not_counted():
    """Where a step may overflow the bound is infinite: whatever is there, it is no evidence."""
    model = model_of(OVERFLOWING)
    silent = np.isinf(kernel_reach(model, tensor_cores=True).error)
    assert silent.any(), "no step of this case may overflow any more"
    want = round_to(model.values(), torch.float32)
    got = np.where(silent, 0x7F800000, want).astype(np.uint32)
    count = int(silent.sum())
    verdict = judged(OVERFLOWING, "cuda:0", got)
    assert verdict.elements == want.size - count
    assert f"{count} of {want.size} outputs are not judged" in verdict.summary
    assert verdict.kind == ("UNJUDGED" if count == want.size else "WITHIN")
    # The right bits are none the better: a kernel does not choose what is compared.
    assert judged(OVERFLOWING, "cuda:0", want).elements == verdict.elements


def test_a_case_of_nothing_else_is_not_judged():
    model = model_of(RANDOM)
    nothing = Reach(model.values(), np.full(model.values().shape, np.inf))
    rules = dataclasses.replace(FMT, allowance=Allowance(lambda *_: nothing, "a step may overflow"))
    case = FMT.parse(RANDOM)
    weight = materialize(FMT, case)[0]
    want = round_to(model.values(), torch.float32)
    judge = Judge(rules, "mine", "cuda:0")
    other = np.full_like(want, 0x7FC00000)
    assert judge(case, weight, torch.float32, Execution(bits=other), ()).kind == "UNJUDGED"
    assert judge(case, weight, torch.float32, Execution(bits=want), ()).kind == "UNJUDGED"


@pytest.mark.parametrize(
    "text", ["scales=nan(2),a=random(1),b=random(2),K=300,M=1,N=1", "a=nan(1),b=random(2),M=5,N=33"]
)
@pytest.mark.parametrize("tensor_cores", [False, True])
def test_nan_operands_make_nan_whatever_overflows(text, tensor_cores):
    model = model_of(text)
    assert np.isnan(model.values()).any()
    for reach in (kernel_reach(model, tensor_cores), oracle_reach(model, tensor_cores)):
        assert (reach.error[np.isnan(model.values())] == 0).all()
