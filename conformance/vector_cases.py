"""Which cases are recorded: a pure function of a format's dimensions and of nothing else."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from typing import Any

from conformance.case import Case
from conformance.dims import Choice, Dim, Patterned, Shape
from conformance.errors import UsageError
from conformance.materialize import materialize
from conformance.patterns import Pattern
from conformance.randomness import raw_ints
from conformance.registry import Format

# Dimensions that name a source of a weight and nothing in it.
SOURCES = ("packer", "recorded")
# Choices that mean something together.
PAIRS = (("bits", "zeros"), ("per", "zero"), ("codes", "zero"), ("codes", "azero"))
# Without which a pattern shows nothing.
SHOWN_WITH: dict[str, dict[str, Any]] = {
    "zp": {"zero": "same"},
    "azp": {"azero": "tensor"},
    "bvals": {"bias": "fp32"},
    "vals": {"sparse": Pattern("few", 1)},
}
# Patterns that are recorded each alone, which takes less room than the edge cases that have them.
ALONE = ("bvals",)
# Patterns whose values another one of the dimension, `mixed`, has among its own.
COVERED = {"bvals": ("negzero", "tiny", "huge")}
# Small enough for the interpreter, with two groups; the first that a format can have.
SMALL: tuple[dict[str, int], ...] = ({"K": 32, "g": 16}, {"g": 16}, {})
DRAWN = 8
LIMIT = 2048


def curated(fmt: Format) -> list[tuple[Case, str]]:
    """Cases to record with what each is there for (BASIC, DRAWN, PATTERN or nothing), each once."""
    found: dict[str, tuple[Case, str]] = {}
    kinds = (_basic, _edges, _patterns, _drawn, _packed) if fmt.record_all else (_basic,)
    for case, flag in itertools.chain.from_iterable(kind(fmt) for kind in kinds):
        found.setdefault(case.id, (case, flag))
    return list(found.values())


def _elements(fmt: Format, case: Case) -> int | None:
    """Elements of a case, or None when its dimensions do not fit together."""
    try:
        return math.prod(materialize(fmt, case)[0].output_shape)
    except UsageError:
        return None


def _base(fmt: Format) -> Case:
    known = {dim.name for dim in fmt.dims}
    fields = ({k: v for k, v in small.items() if k in known} for small in SMALL)
    return next(case for case in (fmt.case(**values) for values in fields) if _elements(fmt, case))


def _choices(fmt: Format) -> Iterator[Choice]:
    return (dim for dim in fmt.dims if isinstance(dim, Choice) and dim.name not in SOURCES)


def _basic(fmt: Format) -> Iterator[tuple[Case, str]]:
    """The default, each choice alone, and the pairs."""
    yield fmt.case(), "BASIC"
    base, choices = _base(fmt), {dim.name: dim.choices for dim in _choices(fmt)}
    for name, values in choices.items():
        for value in values:
            yield base.replace(**{name: value}), "BASIC"
    for first, second in PAIRS:
        for one, two in itertools.product(choices.get(first, ()), choices.get(second, ())):
            yield base.replace(**{first: one, second: two}), "BASIC"


def _edges(fmt: Format) -> Iterator[tuple[Case, str]]:
    """Edges of tiles, and what is not finite."""
    for text in fmt.tile_cases:
        if not any(f"{name}=" in text for name in (*SOURCES, *ALONE)):
            yield fmt.parse(text).replace(tile="small"), ""
    for text in fmt.nonfinite:
        case = fmt.parse(text)
        if (_elements(fmt, case) or 0) <= LIMIT and not any(f"{name}=" in text for name in ALONE):
            yield case, ""


def _patterns(fmt: Format) -> Iterator[tuple[Case, str]]:
    """Each pattern of each dimension alone."""
    known = {dim.name for dim in fmt.dims}
    for dim in fmt.dims:
        if isinstance(dim, Patterned):
            needs = {k: v for k, v in SHOWN_WITH.get(dim.name, {}).items() if k in known}
            base = _base(fmt).replace(**needs)
            for name, numbered in dim.known.items():
                if name in COVERED.get(dim.name, ()):
                    continue
                yield base.replace(**{dim.name: Pattern(name, 1 if numbered else None)}), "PATTERN"


def _drawn(fmt: Format) -> Iterator[tuple[Case, str]]:
    """Random cases from fixed seeds; those that do not fit together, or are too large, are passed over."""
    taken = 0
    for number in range(40 * DRAWN):
        drawn: dict[str, Any] = {}
        for dim in fmt.dims:
            label = f"recorded/{fmt.name}/{number}/{dim.name}"
            drawn[dim.name] = dim.default if dim.name in SOURCES else _draw(dim, drawn, label)
        case = fmt.case(**drawn)
        if 0 < (_elements(fmt, case) or 0) <= LIMIT:
            taken += 1
            yield case, "DRAWN"
        if taken == DRAWN:
            return


def _draw(dim: Dim, drawn: dict[str, Any], label: str) -> Any:
    """One of a dimension's values, a pure function of ``label``: no Hypothesis, whose draws change
    from version to version."""

    def pick(values: Iterable[Any]) -> Any:
        listed = tuple(values)
        return listed[int(raw_ints(label, 1, len(listed))[0])]

    if isinstance(dim, Patterned):
        name = pick(dim.generated or dim.known)
        number = int(raw_ints(label + "/number", 1, 100)[0])
        return Pattern(name, number if dim.known[name] else None)
    if isinstance(dim, Shape):
        return (int(raw_ints(label + "/rows", 1, 7)[0]) + 1, pick(dim.EDGES))
    # Sizes and choices that depend on what was drawn before.
    for narrowing in ("sizes", "narrow"):
        if hasattr(dim, narrowing):
            return pick(getattr(dim, narrowing)(drawn))
    assert isinstance(dim, Choice), dim
    return pick(dim.choices if dim.generated is None else dim.generated)


def _packed(fmt: Format) -> Iterator[tuple[Case, str]]:
    """Floats through each packer, in the conventions that it may write."""
    base = _base(fmt).replace(route="pack")
    choices = {dim.name: dim.choices for dim in fmt.dims if dim.name in ("packer", "zeros")}  # type: ignore[attr-defined]
    for values in itertools.product(*choices.values()):
        yield base.replace(**dict(zip(choices, values, strict=True))), ""
