"""The nearest case that passes beside a failing one: what is found, in which order, within which bounds."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import signal
import sys
import time
from xml.etree import ElementTree

import pytest

from conformance.deadline import AGAIN, time_limit
from conformance.dims import Choice, Patterned, Shape, Text
from conformance.formats._grouped import Size
from conformance.neighbours import (
    PASSES,
    SENSELESS,
    Budget,
    nearest_passing,
    neighbours,
    with_neighbour,
)
from conformance.patterns import SCALE_PATTERNS, WORD_PATTERNS, Pattern
from conformance.registry import parse_case
from conformance.steps import near_sizes, smaller_sizes
from tests import faulty, planted
from tests.harness_runs import FORMATS, harness, judge, pytest_run, records


def nearest(kernel, case: str, **budget):
    return nearest_passing(harness(kernel), parse_case(case), budget=Budget(**budget) if budget else None)


def test_the_failing_dimension_is_named():
    found = nearest(faulty.gptq_rows_from_64, "gptq:K=65,N=3")
    assert found.case == parse_case("gptq:K=64,N=3")
    assert (found.dimension, found.passes, found.fails) == ("K", "64", "65")
    assert str(found) == "gptq:N=3 (K: 64 passes, 65 fails)"
    assert found.tried[-1].case == found.case
    assert found.tried[-1].verdict == "EXACT"


@pytest.mark.parametrize(
    ("kernel", "case", "words"),
    [
        (planted.tail_of_previous_block, "nf4:shape=1x65,words=zeros", "shape: 1x64 passes, 1x65 fails"),
        (planted.tail_left_out, "blockwise8:shape=2x129", "shape: 2x128 passes, 2x129 fails"),
        (
            faulty.spoilt("gptq", faulty.only_bfloat16),
            "gptq:K=8,N=1,out=bf16",
            "out: fp16 passes, bf16 fails",
        ),
        (planted.bf16_truncated, "nf4:shape=1x65,out=bf16", "out: fp16 passes, bf16 fails"),
        (planted.input_strides_ignored, "nf4:shape=2x65,layout=strided", "layout: contiguous passes"),
        (planted.output_strides_ignored, "nf4:shape=2x65,dest=padded", "shape: 1x65 passes, 2x65 fails"),
        (faulty.spoilt("gptq", faulty.second_group), "gptq:g=16,K=17,N=2", "g: 17 passes, 16 fails"),
        (faulty.gptq_code_eleven, "gptq:K=8,N=1", "bits: 2 passes, 4 fails"),
    ],
    ids=["tail", "unwritten", "one-dtype", "rounding", "layout", "dest", "group", "code"],
)
def test_what_is_wrong_is_the_dimension_that_is_found(kernel, case, words):
    checked = judge(kernel, case)
    assert checked.verdict.failed
    found = nearest(kernel, case)
    assert words in str(found)
    assert judge(kernel, found.case.id).verdict.kind in PASSES
    changed = {dim.name for dim in found.case.dims if found.case[dim.name] != parse_case(case)[dim.name]}
    assert changed == {found.dimension}


@pytest.mark.parametrize("kernel", [planted.raises, planted.other_dtype, planted.past_the_end])
def test_everything_wrong_is_said(kernel):
    found = nearest(kernel, "nf4:shape=1x3,words=ramp", seconds=20)
    assert found.case is None
    assert found.left == 0
    assert len(found.tried) > 20
    assert not any(tried.verdict in PASSES for tried in found.tried)
    assert str(found) == f"none: all {len(found.tried)} neighbours fail too: not a matter of one dimension"


def test_unsupported_is_no_pass():
    """A kernel that is wrong in float16 and refuses everything else."""

    def kernel(weight, *, dtype, out=None):
        if tuple(weight.shape) != (1, 65):
            raise planted.Unsupported("this shape only")
        return planted.nibbles_swapped(weight, dtype=dtype, out=out)

    found = nearest(kernel, "nf4:shape=1x65,words=ramp", seconds=20)
    refused = [tried for tried in found.tried if tried.verdict == "UNSUPPORTED"]
    assert refused
    assert not any(tried.counts for tried in refused)
    assert found.case is None or found.dimension == "words"


def test_an_output_that_hides_the_fault_is_no_pass():
    """Zeros and infinities hide a wrong scale; neither is reported."""

    def doubled(weight, *, dtype, out=None):
        return planted.store(planted.values(weight) * 2, dtype, out)

    found = nearest(doubled, "llm_int8:shape=1x3,words=ones,scales=one", seconds=20)
    hidden = [t for t in found.tried if t.verdict in PASSES]
    assert {t.case["words"].name for t in hidden} | {t.case["scales"].name for t in hidden} >= {
        "zeros",
        "zero",
        "tiny",
        "huge",
    }
    assert found.case is None
    assert "say nothing" in str(found)


def test_a_name_without_effect_is_no_neighbour():
    """A user's kernel gets no tile sizes, and the packer matters on the pack route alone."""
    calls = iter(range(10**6))

    def fails_once_in_two(weight, *, dtype, out=None):
        return planted.store(planted.values(weight) + (next(calls) < 3), dtype, out)

    found = nearest(fails_once_in_two, "nf4:shape=1x3")
    assert found.dimension != "tile"
    everything = nearest(planted.raises, "nf4:shape=1x3", seconds=20)
    assert "tile" not in {tried.dimension for tried in everything.tried}


