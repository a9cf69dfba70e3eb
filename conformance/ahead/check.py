"""Results against what is expected of them."""

from __future__ import annotations

from collections.abc import Iterator

from conformance.ahead.expect import Expected, expected
from conformance.ahead.result import Compiled, least


def violations(result: Compiled, want: Expected | None = None) -> Iterator[str]:
    """A line for each expectation that does not hold, with what was expected and found.

    Args:
        want: instead of what :mod:`conformance.ahead.expect` says.
    """
    want = expected(result) if want is None else want
    where = f"{result.format} {result.kernel}, {result.case}, {result.target}, Triton {result.triton}"
    if result.error:
        if not want.refused:
            yield f"{where}: expected it to compile, found {result.error}"
        return
    if result.sizes == "large":
        for flaw in result.narrow:
            yield f"{where}: expected addresses in enough bits, found {flaw}"
        return
    for what, most, found in (
        ("spills", want.spills, result.spills),
        ("bytes of shared memory", want.shared, result.shared),
        ("fused multiply-adds", want.fused, result.fused),
    ):
        if most is not None and found > most:
            yield f"{where}: expected {f'at most {most}' if most else 'no'} {what}, found {found}"
    if want.store is not None:
        for name in ("*",) if "*" in result.stores else want.outputs:
            width = least(result.stores, name)
            if width is not None and width < want.store:
                yield f"{where}: expected stores of {want.store} bytes to {name}, found {width}"
        if not result.stores:
            yield f"{where}: expected stores of {want.store} bytes, found no store"
    for name, size in want.loads.items():
        width = least(result.loads, name)
        if width is not None and width < size:
            yield f"{where}: expected loads of at least {size} bytes from {name}, found {width}"
