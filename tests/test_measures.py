"""Error measures against values worked out by hand, and labels against the words of ``locate``."""

from __future__ import annotations

import json
import math
import re

import numpy as np
import pytest
import torch

from conformance.axes import even_steps, labels
from conformance.bits import DTYPES, to_bits
from conformance.diagnose import structure
from conformance.faults import Context
from conformance.investigate import look_into
from conformance.localize import (
    LEVEL,
    MOST_LABELS,
    SHARE,
    chi_square_tail,
    concentration,
    most_telling,
)
from conformance.measures import SENTENCE, Measures, measure
from conformance.registry import parse_case
from conformance.report import report
from oracles.spec.rounding import round_to
from tests import planted
from tests.harness_runs import FORMATS, judge

CASES = (
    "gptq:K=64,N=33,act=perm(1),zeros=v2",
    "gptq:bits=3,K=64,N=32",
    "gptq:bits=8,K=37,N=17,g=16",
    "gptq:bits=2,K=33,N=16,g=16",
    "awq_cols:K=64,N=40",
    "awq_rows:K=128,N=9",
    "awq_quads:K=128,N=12",
    "nf4:shape=5x65",
    "fp4:shape=2x3x40,blocksize=32",
    "blockwise8:shape=5x65",
    "llm_int8:shape=5x33",
    "int8_affine:shape=5x33,per=group,g=16",
    "int8_affine:shape=5x33,per=column",
    "squeezellm:K=64,N=7,sparse=few(1),full=1",
    "squeezellm:bits=3,K=64,N=7",
)


def bits(*values: float, dtype: torch.dtype = torch.float16) -> np.ndarray:
    return to_bits(torch.tensor(values, dtype=torch.float64).to(dtype))


def measured(got: list[float], want: list[float], dtype: torch.dtype = torch.float16, **more) -> Measures:
    axes = more.pop("axes", {})
    return measure(bits(*got, dtype=dtype), bits(*want, dtype=dtype), dtype, axes=axes, **more)


# --- numbers ----------------------------------------------------------------------------------


def test_absolute_relative_and_snr():
    found = measured([3.0, 4.0, 0.5], [3.0, 5.0, 0.25])
    assert (found.compared, found.wrong, found.finite) == (3, 2, 3)
    assert (found.max_abs, found.mean_abs) == (1.0, 1.25 / 3)
    assert (found.max_rel, found.mean_rel) == (1.0, 1.2 / 3)
    # rms(want)**2 / rms(error)**2 = (9 + 25 + 1/16) / (1 + 1/16)
    assert round(found.snr_db, 9) == round(10 * math.log10(34.0625 / 1.0625), 9)


@pytest.mark.parametrize(("dtype", "epsilon"), [("fp16", 2.0**-14), ("bf16", 2.0**-126), ("fp32", 2.0**-126)])
def test_epsilon_is_the_smallest_normal(dtype: str, epsilon: float):
    found = measured([epsilon], [0.0], DTYPES[dtype])
    assert found.epsilon == epsilon
    assert found.max_rel == 1.0


def test_values_that_are_not_finite_have_no_snr_to_say():
    got = measured([1.0, math.nan, 2.0], [1.0, math.inf, 2.0])
    assert got.sentence().startswith("finite values are equal; 1 of 3 wrong"), got.sentence()
    assert "SNR" not in measured([1.0, -0.0], [1.0, 0.0]).sentence()
    assert "SNR -inf dB" in measured([1.0, 2.0], [0.0, 0.0]).sentence()
    assert "SNR" in measured([1.0, math.nan, 2.0], [1.0, math.inf, 2.5]).sentence()


def test_snr_of_equal_and_of_zero():
    assert measured([1.0, 2.0], [1.0, 2.0]).snr_db == math.inf
    assert measured([1.0, 2.0], [0.0, 0.0]).snr_db == -math.inf
    assert json.loads(json.dumps(measured([1.0], [1.0]).to_json()))["snr_db"] == "inf"


@pytest.mark.parametrize("scale", [2.0**-126, 1.0, 2.0**120])
def test_snr_does_not_overflow(scale: float):
    got, want = [3.0 * scale, 4.0 * scale], [3.0 * scale, 5.0 * scale]
    assert round(measured(got, want, torch.float32).snr_db, 6) == round(10 * math.log10(34), 6)


