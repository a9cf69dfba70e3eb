"""The cases that ``pytest conformance`` judges a format by, in its order.

Left out is what needs an upstream library or a model (packed and real weights) and what asks about the
oracles rather than the kernel.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

from conformance.bits import DTYPES
from conformance.registry import Format, find_format
from conformance.strategies import cases, draw_each


class Item(NamedTuple):
    """One case: the test that runs it, as pytest names it, and the case's id."""

    test: str
    case: str


def _drawn(fmt: Format, out: str, test: str, seed: int, examples: int) -> list[str]:
    found: list[str] = []
    # As in conformance/running.py: the seed of a test is that of the run and its name.
    strategy = cases(fmt, out=out, route="words")
    draw_each(strategy, examples, f"{seed}/{test}", lambda case, choices: found.append(case.id))
    return found


@functools.cache
def suite(name: str, seed: int, examples: int) -> tuple[Item, ...]:
    """Items of the format ``name``: those that ``--hypothesis-seed seed --max-examples examples`` draws,
    then tiles, large weights, non-finite scales and empty weights, each for every output dtype."""
    fmt = find_format(name)
    found: list[Item] = []
    for out in DTYPES:
        test = f"test_words[{name}-{out}]"
        found += [Item(test, case) for case in _drawn(fmt, out, test, seed, examples)]
        found.append(Item(test, fmt.case(out=out).id))
    fixed: tuple[tuple[str, Sequence[str], Sequence[str | None]], ...] = (
        ("test_tiles", fmt.tile_cases, ("small", "default")),
        ("test_large", fmt.large, (None,)),
        ("test_nonfinite_scales", fmt.nonfinite, (None,)),
        ("test_zero_size", fmt.zero_size, (None,)),
    )
    for kind, texts, tiles in fixed:
        for out in DTYPES:
            for text in texts:
                for tile in tiles:
                    case = fmt.parse(text).replace(out=out)
                    case = case if tile is None else case.replace(tile=tile)
                    found.append(Item(f"{kind}[{name}-{out}]", case.id))
    return tuple(found)