def test_what_differs_from_run_to_run_must_pass_every_time():
    """The last element is off in every other call, by less than a step of a huge scale."""
    found = nearest(planted.differs_from_run_to_run(), "nf4:shape=1x3,words=ramp,scales=one", seconds=20)
    assert found.dimension in ("", "scales")
    calls = iter(range(10**6))

    def now_and_then(weight, *, dtype, out=None):
        """Unstable in three calls of four."""
        result = planted.values(weight)
        result.reshape(-1)[-1] += next(calls) % 4
        return planted.store(result, dtype, out)

    assert nearest(now_and_then, "nf4:shape=1x3,words=ramp,scales=one", seconds=20).dimension in (
        "",
        "scales",
    )


def test_a_case_that_passes_when_judged_again():
    found = nearest(planted.right, "nf4:shape=1x3")
    assert found.case is None
    assert "judged again" in str(found)


# --- bounds ------------------------------------------------------------------------------------


def test_budget_in_cases():
    found = nearest(planted.raises, "nf4:shape=1x65", cases=5, seconds=20)
    assert len(found.tried) == 5
    assert found.left > 10
    assert str(found) == f"none of the 5 neighbours that were tried; {found.left} more were not"


def test_budget_in_seconds():
    def slow(weight, *, dtype, out=None):
        time.sleep(0.05)
        raise RuntimeError("slow")

    began = time.monotonic()
    found = nearest(slow, "nf4:shape=1x65", seconds=0.5)
    assert time.monotonic() - began < 1.5
    assert 0 < len(found.tried) < 20
    assert found.left > 0


def test_a_neighbour_that_hangs_is_left():
    began = time.monotonic()
    kernel = faulty.hangs_below(65, planted.tail_of_previous_block)
    found = nearest(kernel, "nf4:shape=1x65,words=zeros", seconds=2)
    assert time.monotonic() - began < 4
    assert found.tried[0].verdict == "HANG"
    assert not found.tried[0].counts
    assert found.case is None or found.case["shape"][-1] > 65 or found.dimension != "shape"


def test_a_kernel_that_always_hangs_ends():
    began = time.monotonic()
    assert nearest(faulty.hangs_below(10**9, planted.right), "nf4:", seconds=0.3) is None
    assert time.monotonic() - began < 2


def test_a_time_limit_gives_an_outer_timer_back():
    rung = []
    previous = signal.signal(signal.SIGALRM, lambda number, frame: rung.append(number))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with time_limit(0.05) as limit:
            time.sleep(10)
        assert limit.reached
        assert not rung
        until = time.monotonic() + 5
        while not rung and time.monotonic() < until:
            time.sleep(0.01)
        assert rung
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def _busy(*_: object) -> None:
    until = time.monotonic() + 0.02
    while time.monotonic() < until:
        pass


class _Slow:
    __del__ = _busy


def _collects() -> None:
    gc.collect(0)


def _takes_all() -> None:
    with contextlib.suppress(BaseException):
        time.sleep(0.007)
    time.sleep(0.007)


@pytest.mark.parametrize("step", [_collects, _Slow, _takes_all])
def test_time_that_is_up_where_exceptions_get_lost(step):
    """Nearly all the time is spent in a callback or in ``__del__``, or half of it where all is caught."""
    hook, trace = sys.unraisablehook, sys.gettrace()
    gc.callbacks.append(_busy)
    began = time.monotonic()
    try:
        with time_limit(0.1) as limit:
            while time.monotonic() < began + 8:
                step()
    finally:
        gc.callbacks.remove(_busy)
    assert limit.reached
    assert time.monotonic() - began < 4
    assert (sys.unraisablehook, sys.gettrace()) == (hook, trace)


def test_a_time_limit_lets_clean_up_whole():
    cleaned = []
    with time_limit(0.05) as limit:
        try:
            time.sleep(10)
        finally:
            until = time.monotonic() + 4 * AGAIN
            while time.monotonic() < until:
                pass
            cleaned.append(limit.reached)
    assert cleaned == [True]


def test_nothing_is_recorded_and_no_oracle_is_asked():
    written = []

    class Writer:
        def write(self, record):
            written.append(record)

    def asked(weight, dtype):
        raise AssertionError("asked")

    fmt = FORMATS["nf4"]
    oracles = tuple(
        dataclasses.replace(o, dequantize=asked, missing=lambda device: None) for o in fmt.oracles
    )
    run = harness(
        planted.tail_of_previous_block,
        oracles=None,
        fmt=dataclasses.replace(fmt, oracles=oracles),
        writer=Writer(),
    )
    found = nearest_passing(run, parse_case("nf4:shape=1x65,words=zeros"))
    assert found.case is not None
    assert not written
    assert run.oracles is None
    assert not run._missing


