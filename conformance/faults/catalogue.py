"""The catalogue as a whole: every fault with the formats that use it, and its text as Markdown.

Imports the formats: choose the device before.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping

from conformance.faults import KINDS, Fault
from conformance.faults.grouped import EQUIVALENT
from conformance.faults.not_decoders import NOT_DECODERS, NotDecoder
from conformance.registry import Format, formats

__all__ = ["EQUIVALENT", "NOT_DECODERS", "Entry", "Use", "gather", "lines_of", "markdown", "names"]


@dataclasses.dataclass(frozen=True)
class Use:
    """One meaning of a fault's name, and the formats that have it."""

    fault: Fault
    formats: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Entry:
    """A name with its meanings: one, unless formats differ in the arithmetic or in the words for it."""

    name: str
    kind: str
    uses: tuple[Use, ...]

    @property
    def formats(self) -> tuple[str, ...]:
        return tuple(sorted({name for use in self.uses for name in use.formats}))


def _text(fault: Fault) -> tuple[object, ...]:
    """What a reader sees of a fault."""
    return (fault.kind, fault.arithmetic, fault.trigger, fault.effect, fault.fix, fault.links)


def gather(known: Mapping[str, Format] | None = None) -> tuple[Entry, ...]:
    """Entries by kind, in the order of the formats' catalogues.

    Raises:
        ValueError: an unknown kind, or one name with two kinds.
    """
    found: dict[str, dict[tuple[object, ...], tuple[Fault, list[str]]]] = {}
    for fmt in (formats() if known is None else known).values():
        for fault in fmt.faults:
            uses = found.setdefault(fault.name, {})
            uses.setdefault(_text(fault), (fault, []))[1].append(fmt.name)
    entries = []
    for name, uses in found.items():
        kinds = sorted({fault.kind for fault, _ in uses.values()})
        if len(kinds) > 1 or kinds[0] not in KINDS:
            raise ValueError(f"kind: expected one of {', '.join(KINDS)} for {name}, found {', '.join(kinds)}")
        entries.append(Entry(name, kinds[0], tuple(Use(f, tuple(sorted(used))) for f, used in uses.values())))
    order = list(KINDS)
    return tuple(sorted(entries, key=lambda entry: order.index(entry.kind)))


def names(entries: Iterable[Entry]) -> tuple[str, ...]:
    """Every name that the catalogue explains."""
    return (
        *(entry.name for entry in entries),
        *(entry.name for entry in NOT_DECODERS),
        *(name for name, _ in EQUIVALENT),
    )


# --- text -------------------------------------------------------------------------------------


def lines_of(found: Use | NotDecoder) -> tuple[tuple[str, str], ...]:
    """Labelled lines of one meaning, links left out."""
    if isinstance(found, NotDecoder):
        verdicts = f" ({' or '.join(found.verdicts)})" if found.verdicts else ""
        return (
            ("instead", found.arithmetic),
            ("shows on", found.trigger),
            ("check", found.check + verdicts),
        )
    fault = found.fault
    return (
        ("formats", ", ".join(found.formats)),
        ("instead", fault.arithmetic),
        ("shows on", fault.trigger),
        ("effect", fault.effect),
        ("fix", fault.fix),
    )


_INTRODUCTION = """\
# Fault catalogue

Written by `python -m conformance faults --markdown`; `python -m conformance faults NAME` prints one entry.
An entry is a wrong decoder in `conformance/faults/`. Planted in a kernel, each is caught and named by the
suite (`tests/test_fault_catalogue.py` and its neighbours). On a mismatch, one that gives the kernel's bits
is the `cause` of the [report](interpreting-results.md#a-failure-line-by-line).

Below a name stand the formats that are compared with the fault; a name that means two things stands above
two lists.

| line | meaning |
|---|---|
| instead | what is computed |
| shows on | the least input that shows it, and where it hides |
| effect | what a model does that runs with it |
| fix | where to look |
| seen in | public reports of this fault, or of the same arithmetic in another format |
"""

_OUTSIDE = """\
They depend on memory, devices or packers, and not on the packed words alone. The line `check` says what of
the harness catches them.
"""

_EQUIVALENT = """\
They change no output of any weight that they apply to, so nothing can catch them, and they do not count as
missed.
"""


def markdown(entries: tuple[Entry, ...] | None = None) -> str:
    """``docs/faults.md``."""
    entries = gather() if entries is None else entries
    return "\n".join(_lines(entries)) + "\n"


def _lines(entries: tuple[Entry, ...]) -> Iterator[str]:
    yield _INTRODUCTION
    count = {kind: sum(entry.kind == kind for entry in entries) for kind in KINDS}
    for kind, title in KINDS.items():
        if count[kind]:
            yield f"- [{title}](#{_slug(title)}): {count[kind]}"
    yield f"- [Not in the decoder](#not-in-the-decoder): {len(NOT_DECODERS)}"
    yield f"- [Equivalent changes](#equivalent-changes): {len(EQUIVALENT)}"
    for kind, title in KINDS.items():
        if count[kind]:
            yield f"\n## {title}"
        for entry in entries:
            if entry.kind == kind:
                yield f"\n### {entry.name}"
                for use in entry.uses:
                    # A paragraph between two lists, which would else be one.
                    yield f"\n{', '.join(use.formats)}"
                    yield from _bullets(lines_of(use)[1:], use.fault.links)
    yield f"\n## Not in the decoder\n\n{_OUTSIDE.rstrip()}"
    for outside in NOT_DECODERS:
        yield f"\n### {outside.name}"
        yield from _bullets(lines_of(outside), outside.links)
    yield f"\n## Equivalent changes\n\n{_EQUIVALENT}\n| change | why nothing shows |\n|---|---|"
    for name, reason in EQUIVALENT:
        yield f"| {name} | {_escape(reason)} |"


def _bullets(lines: tuple[tuple[str, str], ...], links: tuple[str, ...]) -> Iterator[str]:
    yield ""
    for label, text in lines:
        yield f"- **{label}** {_escape(text)}"
    if links:
        yield f"- **seen in** {', '.join(f'[{_short(link)}]({link})' for link in links)}"


def _slug(heading: str) -> str:
    """Anchor of one of the headings here: letters, spaces and commas."""
    return heading.lower().replace(",", "").replace(" ", "-")


def _short(link: str) -> str:
    """``repository#number`` of the address of an issue or a pull request."""
    *_, repository, _, number = link.split("/")
    return f"{repository}#{number}"


def _escape(text: str) -> str:
    """Text without characters that mean something in Markdown; ``|`` would end a table's cell."""
    for character in "\\*<|":
        text = text.replace(character, "\\" + character)
    return text.replace("__", "\\_\\_").replace("](", "]\\(")