def test_ulp_histogram():
    want = np.zeros(9, np.uint16) + 0x3C00
    got = want + np.array([0, 1, 2, 3, 4, 5, 8, 9, 16], np.uint16)
    found = measure(got, want, torch.float16, axes={})
    assert {item.label: item.count for item in found.ulp} == {
        "0": 1,
        "1": 1,
        "2": 1,
        "3-4": 2,
        "5-8": 2,
        "9-16": 2,
    }


def test_nonfinite_is_counted_by_class_and_left_out():
    inf, nan = math.inf, math.nan
    found = measured([nan, inf, 1.0, nan, inf, -inf, 2.0], [1.0, 1.0, nan, nan, inf, inf, 3.0])
    assert found.wrong == 5
    assert dict(found.classes) == {
        "-infinity instead of infinity": 1,
        "NaN instead of a finite value": 1,
        "a finite value instead of NaN": 1,
        "infinity instead of a finite value": 1,
    }
    assert (found.finite, found.max_abs, found.mean_abs) == (1, 1.0, 1.0)


def test_sign_of_zero_is_apart():
    found = measured([-0.0, 1.0], [0.0, 1.0])
    assert (found.wrong, found.zero_sign, found.max_abs, found.snr_db) == (1, 1, 0.0, math.inf)
    assert found.reading.kind == "sign-of-zero"


def test_error_by_binade():
    found = measured([0.5, 1.25, 1.0, 6.0], [0.0, 1.0, 1.5, 4.0])
    assert [(item.exponent, item.count, item.mean_abs) for item in found.magnitude] == [
        (None, 1, 0.5),
        (0, 2, 0.375),
        (2, 1, 2.0),
    ]
    assert [item.mean_rel for item in found.magnitude[1:]] == [(0.25 + 0.5 / 1.5) / 2, 0.5]


def test_shapes_must_agree():
    with pytest.raises(ValueError, match="group: expected shape"):
        measured([1.0, 2.0], [1.0, 2.0], axes={"group": np.zeros(3, int)})


def test_nothing_at_all():
    found = measure(np.zeros((0, 4), np.uint16), np.zeros((0, 4), np.uint16), torch.float16, axes={})
    assert (found.compared, found.sentence()) == (0, "no element differs")


# --- where ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statistic", "freedom", "tail"),
    [(3.841458820694124, 1, 0.05), (18.307038053275146, 10, 0.05), (21.665994333461924, 9, 0.01)],
)
def test_tail_at_critical_values(statistic: float, freedom: int, tail: float):
    assert round(chi_square_tail(statistic, freedom), 9) == tail


@pytest.mark.parametrize("freedom", [1, 2, 7, 8, 255, 1023])
def test_tail_falls_from_one_to_zero(freedom: int):
    tails = [round(chi_square_tail(x, freedom), 12) for x in np.linspace(0, 10 * freedom + 100, 60)]
    assert tails[0] == 1.0
    assert tails == sorted(tails, reverse=True)
    assert tails[-1] == 0
    # Half of it is beyond the median, which is near freedom * (1 - 2 / (9 * freedom))**3.
    assert abs(chi_square_tail(freedom * (1 - 2 / (9 * freedom)) ** 3, freedom) - 0.5) < 0.02