# --- candidates --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORMATS)
def test_candidates_change_one_dimension_nearest_first(name):
    case = FORMATS[name].case()
    found = neighbours(FORMATS[name], case)
    assert 30 < len(found) < 150
    assert len({other for _, other in found}) == len(found)
    for dimension, other in found:
        assert [d.name for d in case.dims if case[d.name] != other[d.name]] == [dimension]
        assert parse_case(other.id) == other
    assert {"out", "layout", "dest", "tile"} <= {dimension for dimension, _ in found}
    assert "route" not in {dimension for dimension, _ in found}
    first = found[0][1]
    sizes = [d.name for d in case.dims if d.is_size]
    assert found[0][0] in sizes
    assert first[sizes[0]] != case[sizes[0]]


def test_every_kind_of_dimension_has_neighbours():
    size = Size("K", 64, lambda drawn: (32, 48))
    assert next(iter(size.neighbours(65, {}))) == (0, 64)
    assert (0, 66) in size.neighbours(65, {})
    assert {32, 48, 72, 128} <= {value for _, value in size.neighbours(65, {})}
    group = Size("g", 32, lambda drawn: (-1, 16), minimum=-1)
    assert [value for _, value in group.neighbours(-1, {})] == [32, 16]
    assert -1 in [value for _, value in group.neighbours(16, {})]
    shape = Shape("shape", (1, 64), block="blocksize")
    found = [value for _, value in shape.neighbours((3, 65), {"blocksize": 64})]
    assert found[:2] == [(3, 64), (3, 66)]
    assert {(2, 65), (4, 65), (1, 3, 65)} <= set(found)
    assert all(
        sum(a != b for a, b in zip(value, (3, 65), strict=True)) == 1 for value in found if len(value) == 2
    )
    layout = Choice("layout", "a", choices=("a", "b", "c"))
    assert list(layout.neighbours("b", {})) == [(1, "a"), (2, "c")]
    words = Patterned("words", Pattern("random", 0), known=WORD_PATTERNS)
    found = [value for _, value in words.neighbours(Pattern("random", 7), {})]
    assert found[:3] == [Pattern("random", 0), Pattern("random", 6), Pattern("random", 8)]
    assert Pattern("zeros") in found
    scales = Patterned("s", Pattern("one"), known=SCALE_PATTERNS, generated=("one", "ordinary"))
    assert Pattern("nan", 0) not in [value for _, value in scales.neighbours(Pattern("one"), {})]
    assert not list(Text("layer", "").neighbours("x", {}))


@pytest.mark.parametrize("value", [1, 2, 7, 8, 9, 63, 64, 65, 127, 1000, 4097])
def test_sizes(value):
    near = near_sizes(value)
    assert list(near) == sorted(near, key=lambda size: (abs(size - value), size))
    assert value not in near
    assert min(near) >= 1
    assert value + 1 in near
    assert (value - 1 in near) == (value > 1)
    assert {-(-(value + 1) // unit) * unit for unit in (8, 16, 32, 64)} <= set(near)
    smaller = smaller_sizes(value)
    assert list(smaller) == sorted(set(smaller))
    assert all(1 <= size < value for size in smaller)
    assert value == 1 or smaller[-1] == value - 1


# --- the report of a run -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", SENSELESS)
def test_no_neighbour_where_it_makes_no_sense(kind):
    run = harness(planted.tail_of_previous_block)
    checked = run.judge(parse_case("nf4:shape=1x65,words=zeros"))
    other = dataclasses.replace(checked, verdict=dataclasses.replace(checked.verdict, kind=kind))
    assert with_neighbour(run, other) is other
    assert with_neighbour(run, dataclasses.replace(checked, weight=None)).verdict.neighbour == ""
    assert with_neighbour(run, checked).verdict.kind == checked.verdict.kind
    assert (
        with_neighbour(run, checked).verdict.neighbour == "nf4:words=zeros (shape: 1x64 passes, 1x65 fails)"
    )


def test_the_report_the_bundle_and_junit_have_it(tmp_path):
    folder = tmp_path / "results"
    done = pytest_run(
        *("conformance", "--case", "gptq:K=65,N=3", "--kernel", "gptq=tests.faulty:gptq_rows_from_64"),
        *("--results", str(folder), f"--junitxml={folder}.xml", "-o", "junit_family=xunit2"),
    )
    assert done.returncode == 1, done.stdout
    text = "gptq:N=3 (K: 64 passes, 65 fails)"
    assert f"passes     {text}" in done.stdout
    found = {p.get("name"): p.get("value") for p in ElementTree.parse(f"{folder}.xml").iter("property")}
    assert found["neighbour"] == text
    (bundle,) = (folder / "bundles").iterdir()
    assert text in (bundle / "case.json").read_text(encoding="utf-8")
    assert len(records(folder)) == 1
