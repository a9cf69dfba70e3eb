"""Words for people: one failing verdict in at most 25 lines. Never prints a tensor."""

from __future__ import annotations

import textwrap

from conformance.verdict import Verdict

WIDTH = 110
LINES = 25


def _wrap(label: str, text: str, lines: int = 3) -> list[str]:
    wrapped = textwrap.wrap(text, WIDTH - 11, break_long_words=False, break_on_hyphens=False) or [""]
    if len(wrapped) > lines:
        wrapped = wrapped[:lines]
        wrapped[-1] += " ..."
    return [f"{label:<10} {wrapped[0]}"] + [" " * 11 + line for line in wrapped[1:]]


# What goes first when there is no room, from 1; 0 stays.
_NOTE, _LATER_ELEMENT, _SECOND_ELEMENT, _SECOND_EFFECT, _ALSO, _PASSES = range(1, 7)


def report(verdict: Verdict, commands: tuple[tuple[str, str], ...] = (), room: int = LINES) -> str:
    """The failure text: verdict, case, who voted what, cause, first wrong elements, commands.

    Where that is more than ``room`` lines, notes are left out first, then the third and fourth element;
    commands never. What is left out is left out whole: no element without its values.
    """
    blocks: list[tuple[int, list[str]]] = [(0, [f"{verdict.label}  {verdict.case.id}"])]

    def add(rank: int, label: str, text: str, lines: int = 3) -> None:
        if text:
            blocks.append((rank, _wrap(label, text, lines)))

    add(0, "kernel", f"{verdict.kernel} on {verdict.device}", 2)
    blocks.append((0, _wrap("verdict", verdict.summary)))
    if verdict.votes:
        spec = verdict.votes[-1]
        gates = " ".join(
            f"{g}:{'pass' if getattr(spec, g) else 'FAIL'}" for g in ("coarse", "element", "exact")
        )
        votes = ", ".join(f"{vote.reference} {vote.n_wrong}" for vote in verdict.votes)
        add(
            0,
            "compared",
            f"{spec.n} elements; differing from {votes}; gates {gates}; max |error| {spec.max_abs:.6g}",
            2,
        )
    for number, cause in enumerate(verdict.causes[:2]):
        name = "" if cause.name == "unknown" else f"{cause.name}: "
        add(0, "cause", name + cause.text)
        add(_SECOND_EFFECT if number else 0, "  effect", cause.effect, 1)
        add(_SECOND_EFFECT if number else 0, "  fix", cause.fix, 1)
    add(_ALSO, "also fits", ", ".join(cause.name for cause in verdict.causes[2:6]), 1)
    add(0, "told apart", verdict.apart)
    add(0, "error", verdict.reading)
    for number, item in enumerate(verdict.located):
        index = f"  {list(item.index)} {item.where}"[: WIDTH + 30]
        rank = (0, _SECOND_ELEMENT)[number] if number < 2 else _LATER_ELEMENT
        blocks.append((rank, [index, f"      got {item.got}  want {item.want}"]))
    add(_PASSES, "passes", verdict.neighbour, 2)
    for note in verdict.notes:
        add(_NOTE, "note", note, 1)
    tail = [f"{label:<10} {command}" for label, command in commands]
    return "\n".join(_fitting(blocks, room - len(tail)) + tail)


def _fitting(blocks: list[tuple[int, list[str]]], room: int) -> list[str]:
    """Lines of the blocks that fit, each of them whole, in order; the first one is always there."""
    kept = list(blocks)
    by_rank = sorted(enumerate(blocks), key=lambda item: (item[1][0] or len(blocks) + _PASSES, -item[0]))
    for _, block in by_rank:
        if sum(len(lines) for _, lines in kept) <= room or len(kept) == 1:
            break
        if block is not blocks[0]:
            kept = [other for other in kept if other is not block]
    return [line for _, lines in kept for line in lines]
