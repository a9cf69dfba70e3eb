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


def report(verdict: Verdict, commands: tuple[tuple[str, str], ...] = ()) -> str:
    """The failure text: verdict, case, who voted what, cause, first wrong elements, commands."""
    out = [f"{verdict.label}  {verdict.case.id}"]
    out += _wrap("kernel", f"{verdict.kernel} on {verdict.device}", 2)
    out += _wrap("verdict", verdict.summary)
    if verdict.votes:
        spec = verdict.votes[-1]
        gates = " ".join(
            f"{g}:{'pass' if getattr(spec, g) else 'FAIL'}" for g in ("coarse", "element", "exact")
        )
        votes = ", ".join(f"{vote.reference} {vote.n_wrong}" for vote in verdict.votes)
        out += _wrap(
            "compared",
            f"{spec.n} elements; differing from {votes}; gates {gates}; max |error| {spec.max_abs:.6g}",
            2,
        )
    for cause in verdict.causes[:2]:
        name = "" if cause.name == "unknown" else f"{cause.name}: "
        out += _wrap("cause", name + cause.text, 3)
        if cause.effect:
            out += _wrap("  effect", cause.effect, 1)
        if cause.fix:
            out += _wrap("  fix", cause.fix, 1)
    if len(verdict.causes) > 2:
        others = ", ".join(cause.name for cause in verdict.causes[2:6])
        out += _wrap("also fits", others, 1)
    for label, text in (("told apart", verdict.apart), ("error", verdict.reading)):
        if text:
            out += _wrap(label, text, 2)
    for item in verdict.located:
        out.append(f"  {list(item.index)} {item.where}"[: WIDTH + 30])
        out.append(f"      got {item.got}  want {item.want}")
    if verdict.neighbour:
        out += _wrap("passes", verdict.neighbour, 2)
    for note in verdict.notes:
        out += _wrap("note", note, 1)
    tail = [f"{label:<10} {command}" for label, command in commands]
    room = LINES - len(tail)
    return "\n".join(out[:room] + tail)