SHAPE = (96, 64)
ROW, COLUMN = np.indices(SHAPE)
AXES = {"group": ROW // 16, "slot": ROW % 8, "row": ROW, "column": COLUMN}


@pytest.mark.parametrize("share", [0.001, 0.01, 0.1, 0.5, 0.97])
def test_an_even_spread_is_not_accused(share: float):
    """At most LEVEL of masks a test: 3 standard deviations above it among 200."""
    draws = np.random.Generator(np.random.PCG64(1))
    accused = dict.fromkeys(AXES, 0)
    for _ in range(200):
        wrong = draws.random(SHAPE) < share
        for name, axis in AXES.items():
            accused[name] += concentration(name, axis, wrong).verdict not in (
                "uniform",
                "one element",
                "nothing",
            )
    most = 200 * LEVEL + 3 * math.sqrt(200 * LEVEL * (1 - LEVEL))
    assert max(accused.values()) <= most, accused


@pytest.mark.parametrize("density", [1.0, 0.3, 0.02])
@pytest.mark.parametrize(
    ("name", "chosen"),
    [("group", [2]), ("group", [0, 5]), ("slot", [7]), ("slot", [1, 3]), ("row", [40, 41]), ("column", [9])],
)
def test_a_planted_concentration_is_found(name: str, chosen: list[int], density: float):
    draws = np.random.Generator(np.random.PCG64(2))
    wrong = np.isin(AXES[name], chosen) & (draws.random(SHAPE) < density)
    if np.count_nonzero(wrong) < 5:
        pytest.skip("a handful shows nothing")
    found = tuple(concentration(axis, label, wrong) for axis, label in AXES.items())
    mine = next(item for item in found if item.axis == name)
    assert mine.verdict == "concentrated"
    assert mine.p <= LEVEL
    assert mine.share <= SHARE
    assert mine.touched == len(chosen)
    assert set(mine.first) == set(chosen)
    assert mine.words().startswith(f"all in {len(chosen)} of {mine.labels} {name}s")


def test_the_wider_unit_is_named():
    """Rows of one group are concentrated too; the group says more."""
    found = tuple(concentration(name, axis, AXES["group"] == 3) for name, axis in AXES.items())
    assert {item.axis for item in found if item.verdict == "concentrated"} == {"group", "row"}
    telling = most_telling(found)
    assert telling is not None
    assert telling.words() == "all in 1 of 6 groups (group 3)"


def test_a_significant_trifle_is_uneven():
    draws = np.random.Generator(np.random.PCG64(3))
    slot = np.arange(400_000) % 8
    wrong = draws.random(slot.size) < np.where(slot == 0, 0.55, 0.5)
    assert concentration("slot", slot, wrong).verdict == "uneven"


@pytest.mark.parametrize(("count", "verdict"), [(0, "nothing"), (1, "one element"), (64, "everything")])
def test_what_is_not_tested(count: int, verdict: str):
    found = concentration("slot", np.arange(64) % 8, np.arange(64) < count)
    assert (found.verdict, found.method, found.p) == (verdict, "none", 1.0)


def test_many_labels_are_taken_together():
    row = np.repeat(np.arange(5000), 4)
    found = concentration("row", row, np.isin(row, [100, 101]))
    assert found.merged == -(-5000 // MOST_LABELS)
    assert found.labels <= MOST_LABELS
    assert (found.verdict, found.touched) == ("concentrated", 1)
    assert "runs of 5 rows" in found.words()


def test_unused_labels_are_none():
    group = np.repeat([0, 2, 4], 40)
    assert concentration("group", group, np.arange(120) < 7).labels == 3


def test_the_same_output_gives_the_same_words():
    wrong = np.random.Generator(np.random.PCG64(4)).random(SHAPE) < 0.003
    assert concentration("row", ROW, wrong) == concentration("row", ROW, wrong)


# --- what it reads like -----------------------------------------------------------------------

WANT = [0.5, -1.25, 2.0, 3.0, -0.75, 1.0, 0.0, -2.5]
STEP = np.full(8, 0.25)


@pytest.mark.parametrize(
    ("kind", "number", "change"),
    [
        ("zero", None, lambda w: 0 * w),
        ("sign", None, lambda w: -w),
        ("proportional", 0.75, lambda w: 0.75 * w),
        ("proportional", 127.0, lambda w: 127 * w),
        ("offset-steps", -1.0, lambda w: w - 0.25),
        ("offset-steps", 16.0, lambda w: w + 4),
        ("offset", 0.3125, lambda w: w + 0.3125),
        ("whole-steps", None, lambda w: w + 0.25 * np.array([1, -2, 3, 1, 5, -4, 2, 1])),
        ("none", None, lambda w: w + np.array([0.3, -0.1, 0.7, 0.2, 0.11, 0.4, 0.9, -0.6])),
    ],
)
def test_reading(kind: str, number: float | None, change):
    want = np.array(WANT)
    found = measured(change(want).tolist(), WANT, steps=STEP).reading
    assert found.kind == kind
    assert number is None or found.number == number


def test_reading_of_saturation():
    assert measured([1.0, -1.0, 0.5], [1.5, -3.0, 0.5]).reading.kind == "saturation"


def test_reading_of_one_rounding():
    found = measure(bits(*WANT) + np.uint16(1), bits(*WANT), torch.float16, axes={}).reading
    assert (found.kind, found.number) == ("rounding", 1.0)


def test_no_offset_in_steps_without_steps():
    assert measured((np.array(WANT) - 0.25).tolist(), WANT).reading.kind == "offset"


STEPS = (STEP, np.repeat([0.25, 0.5], 4))  # one scale, and two of a constant weight
SCALE = {"scale": np.repeat([0, 1], 4)}


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("axes", [{}, SCALE])
def test_one_wanted_value_tells_no_factor_from_an_offset(steps: np.ndarray, axes: dict[str, np.ndarray]):
    for got in (6.0, 1.5, 0.25, 4.0):
        assert measured([got] * 8, [2.0] * 8, steps=steps, axes=axes).reading.kind == "none"
    # Of one size, up and down: a factor, a clamp and an offset are the same.
    for got in (6.0, 1.0):
        found = measured([got, -got] * 4, [2.0, -2.0] * 4, steps=steps, axes=axes).reading
        assert found.kind not in ("offset-steps", "zero-each", "offset")
    assert measured([1.5, -2.5] * 4, [2.0, -2.0] * 4, steps=STEP, axes=axes).reading.kind == "offset-steps"


def test_structure_without_a_fault():
    """What is said of an output that nothing in the catalogue gives: no factor of one wanted value."""
    fmt = FORMATS["nf4"]
    weight = fmt.words(parse_case("nf4:shape=2x4,words=zeros,scales=one"))
    ctx = Context(weight, fmt.unpack(weight), torch.float16)

    def said(got: list[float], want: list[float]) -> str:
        g, w = bits(*got), bits(*want)
        return structure(g, w, g != w, ctx).text

    assert "got 0 everywhere there" in said([-0.0, 0.0], [1.0, 2.0])
    zeros = said([-0.0, 1.0], [0.0, 1.0])
    assert "only the sign of zeros differs" in zeros
    assert "got 0" not in zeros
    one = said([6.0, 6.0, 1.0], [2.0, 2.0, 1.0])
    assert "proportional" not in one
    assert "offset" not in one
    assert "got = 3 * want" in said([6.0, 3.0], [2.0, 1.0])
    assert "got = want + 0.5" in said([2.5, 3.5], [2.0, 3.0])


def of_fault(case: str, name: str, dtype: torch.dtype = torch.float16) -> Measures:
    """Measures of a fault of the catalogue."""
    parsed = parse_case(case)
    fmt = FORMATS[parsed.format]
    weight = fmt.words(parsed)
    model = fmt.unpack(weight)
    got = next(fault for fault in fmt.faults if fault.name == name).decode(Context(weight, model, dtype))
    assert got is not None
    want = round_to(model.values(), dtype)
    return measure(got, want, dtype, axes=labels(fmt, weight), steps=even_steps(model))


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize(
    ("case", "fault", "kind"),
    [
        ("gptq:K=128,N=64,zeros=v2", "zero-plus-one-extra-unmasked", "offset-steps"),
        ("gptq:K=128,N=64,zeros=v2", "zero-ignored", "zero-each"),
        ("gptq:K=128,N=64,zeros=v2", "difference-negated", "sign"),
        ("gptq:K=128,N=64,zeros=v2", "slots-reversed", "whole-steps"),
        ("gptq:K=128,N=64,zeros=v2", "group-plus-one", "linear-each"),
        ("awq_cols:K=128,N=64", "scale-of-next-column", "scale-each"),
        ("awq_rows:K=128,N=16", "zero-plus-one", "offset-steps"),
        ("nf4:shape=33x65", "tail-block-absmax-previous", "proportional"),
        ("nf4:shape=33x65", "tail-block-blank", "zero"),
        ("nf4:shape=33x65", "block-index-plus-one", "scale-each"),
        ("llm_int8:shape=9x64", "divided-by-128", "proportional"),
        ("int8_affine:shape=9x64,zero=same", "zero-plus-one", "offset-steps"),
    ],
)
def test_reading_of_a_fault(case: str, fault: str, kind: str, dtype: torch.dtype):
    if "int8" in case and dtype is torch.bfloat16:
        pytest.skip("its 8 significant bits do not tell 127 steps from 128")
    found = of_fault(case, fault, dtype)
    assert found.reading.kind == kind, found.sentence()


PRODUCT = "gemm_int8:M=5,N=33,K=65,aper=token"


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize(
    ("case", "fault", "words"),
    [
        (
            PRODUCT,
            "a-scale-of-next",
            "each token is off by a factor of its own: reads like the activation scale",
        ),
        (
            PRODUCT,
            "w-scale-of-next",
            "each channel is off by a factor of its own: reads like the weight scale",
        ),
        ("gemm_epilogue:M=5,N=33,aper=token", "a-scale-ignored", "each token is off by a factor of its own"),
        (
            "gemm_fp8:M=5,N=33,K=65,aper=token",
            "w-scale-of-next",
            "each channel is off by a factor of its own",
        ),
    ],
)
def test_a_factor_of_each_token_or_channel_is_said(case: str, fault: str, words: str, dtype: torch.dtype):
    assert words in of_fault(case, fault, dtype).sentence()


def test_one_factor_is_none_of_each_token():
    got, want = np.array(WANT) * 0.75, np.array(WANT)
    lines = {"token": np.repeat([0, 1], 4), "channel": np.tile(range(4), 2)}
    assert measured(got.tolist(), want.tolist(), axes=lines).reading.kind == "proportional"


def test_tokens_of_one_wanted_value_have_no_factor():
    """Either a factor or an offset would do."""
    token, channel = np.indices((4, 4))
    want = bits(*np.repeat([1.0, 2.0, 3.0, 4.0], 4)).reshape(4, 4)
    got = bits(*np.repeat([1.5, 2.25, 3.0625, 4.5], 4)).reshape(4, 4)
    found = measure(got, want, torch.float16, axes={"token": token, "channel": channel}).reading
    assert found.kind != "factor-each-token"


def test_where_a_fault_is():
    tail = of_fault("nf4:shape=33x65", "tail-block-absmax-previous").sentence()
    assert "all in 1 of 34 blocks (block 33)" in tail
    assert "all in 1 of 8 slots (slot 7)" in of_fault("awq_rows:K=256,N=64", "sign-extend-top").sentence()


@pytest.mark.parametrize("case", CASES)
def test_sentence_is_short_and_json_is_json(case: str):
    fmt = FORMATS[parse_case(case).format]
    for fault in fmt.faults:
        try:
            found = of_fault(case, fault.name)
        except AssertionError:  # the fault does not apply here
            continue
        assert len(found.sentence()) < SENTENCE
        assert "\n" not in found.sentence()
        record = json.loads(json.dumps(found.to_json()))
        assert record["wrong"] == found.wrong
        assert sum(item["count"] for item in record["ulp"]) == found.finite


# --- labels -----------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_labels_are_those_of_locate(case: str):
    fmt = FORMATS[parse_case(case).format]
    weight = fmt.words(parse_case(case))
    found = labels(fmt, weight)
    shape = tuple(weight.output_shape)
    assert all(label.shape == shape for label in found.values())
    assert {"slot", "row", "column"} <= set(found)
    checked = set()
    for index in np.ndindex(shape):
        words = fmt.locate(weight, index)
        for name in ("group", "block", "slot"):
            said = re.search(rf"\b{name} (\d+)", words)
            if said and name in found:
                assert int(said[1]) == found[name][index], (index, words)
                checked.add(name)
        if shape == found["row"].shape and len(shape) == 2:
            assert (found["row"][index], found["column"][index]) == index
    assert checked or case.startswith(("llm_int8", "int8_affine"))


@pytest.mark.parametrize("case", CASES)
def test_a_word_has_each_slot_once(case: str):
    fmt = FORMATS[parse_case(case).format]
    found = labels(fmt, fmt.words(parse_case(case)))
    pairs = np.stack([found["word"].reshape(-1), found["slot"].reshape(-1)])
    assert np.unique(pairs, axis=1).shape == pairs.shape


@pytest.mark.parametrize("case", [c for c in CASES if not c.startswith("squeezellm")])
def test_what_shares_a_scale_has_one_step(case: str):
    fmt = FORMATS[parse_case(case).format]
    weight = fmt.words(parse_case(case))
    found = labels(fmt, weight)
    shared = found.get("scale", next(iter(found.values()))).reshape(-1)
    steps = fmt.unpack(weight).steps().reshape(-1)
    for label in np.unique(shared):
        assert np.unique(steps[shared == label]).size == 1
    assert np.unique(shared).size >= np.unique(steps).size


def test_every_format_has_labels():
    assert all(fmt.axes is not None for fmt in FORMATS.values())


def test_a_failing_verdict_has_measures_and_a_passing_one_none():
    failing = look_into(
        FORMATS["nf4"], judge(planted.nibbles_swapped, "nf4:shape=5x40", oracles=frozenset())
    ).verdict
    assert failing.measures is not None
    assert failing.measures["wrong"] == failing.votes[-1].n_wrong
    assert failing.reading == failing.measures["sentence"]
    assert f"error      {failing.reading}"[:60] in report(failing)
    passing = judge(planted.right, "nf4:shape=5x40", oracles=frozenset())
    assert look_into(FORMATS["nf4"], passing).verdict.measures is None
