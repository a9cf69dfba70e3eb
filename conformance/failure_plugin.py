"""What a failing test leaves behind: the report, the bundle, the finding in the results."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from _pytest._code.code import ReprFileLocation, TerminalRepr

from conformance import device_loss
from conformance.errors import UsageError
from conformance.pytest_plugin import HARNESS, SEED
from conformance.rerun import checkout, options_of, replay, rerun


class FailureText(TerminalRepr):
    """A failure as our text, with its first line alone for pytest's short summary (which on a CI
    server prints a plain text whole, a second time)."""

    def __init__(self, text: str, path: str, line: int) -> None:
        self.text = text
        self.reprcrash = ReprFileLocation(path, line, text.partition("\n")[0])

    def __str__(self) -> str:
        return self.text

    def toterminal(self, tw: Any) -> None:
        tw.line(self.text)


def _commands(config: pytest.Config, checked: Any, path: Path | None) -> tuple[tuple[str, str], ...]:
    """The commands that reproduce a failing verdict."""
    verdict = checked.verdict
    case = verdict.case
    commands = [("rerun", rerun(case.format, case.id, options_of(config.option), root=checkout()))]
    if path is not None:
        commands.append(("replay", replay(path, root=checkout())))
    return tuple(commands)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Wrap the text here, where xdist has delivered it: on the way it becomes a plain string."""
    if isinstance(report.longrepr, str) and getattr(report, "judged", False):
        path, line, _ = report.location
        report.longrepr = FailureText(report.longrepr, path, line or 0)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, None]:
    outcome = yield
    report = outcome.get_result()
    if call.when != "call" or call.excinfo is None:
        return
    from hypothesis.errors import Flaky

    from conformance.harness import Failure
    from conformance.investigate import investigate
    from conformance.neighbours import with_neighbour
    from conformance.report import report as words
    from conformance.run_record import finding

    error = call.excinfo.value
    harness = item.config.stash.get(HARNESS, None)
    checked, flaky, lost = None, False, False
    if isinstance(error, Failure | device_loss.DeviceLost):
        checked = error.checked
        lost = isinstance(error, device_loss.DeviceLost) or bool(checked is not None and checked.lost)
    elif isinstance(error, Flaky) and harness is not None and harness.last_failure is not None:
        checked, flaky = harness.last_failure, True
    elif isinstance(error, UsageError):
        report.longrepr = str(error)
    if checked is None or harness is None:
        return
    fmt = checked.verdict.case.format
    if not flaky and not lost:
        kernel = harness.kernels[fmt]
        try:
            if kernel.name == checked.verdict.kernel:
                checked = investigate(harness, checked, kernel)
            checked = with_neighbour(harness, checked)
        except RuntimeError:
            # A further input may take the device with it: what was found before stays true.
            if not device_loss.why_lost(harness.runtime.device):
                raise
    folder = item.config.option.results / "bundles" / f"{fmt}-{checked.verdict.kind.lower()}"
    path = harness.write_bundle(folder, checked, item.config.stash[SEED])
    if harness.writer is not None:
        kept = None if path is None else f"{path.parent.name}/{path.name}"
        harness.writer.write(finding(checked.verdict, item.name, kept, flaky))
    tail = _commands(item.config, checked, path)
    if flaky:
        tail += (("note", "failed once and passed when run again: flaky"),)
    report.longrepr = words(checked.verdict, tail)
    report.sections.clear()  # what upstream libraries print when they are imported
    report.judged = True
    item.user_properties += [
        ("verdict", checked.verdict.label),
        ("case", checked.verdict.case.id),
        ("cause", checked.verdict.causes[0].name if checked.verdict.causes else ""),
        ("neighbour", checked.verdict.neighbour),
        ("bundle", str(path)),
    ]
