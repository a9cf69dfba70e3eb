"""The strategies reach what they are for, and the tensors are a pure function of the case."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
import torch

from conformance.bundle import weight_digest
from conformance.formats._blockwise import STORAGES
from conformance.materialize import materialize
from conformance.patterns import (
    FINITE_SCALES,
    SCALE_PATTERNS,
    WORD_PATTERNS,
    Pattern,
    scale_values,
    word_bytes,
)
from conformance.registry import parse_case
from oracles.spec.blockwise import unpack
from tests.harness_runs import FORMATS, drawn, minimal, python

OURS = ("nf4", "fp4", "blockwise8", "llm_int8")
BLOCKWISE = OURS[:3]
FOUR_BIT = OURS[:2]
OUTS = ("fp16", "bf16", "fp32")


@functools.cache
def sample(name):
    """A little more than the default profile draws for a format."""
    return [case for out in OUTS for case in drawn(name, 80, out=out)]


def numel(case) -> int:
    return math.prod(case["shape"])


@functools.cache
def models(name):
    fmt = FORMATS[name]
    return [fmt.unpack(materialize(fmt, case)[0]) for case in sample(name)]


# --- reach ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FOUR_BIT)
def test_every_code_in_both_nibbles(name):
    even = {int(code) for model in models(name) for code in np.unique(model.codes[0::2])}
    odd = {int(code) for model in models(name) for code in np.unique(model.codes[1::2])}
    assert even == odd == set(range(16))


def test_every_code_of_eight_bits():
    assert {int(c) for model in models("blockwise8") for c in np.unique(model.codes)} == set(range(256))
    assert {int(c) for model in models("llm_int8") for c in np.unique(model.codes)} == set(range(-128, 128))


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize(
    ("dim", "values"),
    [
        ("layout", {"contiguous", "offset", "strided", "padded", "transposed"}),
        ("dest", {"given", "new", "offset", "strided", "padded", "transposed"}),
        ("route", {"words"}),
        ("tile", {"case"}),
    ],
)
def test_common_dimensions(name, dim, values):
    assert {case[dim] for case in sample(name)} == values


@pytest.mark.parametrize("name", OURS)
def test_every_pattern(name):
    assert {case["scales"].name for case in sample(name)} == set(FINITE_SCALES)
    assert {case["words"].name for case in sample(name)} == set(WORD_PATTERNS)


@pytest.mark.parametrize("name", FOUR_BIT)
def test_every_storage(name):
    assert {case["storage"] for case in sample(name)} == set(STORAGES)


@pytest.mark.parametrize("name", BLOCKWISE)
def test_every_block_size_and_both_kinds_of_absmax(name):
    sizes = {case["blocksize"] for case in sample(name)}
    assert sizes == {32, 64, 128, 256, 512, 1024, 2048, 4096}
    assert {case["absmax"] for case in sample(name)} == {"plain", "nested"}


@pytest.mark.parametrize("name", BLOCKWISE)
@pytest.mark.parametrize(
    "condition",
    [
        lambda c: numel(c) % 2 == 1,
        lambda c: c["shape"][-1] % 2 == 1 and len(c["shape"]) > 1 and c["shape"][0] > 1,
        lambda c: numel(c) % c["blocksize"] == 0,
        lambda c: numel(c) > c["blocksize"] and numel(c) % c["blocksize"] == 1,
        lambda c: numel(c) > c["blocksize"] and numel(c) % c["blocksize"] == c["blocksize"] - 1,
        lambda c: numel(c) < c["blocksize"],
        lambda c: len(c["shape"]) == 1,
        lambda c: len(c["shape"]) == 3,
    ],
    ids=["odd", "odd-columns", "whole-blocks", "one-more", "one-less", "short", "1-d", "3-d"],
)
def test_shapes(name, condition):
    assert any(condition(case) for case in sample(name))


def test_more_than_256_blocks():
    """Second-level scales: two of them, the second for part of its 256 blocks."""
    found = minimal(
        "nf4", lambda c: c["absmax"] == "nested" and numel(c) > 256 * c["blocksize"], examples=1000
    )
    assert found["shape"] == (1, 256 * found["blocksize"] + 1)


@pytest.mark.parametrize("name", BLOCKWISE)
def test_scales_reach_the_edges(name):
    with np.errstate(all="ignore"):
        absmax = np.concatenate([model.absmax for model in models(name)])
    magnitude = np.abs(absmax[np.isfinite(absmax)])
    smallest = float(np.finfo(np.float32).smallest_normal)
    assert (absmax == 0).any()
    assert (absmax < 0).any()
    assert ((magnitude > 0) & (magnitude < smallest)).any()
    assert ((magnitude >= smallest) & (magnitude < 4 * smallest)).any()
    assert (magnitude > 65504).any()
    assert (magnitude > 2.0**126).any()


def test_outputs_reach_the_edges():
    """float16 results that overflow, are subnormal, or lie half-way between two numbers."""
    values = np.concatenate([model.values().reshape(-1) for model in models("nf4")]).astype(np.float32)
    magnitude = np.abs(values[np.isfinite(values)])
    assert (magnitude >= 65520).any()
    assert ((magnitude > 65504) & (magnitude < 65520)).any() or (magnitude > 2.0**15).any()
    assert ((magnitude > 0) & (magnitude < 2.0**-14)).any()
    bits = magnitude[magnitude > 2.0**-14].view(np.uint32)
    assert (bits & 0xFFFF == 0x8000).any()
    assert (bits & 0x1FFF == 0x1000).any()


# --- scales -----------------------------------------------------------------------------------

REPEATING = ("one", "zero", "ties", "mixed", "inf", "nan")


@pytest.mark.parametrize("name", [name for name in SCALE_PATTERNS if name not in REPEATING])
@pytest.mark.parametrize("number", range(5))
def test_every_block_has_its_own_scale(name, number):
    scales = scale_values(Pattern(name, number if SCALE_PATTERNS[name] else None), 300)
    assert scales.unique().numel() == 300


@pytest.mark.parametrize("name", SCALE_PATTERNS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_scale_profiles(name, dtype):
    scales = scale_values(Pattern(name, 3 if SCALE_PATTERNS[name] else None), 200, dtype)
    info = torch.finfo(dtype)
    magnitude = scales.double().abs()
    assert scales.dtype == dtype
    assert bool(torch.isfinite(scales).all()) == (name not in ("inf", "nan"))
    assert bool(torch.isnan(scales).any()) == (name == "nan")
    assert bool(torch.isinf(scales).any()) == (name == "inf")
    if name in ("negative", "mixed"):
        assert bool((scales < 0).any())
        assert bool((scales > 0).any())
    elif name not in ("inf", "nan"):
        assert not torch.signbit(scales).any()
    if name == "subnormal":
        assert bool(((magnitude > 0) & (magnitude < info.smallest_normal)).all())
    if name == "tiny":
        assert bool(((magnitude >= info.smallest_normal) & (magnitude < 2 * info.smallest_normal)).all())
    if name == "over":
        assert float(magnitude.max()) >= min(65536.0, info.max / 2)


def test_mixed_scales_have_zeros_of_either_sign():
    scales = torch.cat([scale_values(Pattern("mixed", number), 30) for number in range(20)])
    zeros = scales[scales == 0]
    assert bool(torch.signbit(zeros).any())
    assert not bool(torch.signbit(zeros).all())


@pytest.mark.parametrize("kept", [7, 10])
def test_ties_are_exact_ties(kept):
    bits = scale_values(Pattern("ties", 1), 100).view(torch.int32)
    lost = 23 - kept
    assert bool(((bits & ((1 << lost) - 1)) == 1 << (lost - 1)).any())


# --- words ------------------------------------------------------------------------------------


def test_word_patterns():
    assert word_bytes(Pattern("zeros"), 3).tolist() == [0, 0, 0]
    assert word_bytes(Pattern("ones"), 3).tolist() == [255, 255, 255]
    assert word_bytes(Pattern("top"), 2).tolist() == [0x80, 0x80]
    assert word_bytes(Pattern("top"), 2, bits=4).tolist() == [0x88, 0x88]
    assert word_bytes(Pattern("top"), 3, bits=3).tolist() == [0x24, 0x49, 0x92]
    assert word_bytes(Pattern("onehot", 9), 3).tolist() == [0, 2, 0]
    assert word_bytes(Pattern("onehot", 24), 3).tolist() == [1, 0, 0]
    assert word_bytes(Pattern("ramp"), 4, bits=4).tolist() == [0x01, 0x23, 0x45, 0x67]
    assert word_bytes(Pattern("ramp"), 300).tolist() == [i % 256 for i in range(300)]
    assert set(word_bytes(Pattern("random", 0), 5000).tolist()) == set(range(256))
    for name, number in WORD_PATTERNS.items():
        assert word_bytes(Pattern(name, 0 if number else None), 0).size == 0


def test_random_words_have_a_longer_relative():
    """A larger case has the words of a smaller one first: shrinking a shape keeps the data."""
    assert word_bytes(Pattern("random", 5), 7).tolist() == word_bytes(Pattern("random", 5), 70)[:7].tolist()


# --- pure function ----------------------------------------------------------------------------

# A change of these is a change of every recorded case id: deliberate, and worth a line in the
# change log.
DIGESTS = {
    "nf4:": "a6783b1a9f296e27",
    "nf4:shape=3x65,blocksize=32,words=random(7)": "1e2d75c415f08a03",
    "nf4:shape=1x8200,blocksize=32,absmax=nested,scales=mixed(2)": "90806e64ddeaa4b2",
    "nf4:shape=4x64,storage=fp16,codebook=rounded4,words=ramp,scales=subnormal(1)": "e2c62b43c2e9c89a",
    "nf4:shape=5,words=onehot(3),scales=ties(4)": "2e2f9a46d9b3815f",
    "fp4:shape=3x5x7,scales=negative(9),storage=int8": "cc9ec6079836de42",
    "blockwise8:shape=3x257,scales=huge(1)": "c33987abbd8b8f68",
    "blockwise8:shape=2x300,blocksize=64,absmax=nested,words=ramp": "e51aae776990cac7",
    "llm_int8:shape=5x33,scales=over(2),words=random(1)": "86d72cb07160f277",
    "llm_int8:shape=3x17,scales=nan(0)": "64caa33c54bbc59c",
}


def digest(text: str) -> str:
    case = parse_case(text)
    return weight_digest(materialize(FORMATS[case.format], case)[0])[:16]


@pytest.mark.parametrize("text", DIGESTS)
def test_digests_are_frozen(text):
    assert digest(text) == DIGESTS[text]
    assert digest(text) == DIGESTS[text]


def test_digests_in_a_fresh_process_without_hypothesis_or_oracle():
    """So they cannot depend on either's version, nor on what ran before."""
    code = (
        "from conformance.runtime import choose\n"
        "choose('cpu')\n"
        "from conformance.registry import find_format, parse_case\n"
        "from conformance.materialize import materialize\n"
        "from conformance.bundle import weight_digest\n"
        "import conformance.replay, conformance.harness, conformance.cli\n"
        f"for text in {list(DIGESTS)!r}:\n"
        "    case = parse_case(text)\n"
        "    print(weight_digest(materialize(find_format(case.format), case)[0])[:16])\n"
    )
    done = python("-c", code, blocked=("hypothesis", "bitsandbytes"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == list(DIGESTS.values())


def test_global_random_state_is_neither_used_nor_changed():
    text = "nf4:shape=3x65,scales=mixed(3),absmax=nested"
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002 - the global state is the subject
    first, before = digest(text), torch.get_rng_state().clone()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    np.random.seed(2)  # noqa: NPY002
    assert digest(text) == first


def test_different_numbers_are_different_tensors():
    texts = [f"nf4:shape=3x65,words=random({i})" for i in range(20)]
    texts += [f"nf4:shape=3x65,scales=ordinary({i})" for i in range(1, 20)]
    assert len({digest(text) for text in texts}) == len(texts)


def test_model_of_a_nested_weight_is_finite_for_finite_scales():
    case = parse_case("nf4:shape=1x8200,blocksize=32,absmax=nested")
    assert np.isfinite(unpack(materialize(FORMATS["nf4"], case)[0]).absmax).all()


@pytest.mark.parametrize("name", BLOCKWISE)
def test_blocks_that_go_on_in_the_next_row(name):
    """Where counting blocks by row goes wrong: a common fault, upstream's own among them."""
    hits = [
        case
        for case in sample(name)
        if case["shape"][-1] % case["blocksize"]
        and numel(case) > case["blocksize"]
        and len(case["shape"]) > 1
    ]
    assert len({case["shape"] for case in hits if math.prod(case["shape"][:-1]) > 1}) >= 10
