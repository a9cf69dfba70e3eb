"""A page of Triton's versions out of results: verdicts by format, the interpreter's faults, machine code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from packaging.version import Version

from conformance.ahead.check import violations
from conformance.ahead.expect import EXCUSES, expected, without_versions
from conformance.ahead.result import Compiled
from conformance.errors import UsageError
from conformance.matrix.runs import Run, Tally
from conformance.verdict import FAILING, KINDS

COMMAND = (
    'TRITON_INTERPRET=1 pytest conformance --device cpu --profile smoke -k "test_words or test_tiles" '
    "--hypothesis-seed 1 --results runs/VERSION",
    "python -m conformance compile --target sm_90 --json compiled/VERSION.jsonl",
    "python -m conformance versions runs/* --compiled compiled/*.jsonl",
)
INTRO = """\
# Versions of Triton

Written by `python -m conformance versions`, from results of these commands under each version:

```
{commands}
```

{where}
"""


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cell(tally: Tally | None) -> str:
    if tally is None:
        return "-"
    return ", ".join(f"{tally.verdicts[kind]} {kind}" for kind in KINDS if tally.verdicts[kind])


def _failing(run: Run) -> list[str]:
    """A line for each format with failing tests: how many, and what the first of them said."""
    lines = []
    for name, tally in sorted(run.tallies.items()):
        failing = list(tally.failing.values())
        if failing:
            summary = str((failing[0].record or {}).get("summary", ""))
            lines.append(f"{name}: {len(failing)} tests, {failing[0].headline or failing[0].kind} {summary}")
    return lines


def _reports(runs: Mapping[str, Run]) -> list[list[str]]:
    """Rows of what the interpreters get wrong: text, and per version what became of it."""
    found: dict[str, dict[str, str]] = {}
    for version, run in runs.items():
        report = (run.header or {}).get("interpreter_report") or {}
        for what in report.get("corrected", ()):
            found.setdefault(what, {})[version] = "corrected"
        for name, reason in report.get("unjudged", ()):
            found.setdefault(f"casts to {name}: {reason}", {})[version] = "not judged"
        for what in report.get("caveats", ()):
            found.setdefault(what, {})[version] = "wrong"
    # A run of before the report was recorded says nothing of it.
    silent = [version for version, run in runs.items() if "interpreter_report" not in (run.header or {})]
    usual = {version: "not recorded" if version in silent else "right" for version in runs}
    return [[what, *({**usual, **where}[version] for version in runs)] for what, where in found.items()]


def _machine(results: Sequence[Compiled], name: str) -> str:
    """A cell: variants of a format, registers at most, and how many depart from the rules of all versions."""
    mine = [one for one in results if one.format == name]
    if not mine:
        return "-"
    refused = sum(bool(one.error) for one in mine)
    code = [one for one in mine if not one.error and one.sizes != "large"]
    text = f"{len(mine) - refused} ok" if refused == 0 else f"{len(mine) - refused} ok, {refused} refused"
    if code:
        text += f", {max(one.registers for one in code)} registers"
    odd = sum(any(violations(one, without_versions(one))) for one in mine)
    return text + (f", {odd} worse" if odd else "")


def page(runs: Sequence[Run], compiled: Mapping[str, Sequence[Compiled]], date: str) -> str:
    """The page as Markdown.

    Args:
        runs: of the interpreter, one a version; of several the newest.
        compiled: version to its results.
        date: of the page.

    Raises:
        UsageError: no run was in the interpreter.
    """
    # Runs come with the oldest first.
    newest = {
        run.header["environment"]["triton"]: run for run in runs if run.header and run.header["interpreter"]
    }
    if not newest:
        raise UsageError("results: expected a run in Triton's interpreter, found none")
    by_version = {version: newest[version] for version in sorted(newest, key=Version)}
    parts = [
        INTRO.format(commands="\n".join(COMMAND), where=_where(by_version, date)),
        *_interpreted(by_version),
    ]
    if compiled:
        parts += _compiled({version: compiled[version] for version in sorted(compiled, key=Version)})
    return "\n".join(parts)


def _where(runs: Mapping[str, Run], date: str) -> str:
    places = {
        ", ".join(
            f"{name} {(run.header or {})['environment'].get(name)}" for name in ("torch", "numpy", "python")
        )
        for run in runs.values()
    }
    return f"{date}; {'; '.join(sorted(places)) or 'no run'}."


def _interpreted(runs: Mapping[str, Run]) -> list[str]:
    names = sorted({name for run in runs.values() for name in run.tallies})
    rows = [[name, *(_cell(run.tallies.get(name)) for run in runs.values())] for name in names]
    # Every version alike is the ordinary case, and one column says it.
    alike = all(len(set(row[1:])) == 1 for row in rows)
    parts = ["## Verdicts in the interpreter\n"]
    if alike and len(runs) > 1:
        parts.append(f"The same in {', '.join(runs)}:\n")
        parts.append(_table(["format", "cases"], [row[:2] for row in rows]))
    else:
        parts.append(_table(["format", *runs], rows))
    failing = {version: _failing(run) for version, run in runs.items()}
    if any(failing.values()):
        parts.append("Failing:\n")
        lines = (f"- {version}: {line}\n" for version, lines in failing.items() for line in lines)
        parts.append("".join(lines))
    else:
        parts.append(f"No case has one of the failing verdicts ({', '.join(FAILING[:2])}, ...).\n")
    parts += [
        "## Faults of the interpreter\n",
        "`corrected`: the harness patches it in its own process (`conformance/interpreter.py`).\n",
        _table(["what", *runs], _reports(runs)),
    ]
    return parts


def _compiled(compiled: Mapping[str, Sequence[Compiled]]) -> list[str]:
    every = [one for results in compiled.values() for one in results]
    names = sorted({one.format for one in every})
    rows = [[name, *(_machine(results, name) for results in compiled.values())] for name in names]
    parts = [
        f"## Machine code for {', '.join(sorted({one.target for one in every}))}\n",
        "Variants that compile, the most registers of a thread, and `worse`: variants that hold an "
        "expectation only because this version is excused from it (below). "
        "[compile.md](compile.md) has the expectations.\n",
        _table(["format", *compiled], rows),
    ]
    wrong = [line for one in every for line in violations(one, expected(one))]
    if wrong:
        parts += ["Expectations that do not hold:\n", "".join(f"- {line}\n" for line in wrong)]
    excused = [excuse for excuse in EXCUSES if excuse.triton]
    if excused:
        parts += [
            "Excused by version:\n",
            _table(
                ["Triton", "kernels", "expected instead", "why"],
                [
                    [
                        f"`{excuse.triton}`",
                        ", ".join(excuse.kernels),
                        ", ".join(f"{name} {value}" for name, value in excuse.changes.items()),
                        excuse.reason,
                    ]
                    for excuse in excused
                ],
            ),
        ]
    return parts
