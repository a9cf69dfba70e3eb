"""Cases are drawn several at a time: as many as asked for, each with the choices that make it again."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis.database import InMemoryExampleDatabase, choices_to_bytes
from hypothesis.errors import Flaky

from conformance.dims import Choice
from conformance.harness import Failure
from conformance.running import run_drawn
from conformance.strategies import BATCH, cases, draw_each
from tests import planted
from tests.harness_runs import FORMATS, harness

NF4 = cases(FORMATS["nf4"], route="words", out="fp16")


def collected(count: int, seed: int | str = 0, strategy=NF4):
    found = []
    draw_each(strategy, count, seed, lambda case, choices: found.append((case, choices)))
    return found


@pytest.mark.parametrize("count", [1, 2, BATCH, BATCH + 1, 60, 300])
def test_as_many_different_cases_as_asked_for(count):
    found = [case for case, _ in collected(count)]
    assert len(found) == len(set(found)) == count


def test_fewer_where_there_are_not_as_many():
    layout = {dim.name: dim.default for dim in FORMATS["nf4"].all_dims if dim.name != "layout"}
    found = [case["layout"] for case, _ in collected(60, strategy=cases(FORMATS["nf4"], **layout))]
    assert sorted(found) == ["contiguous", "offset", "padded", "strided", "transposed"]


def test_a_seed_stands_for_its_cases():
    assert collected(40, "a") == collected(40, "a")
    assert {case for case, _ in collected(40, "a")} != {case for case, _ in collected(40, "b")}


def test_a_case_of_more_choices_than_its_bytes_hold_is_drawn_of_more_bytes():
    dims = tuple(Choice(f"dim{number}", 0, choices=tuple(range(100))) for number in range(40))
    strategy = cases(dataclasses.replace(FORMATS["nf4"], dims=dims), route="words")
    found = collected(200, strategy=strategy)
    assert all(len(choices) >= len(dims) for _, choices in found)
    last = [case[dims[-1].name] for case, _ in found]
    assert len(set(last)) > 60


@pytest.mark.parametrize("name", FORMATS)
def test_the_choices_make_the_case_again(name):
    strategy, key = cases(FORMATS[name], route="words"), b"key"
    case, choices = collected(20, strategy=strategy)[-1]
    database = InMemoryExampleDatabase()
    database.save(key, choices_to_bytes(choices))
    seen = []

    @settings(database=database, max_examples=1)
    @given(strategy)
    def again(drawn):
        seen.append(drawn)

    again._hypothesis_internal_database_key = key
    again()
    assert seen[0] == case


@pytest.mark.parametrize("error", [KeyError, SystemExit, GeneratorExit, KeyboardInterrupt])
def test_an_exception_ends_the_drawing_and_is_raised_once(error):
    seen = []

    def look(case, choices):
        seen.append(case)
        if len(seen) == 30:
            raise error(case)

    with pytest.raises(error):
        draw_each(NF4, 60, 0, look)
    assert len(seen) == 30


@pytest.mark.usefixtures("nothing_remembered")
def test_a_kernel_that_fails_once_is_flaky_and_no_right_one():
    failed = []

    def once(weight, *, dtype, out=None):
        result = planted.right(weight, dtype=dtype, out=out)
        if weight.numel > 100 and not failed:
            failed.append(weight)
            first = result.reshape(-1)[0]  # another value, whatever it was: a large one plus 1 may be itself
            result.fill_(2.0 if first == 1 else 1.0)
        return result

    with pytest.raises(Flaky):
        run_drawn(harness(once), "once", NF4)
    assert failed


def test_what_was_found_is_remembered_and_judged_first():
    database = InMemoryExampleDatabase()
    settings.register_profile("kept", settings.get_profile("conformance"), database=database)
    settings.load_profile("kept")
    try:
        run = harness(planted.tail_of_previous_block)
        with pytest.raises(Failure) as first:
            run_drawn(run, "test", NF4)
        judged = []
        check = run.check

        def spied(case, **more):
            judged.append(case)
            return check(case, **more)

        run.check = spied
        with pytest.raises(Failure) as second:
            run_drawn(run, "test", NF4)
    finally:
        settings.load_profile("conformance")
    shrunk = first.value.checked.verdict.case
    assert second.value.checked.verdict.case == shrunk
    assert set(judged) == {shrunk}
