"""Hypothesis strategies for cases: the format's dimensions in order, simplest first."""

from __future__ import annotations

from typing import Any

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
