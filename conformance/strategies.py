"""Hypothesis strategies for cases: the format's dimensions in order, simplest first."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from conformance.case import Case
from conformance.registry import Format


@st.composite
def cases(draw: st.DrawFn, fmt: Format, **fixed: Any) -> Case:
    """Cases of a format, with the dimensions in ``fixed`` held."""
    narrowed = {dim.name: dim for dim in fmt.pack_dims} if fixed.get("route") == "pack" else {}
    drawn: dict[str, Any] = dict(fixed)
    for dim in fmt.all_dims:
        if dim.name not in fixed:
            dim = narrowed.get(dim.name, dim)
            drawn[dim.name] = draw(dim.strategy(drawn), label=dim.name)
    return fmt.case(**drawn)


def drawing(count: int) -> settings:
    """Settings that draw ``count`` examples: nothing is remembered, replayed or shrunk."""
    return settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )


def sample(fmt: Format, count: int, **fixed: Any) -> tuple[Case, ...]:
    """Distinct cases as they are drawn for a test: the same ones every time. Not for use inside a
    running Hypothesis test, which it would be a part of."""
    found: dict[Case, None] = {}

    @seed(f"{fmt.name}/{sorted(fixed.items(), key=lambda item: item[0])}")
    @drawing(count)
    @given(cases(fmt, **fixed))
    def collect(case: Case) -> None:
        found[case] = None

    collect()
    return tuple(found)
