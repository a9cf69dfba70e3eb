"""A case id is an argument: it parses back to its case, and a malformed one is named."""

from __future__ import annotations

import json

import pytest

from conformance.case import parse_fields
from conformance.errors import UsageError
from conformance.materialize import materialize
from conformance.registry import parse_case
from tests.harness_runs import FORMATS, drawn


@pytest.mark.parametrize("name", FORMATS)
def test_round_trip(name):
    fmt = FORMATS[name]
    for case in drawn(name, 100):
        assert case.format == name
        assert parse_case(case.id) == case
        assert hash(parse_case(case.id)) == hash(case)
        record = json.loads(json.dumps(case.to_json()))
        assert record["format"] == name
        assert set(record["fields"]) == {dim.name for dim in fmt.all_dims}
        assert parse_fields(name, fmt.all_dims, record["fields"]) == case


@pytest.mark.parametrize("name", FORMATS)
def test_frozen_cases_of_every_format_parse_and_materialize(name):
    fmt = FORMATS[name]
    for text in (*fmt.tile_cases, *fmt.large, *fmt.zero_size, *fmt.nonfinite):
        case = fmt.parse(text)
        assert parse_case(case.id) == case
        materialize(fmt, case)


def test_defaults_are_left_out():
    assert FORMATS["nf4"].case().id == "nf4:"
    assert parse_case("nf4:") == FORMATS["nf4"].case()
    assert FORMATS["nf4"].case(out="bf16", shape=(3, 65)).id == "nf4:shape=3x65,out=bf16"


MALFORMED = [
    ("", "expected FORMAT:field=value"),
    ("nf4", "expected FORMAT:field=value"),
    (":shape=1", "expected FORMAT:field=value"),
    ("nf5:shape=1", "format: expected one of .*nf4.*, found 'nf5'"),
    ("nf4:shape", "expected field=value, found 'shape'"),
    ("nf4:shape=1,,out=fp16", "expected field=value, found ''"),
    ("nf4:shape=1,shape=2", "expected each field once, found 'shape' twice"),
    ("nf4:size=1", "nf4: expected fields among .*shape.*, found 'size'"),
    ("llm_int8:blocksize=64", "llm_int8: expected fields among .*, found 'blocksize'"),
    ("nf4:shape=", "shape: expected sizes joined by x"),
    ("nf4:shape=3x", "shape: expected sizes joined by x"),
    ("nf4:shape=-3x4", "shape: .*found '-3x4'"),
    ("nf4:shape=3.5", "shape: .*found '3.5'"),
    ("llm_int8:shape=64", "shape: expected 2 sizes, found '64'"),
    ("nf4:blocksize=65", "blocksize: expected one of .*, found '65'"),
    ("nf4:blocksize=sixty", "blocksize: expected one of .*, found 'sixty'"),
    ("nf4:absmax=Nested", "absmax: expected one of plain, nested, found 'Nested'"),
    ("nf4:storage=fp64", "storage: expected one of .*, found 'fp64'"),
    ("nf4:codebook=mine", "codebook: expected one of .*, found 'mine'"),
    ("nf4:words=noise", "words: expected one of .*, found 'noise'"),
    ("nf4:words=random", r"words: expected a number in parentheses after random, found 'random'"),
    ("nf4:words=random()", r"words: .*found 'random\(\)'"),
    ("nf4:words=random(-1)", r"words: .*found 'random\(-1\)'"),
    ("nf4:words=zeros(1)", r"words: expected no number after zeros, found 'zeros\(1\)'"),
    ("nf4:scales=random(1)", "scales: expected one of"),
    ("nf4:out=fp8", "out: expected one of fp16, bf16, fp32, found 'fp8'"),
    ("nf4:layout=tiled", "layout: expected one of"),
    ("nf4:dest=old", "dest: expected one of"),
    ("nf4:tile=huge", "tile: expected one of"),
    ("nf4:route=direct", "route: expected one of"),
]


@pytest.mark.parametrize(("text", "words"), MALFORMED, ids=[text or "empty" for text, _ in MALFORMED])
def test_malformed(text, words):
    with pytest.raises(UsageError, match=words) as info:
        parse_case(text)
    assert "\n" not in str(info.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nf4:shape=1x3,storage=fp32", "nf4:shape=1x3,storage=fp32: packed: expected"),
        ("nf4:route=pack", "route: expected words, found pack, but no packer"),
        ("nf4:route=real", "route: expected words, found real, but no packer"),
    ],
)
def test_fields_that_do_not_fit_together(text, words):
    case = parse_case(text)
    with pytest.raises(UsageError, match=words):
        materialize(FORMATS["nf4"], case)


def test_unknown_dimension_in_code():
    with pytest.raises(UsageError, match="found 'width'"):
        FORMATS["nf4"].case(width=3)
    with pytest.raises(KeyError):
        FORMATS["nf4"].case()["width"]
