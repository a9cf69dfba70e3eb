"""What a compiler made worse than another one, or than it was at another commit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from conformance.ahead.result import Compiled, least

# More registers than this share of the earlier ones is a finding: the allocator's own whims are
# smaller, and a quarter more may cost a warp a multiprocessor.
GROWTH = 1.25


def worse(now: Compiled, then: Compiled) -> Iterator[str]:
    """What is worse in ``now``, in words."""
    if now.error or then.error:
        if now.error and not then.error:
            yield f"does not compile any more: {now.error}"
        return
    if now.registers > then.registers * GROWTH:
        yield f"{now.registers} registers, were {then.registers}"
    if now.spills > then.spills:
        yield f"{now.spills} spills, were {then.spills}"
    if now.shared > 0 and then.shared == 0:
        yield f"{now.shared} bytes of shared memory, were none"
    for name in now.stores:
        width, before = least(now.stores, name), least(then.stores, name)
        if width is not None and before is not None and width < before:
            yield f"stores of {width} bytes to {name}, were {before}"
    for flaw in now.narrow:
        if flaw not in then.narrow:
            yield f"an address in too few bits, was none: {flaw}"


def compare(now: Sequence[Compiled], then: Sequence[Compiled], source: str) -> Iterator[str]:
    """A line for each thing that got worse. ``source``: what made the earlier results."""
    earlier = {one.key: one for one in then}
    for one in now:
        before = earlier.get(one.key)
        if before is not None:
            for text in worse(one, before):
                yield (
                    f"{one.format} {one.kernel}, {one.case}, {one.target}: "
                    f"{text} (Triton {one.triton} against {source})"
                )
