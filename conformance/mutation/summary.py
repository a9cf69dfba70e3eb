"""The numbers of a run: what was planted, caught and named, and whether that is enough."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence

from conformance.mutation.score import Outcome


@dataclasses.dataclass(frozen=True)
class Tally:
    """Counts of one kind of mutant.

    Attributes:
        planted: mutants that were run and that need to be caught.
        caught: of those, how many were.
        named: faults of the catalogue that the report named; ``first``: as the first cause;
            ``alone``: as the only one.
        median, ninth: examples until caught, of half and of nine in ten of them.
    """

    planted: int
    caught: int
    named: int
    first: int
    alone: int
    median: float | None
    ninth: float | None


@dataclasses.dataclass(frozen=True)
class Summary:
    """Outcomes of a run with what was left out and why.

    Attributes:
        outcomes: of the mutants that need to be caught.
        controls: of right kernels.
        excused: ``(name, change, why, reason)`` of mutants that need not be caught and survived, or were
            not run.
        wrongly_excused: listed mutants that were caught when they were run.
        ran: what was run, in words.
    """

    outcomes: Sequence[Outcome]
    controls: Sequence[Outcome]
    excused: Sequence[tuple[str, str, str, str]]
    wrongly_excused: Sequence[Outcome]
    ran: str

    def tally(self, kind: str) -> Tally:
        of_kind = [outcome for outcome in self.outcomes if outcome.kind == kind]
        caught = [outcome for outcome in of_kind if outcome.caught]
        examples = sorted(outcome.examples for outcome in caught)
        named = [outcome.named for outcome in caught]
        return Tally(
            len(of_kind),
            len(caught),
            sum(bool(name) for name in named),
            sum(name in ("first", "alone") for name in named),
            named.count("alone"),
            statistics.median(examples) if examples else None,
            examples[-(-len(examples) * 9 // 10) - 1] if examples else None,
        )

    @property
    def survivors(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if not outcome.caught and not outcome.error]

    @property
    def accused(self) -> list[Outcome]:
        return [outcome for outcome in self.controls if outcome.caught]

    @property
    def broken(self) -> list[Outcome]:
        """Those on which the harness itself raised."""
        return [outcome for outcome in (*self.outcomes, *self.controls) if outcome.error]

    @property
    def passed(self) -> bool:
        """Something was planted, all of it was caught, and nothing right was accused."""
        ran = bool(self.outcomes or self.controls)
        failing = self.survivors or self.accused or self.wrongly_excused or self.broken
        return ran and not failing

    def lines(self) -> list[str]:
        """The numbers as sentences, and every mutant that survived with its reason."""
        found = [f"ran        {self.ran}"]
        for kind in ("catalogue", "source"):
            tally = self.tally(kind)
            if not tally.planted:
                continue
            text = f"{tally.caught} of {tally.planted} caught ({_percent(tally.caught, tally.planted)})"
            if kind == "catalogue":
                text += (
                    f", {tally.named} named ({_percent(tally.named, tally.planted)}), {tally.first} of them "
                    f"first, {tally.alone} alone"
                )
            if tally.median is not None:
                text += f"; examples to catch: median {tally.median:g}, nine in ten within {tally.ninth:g}"
            found.append(f"{kind:<10} {text}")
        found.append(f"control    {len(self.controls)} right kernels, {len(self.accused)} accused")
        for title, outcomes in (
            ("SURVIVED", self.survivors),
            ("ACCUSED", self.accused),
            ("LISTED as a mutant that cannot be caught, but caught", self.wrongly_excused),
        ):
            for outcome in outcomes:
                what = outcome.change or outcome.fault
                more = f": {outcome.verdict} on {outcome.case}" if outcome.caught else ""
                found.append(f"{title}  {outcome.name}  {what}{more}")
        found += [f"ERROR  {outcome.name}: {outcome.error.splitlines()[-1]}" for outcome in self.broken]
        counts: dict[tuple[str, str], int] = {}
        for _, _, why, reason in self.excused:
            counts[why, reason] = counts.get((why, reason), 0) + 1
        for (why, reason), count in counts.items():
            found.append(f"listed     {count} {why}: {reason}")
        return found


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %"
