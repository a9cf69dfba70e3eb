"""The pytest side of the harness: options, header, failure texts, bundles, summary."""

from __future__ import annotations

import datetime
import random
import shlex
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from _pytest._code.code import ReprFileLocation, TerminalRepr

from conformance.errors import UsageError
from conformance.profiles import PROFILES, load_profile
from conformance.runtime import Runtime, choose

GATES = ("coarse", "element", "exact")
_RUNTIME = pytest.StashKey[Runtime]()
_SEED = pytest.StashKey[int]()
_HARNESS = pytest.StashKey[Any]()
_CHOSEN = "conformance_chosen"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("conformance", "kernel conformance")
    group.addoption(
        "--device", default="auto", help="auto (default), cpu (Triton's interpreter), cuda or cuda:N"
    )
    group.addoption(
        "--kernel",
        action="append",
        default=[],
        metavar="FORMAT=MODULE:FUNCTION",
        help="judge this kernel instead of the built-in one; FILE.py:FUNCTION works too; repeatable",
    )
    group.addoption(
        "--oracle", action="append", default=[], metavar="NAME", help="ask only this oracle; repeatable"
    )
    group.addoption("--gate", choices=GATES, default="exact", help="gate a kernel must pass (default: exact)")
    group.addoption("--max-examples", type=int, metavar="N", help="cases a test, instead of the profile's")
    group.addoption("--profile", choices=tuple(PROFILES), default="default", help="how many cases a test")
    group.addoption(
        "--case", action="append", default=[], metavar="ID", help="run just this case; repeatable"
    )
    group.addoption(
        "--known-faults", type=Path, metavar="FILE", help="known-faults file instead of the built-in one"
    )
    group.addoption("--model", type=Path, metavar="FILE", help="safetensors file of the real-weights test")
    group.addoption(
        "--recorded",
        type=Path,
        metavar="DIR",
        help="recorded vectors to judge by, instead of the built-in ones",
    )
    group.addoption("--results", type=Path, metavar="DIR", help="folder of this run's results and bundles")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "conformance: judged by the harness")
    option = config.option
    # xdist's workers parse the command line themselves: what was chosen comes from the controller.
    chosen = getattr(config, "workerinput", {}).get(_CHOSEN)
    given = option.hypothesis_seed is not None
    if chosen is not None:
        option.hypothesis_seed, option.results = chosen["seed"], Path(chosen["results"])
        given = chosen["given"]
    elif not given:
        # Set before Hypothesis reads it.
        option.hypothesis_seed = str(random.SystemRandom().randrange(2**32))
    try:
        config.stash[_SEED] = int(option.hypothesis_seed)
    except ValueError:
        raise pytest.UsageError(
            f"--hypothesis-seed: expected an integer, found {option.hypothesis_seed!r}"
        ) from None
    if option.max_examples is not None and option.max_examples < 1:
        raise pytest.UsageError(f"--max-examples: expected at least 1, found {option.max_examples}")
    if option.results is not None and str(option.results) in ("", "."):
        raise pytest.UsageError("--results: expected a folder of its own, found the current one")
    if option.results is None:
        stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
        option.results = Path(".conformance") / "runs" / f"{stamp}-{config.stash[_SEED]}"
    try:
        config.stash[_RUNTIME] = choose(option.device)
    except UsageError as error:
        raise pytest.UsageError(str(error)) from error
    # A seed that was given stands for its cases alone: no examples remembered from other runs.
    load_profile(option.profile, option.max_examples, use_database=not given)
    option.conformance_seed_given = given


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Give an xdist worker the run's seed and results folder."""
    config = node.config
    node.workerinput[_CHOSEN] = {
        "seed": str(config.stash[_SEED]),
        "given": config.option.conformance_seed_given,
        "results": str(config.option.results),
    }


def harness_of(config: pytest.Config) -> Any:
    """The run's harness, built on first use: its kernels are imported then."""
    if _HARNESS not in config.stash:
        from conformance.registry import parse_case
        from conformance.setup import build

        try:
            for text in config.option.case:
                parse_case(text)
            config.stash[_HARNESS] = build(
                config.stash[_RUNTIME],
                kernels=config.option.kernel,
                oracles=config.option.oracle,
                gate=config.option.gate,
                known_faults=config.option.known_faults,
                model=config.option.model,
                recorded=config.option.recorded,
                profile=config.option.profile,
                results=config.option.results,
                worker=getattr(config, "workerinput", {}).get("workerid", ""),
            )
        except UsageError as error:
            raise pytest.UsageError(str(error)) from error
    return config.stash[_HARNESS]


@pytest.fixture(scope="session")
def harness(request: pytest.FixtureRequest) -> Any:
    """The run's :class:`conformance.harness.Harness`."""
    return harness_of(request.config)


def _judges(config: pytest.Config) -> bool:
    """Whether this run collects from ``conformance/`` (and not only the harness's own tests)."""
    here = Path(__file__).parent
    paths = [Path(str(arg).split("::")[0]).absolute() for arg in config.args]
    return any(path == here or here in path.parents or path in here.parents for path in paths)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Build the harness now: a wrong option is one sentence, with -q (which skips the header) too."""
    if _judges(session.config):
        harness_of(session.config)


def pytest_report_header(config: pytest.Config) -> list[str]:
    runtime, option = config.stash[_RUNTIME], config.option
    again = (
        "given, example database off"
        if option.conformance_seed_given
        else f"--hypothesis-seed={config.stash[_SEED]} draws the same; remembered failures come first"
    )
    lines = [f"conformance seed: {config.stash[_SEED]} ({again})"]
    if not _judges(config):
        return [*lines, f"conformance device: {runtime}"]
    from conformance.setup import header

    return lines + header(harness_of(config), option.profile, option.max_examples, option.results)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    config = metafunc.config
    if (
        "fmt" in metafunc.fixturenames
        or "given_case" in metafunc.fixturenames
        or "fault" in metafunc.fixturenames
    ):
        if not Path(metafunc.module.__file__ or "").is_relative_to(Path(__file__).parent):
            return
        from conformance.parametrize import parametrize

        try:
            parametrize(metafunc, harness_of(config), config.option.case)
        except UsageError as error:
            raise pytest.UsageError(str(error)) from error


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With ``--case`` only the given cases run; without, the test for them is no test."""
    wanted = bool(config.option.case)
    keep: list[pytest.Item] = []
    drop: list[pytest.Item] = []
    for item in items:
        if "given_case" in getattr(item, "fixturenames", ()):
            (keep if wanted else drop).append(item)
        else:
            (drop if wanted else keep).append(item)
    if drop:
        config.hook.pytest_deselected(items=drop)
    items[:] = keep


# --- failures ------------------------------------------------------------------------------


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
    extra = ""
    for given in config.option.kernel:
        if given.partition("=")[0] == verdict.case.format:
            extra += f" --kernel {shlex.quote(given)}"
    option = config.option
    if option.gate != "exact":
        extra += f" --gate {option.gate}"
    for given in option.oracle:
        extra += f" --oracle {shlex.quote(given)}"
    for name, value in (("--known-faults", option.known_faults), ("--model", option.model)):
        if value is not None:
            extra += f" {name} {shlex.quote(str(value))}"
    if option.device != "auto":
        extra += f" --device {option.device}"
    commands = [("rerun", f"pytest conformance --case {shlex.quote(verdict.case.id)}{extra}")]
    if path is not None:
        commands.append(("replay", f"python -m conformance replay {shlex.quote(str(path))}"))
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

    error = call.excinfo.value
    harness = item.config.stash.get(_HARNESS, None)
    checked, flaky = None, False
    if isinstance(error, Failure):
        checked = error.checked
    elif isinstance(error, Flaky) and harness is not None and harness.last_failure is not None:
        checked, flaky = harness.last_failure, True
    elif isinstance(error, UsageError):
        report.longrepr = str(error)
    if checked is None or harness is None:
        return
    fmt = checked.verdict.case.format
    if not flaky:
        kernel = harness.kernels[fmt]
        if kernel.name == checked.verdict.kernel:
            checked = investigate(harness, checked, kernel)
        checked = with_neighbour(harness, checked)
    folder = item.config.option.results / "bundles" / f"{fmt}-{checked.verdict.kind.lower()}"
    path = harness.write_bundle(folder, checked, item.config.stash[_SEED])
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


# --- the end of a run ------------------------------------------------------------------------


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    config = session.config
    harness = config.stash.get(_HARNESS, None)
    if harness is not None and harness.writer is not None:
        harness.writer.close()
    if hasattr(config, "workerinput") or config.option.collectonly or not _judges(config):
        return
    from conformance.results import Summary, read_results

    summary = Summary(read_results(config.option.results))
    config.stash[_SUMMARY] = summary
    if session.testscollected and summary.elements == 0 and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


_SUMMARY = pytest.StashKey[Any]()


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    summary = config.stash.get(_SUMMARY, None)
    if summary is None:
        return
    from conformance.setup import summary_lines

    terminalreporter.section("conformance")
    reasons = Counter(
        f"{report.location[2].partition('[')[0]}: {report.longrepr[2].removeprefix('Skipped: ')}"
        for report in terminalreporter.stats.get("skipped", ())
    )
    for line in summary_lines(summary, config.option.results, config.stash[_SEED], reasons):
        terminalreporter.write_line(line)
