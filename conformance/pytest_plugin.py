"""The pytest side of the harness: what is run, header and summary."""

from __future__ import annotations

import datetime
import os
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from conformance import gpus, threads
from conformance.database import open_database
from conformance.errors import UsageError
from conformance.journal import Journal
from conformance.profiles import load_profile
from conformance.rerun import options_of
from conformance.runtime import Runtime, environment

_RUNTIME = pytest.StashKey[Runtime]()
SEED = pytest.StashKey[int]()
HARNESS = pytest.StashKey[Any]()
_RUN = pytest.StashKey[dict[str, Any]]()
_GPUS = pytest.StashKey[gpus.Gpus]()
_CHOSEN = "conformance_chosen"


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
        config.stash[_RUN] = chosen["run"]
    elif not given:
        # Set before Hypothesis reads it.
        option.hypothesis_seed = str(random.SystemRandom().randrange(2**32))
    try:
        config.stash[SEED] = int(option.hypothesis_seed)
    except ValueError:
        raise pytest.UsageError(
            f"--hypothesis-seed: expected an integer, found {option.hypothesis_seed!r}"
        ) from None
    if option.split_k < 1:
        raise pytest.UsageError(f"--split-k: expected at least 1, found {option.split_k}")
    if option.max_examples is not None and option.max_examples < 1:
        raise pytest.UsageError(f"--max-examples: expected at least 1, found {option.max_examples}")
    if option.results is not None and str(option.results) in ("", "."):
        raise pytest.UsageError("--results: expected a folder of its own, found the current one")
    if option.results is None:
        stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S-%f")
        option.results = Path(".conformance") / "runs" / f"{stamp}-{config.stash[SEED]}"
    if given and option.database is not None:
        raise pytest.UsageError(
            f"--database: expected no --hypothesis-seed, whose cases are drawn alone, "
            f"found {option.hypothesis_seed}"
        )
    try:
        config.stash[_RUNTIME] = gpus.use(option.device, None if chosen is None else chosen["gpu"])
        # A seed that was given stands for its cases alone: no examples remembered from other runs.
        database = None if option.database is None else open_database(option.database)
        load_profile(option.profile, option.max_examples, use_database=not given, database=database)
    except UsageError as error:
        raise pytest.UsageError(str(error)) from error
    option.conformance_seed_given = given


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: Sequence[object]) -> None:
    """Before xdist's workers are started, which inherit the environment."""
    share = threads.share(len(specs), os.environ)
    if share is not None:
        changed = pytest.MonkeyPatch()
        changed.setenv(threads.VARIABLE, share)
        config.add_cleanup(changed.undo)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Give an xdist worker the run's seed and results folder."""
    config = node.config
    shared = gpus_of(config)
    node.workerinput[_CHOSEN] = {
        "gpu": shared.take(node.gateway.id) if shared.count else None,
        "seed": str(config.stash[SEED]),
        "given": config.option.conformance_seed_given,
        "results": str(config.option.results),
        "run": _run_of(config),
    }


def gpus_of(config: pytest.Config) -> gpus.Gpus:
    """The GPUs that the workers of the run divide between them."""
    if _GPUS not in config.stash:
        config.stash[_GPUS] = gpus.Gpus(gpus.shared(config.option.device, config.stash[_RUNTIME]))
    return config.stash[_GPUS]


def _run_of(config: pytest.Config) -> dict[str, Any]:
    """The first line of the run's results, the same in all of its processes."""
    if _RUN not in config.stash:
        from conformance.run_record import begin

        option = config.option
        config.stash[_RUN] = begin(
            config.stash[_RUNTIME],
            seed=config.stash[SEED],
            given=option.conformance_seed_given,
            profile=option.profile,
            options=options_of(option),
        )
    return config.stash[_RUN]


def harness_of(config: pytest.Config) -> Any:
    """The run's harness, built on first use: its kernels are imported then."""
    if HARNESS not in config.stash:
        from conformance.bits import DTYPES
        from conformance.gemm_bound import Accumulation
        from conformance.registry import parse_case
        from conformance.setup import build

        try:
            for text in config.option.case:
                parse_case(text)
            config.stash[HARNESS] = build(
                config.stash[_RUNTIME],
                kernels=config.option.kernel,
                fused=config.option.fused,
                accumulation=Accumulation(
                    DTYPES[config.option.accumulate],
                    config.option.split_k,
                    rounded_terms=config.option.terms == "rounded",
                ),
                oracles=config.option.oracle,
                gate=config.option.gate,
                known_faults=config.option.known_faults,
                model=config.option.model,
                recorded=config.option.recorded,
                profile=config.option.profile,
                results=config.option.results,
                worker=getattr(config, "workerinput", {}).get("workerid", ""),
                run=_run_of(config),
            )
        except UsageError as error:
            raise pytest.UsageError(str(error)) from error
        if config.option.max_examples is not None:
            config.stash[HARNESS].fused_cases = None  # as many as were asked for
        config.stash[HARNESS].journal = _journal(config)
    return config.stash[HARNESS]


def _journal(config: pytest.Config) -> Journal | None:
    """The journal of a process that judges: not of one that has workers do it."""
    option, worker = config.option, getattr(config, "workerinput", {}).get("workerid", "")
    if not worker and getattr(option, "numprocesses", None):
        return None
    runtime = config.stash[_RUNTIME]
    return Journal(
        option.results,
        worker,
        device=str(runtime.device),
        environment=environment(runtime),
        gate=option.gate,
        seed=config.stash[SEED],
        options=options_of(option),
    )


def built_harness(config: pytest.Config) -> Any:
    """The run's harness, or None where it is not needed so far."""
    return config.stash.get(HARNESS, None)


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
        else f"--hypothesis-seed={config.stash[SEED]} draws the same; remembered failures come first"
    )
    lines = [f"conformance seed: {config.stash[SEED]} ({again})"]
    if not _judges(config):
        return [*lines, f"conformance device: {runtime}"]
    from conformance.setup import header

    return lines + header(harness_of(config), option.profile, option.max_examples, option.results)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    config = metafunc.config
    if (
        "fmt" in metafunc.fixturenames
        or "given_case" in metafunc.fixturenames
        or "fused_fmt" in metafunc.fixturenames
        or "given_product" in metafunc.fixturenames
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
    fused = bool(config.option.fused)
    keep: list[pytest.Item] = []
    drop: list[pytest.Item] = []
    for item in items:
        names = getattr(item, "fixturenames", ())
        params = getattr(getattr(item, "callspec", None), "params", {})
        if "given_product" in names:
            (keep if wanted and params["given_product"] is not None else drop).append(item)
        elif "fused_fmt" in names and not fused:
            drop.append(item)
        elif "given_case" in names:
            (keep if wanted else drop).append(item)
        else:
            (drop if wanted else keep).append(item)
    if drop:
        config.hook.pytest_deselected(items=drop)
    items[:] = keep


# --- the end of a run ------------------------------------------------------------------------


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    config = session.config
    harness = config.stash.get(HARNESS, None)
    if harness is not None and harness.writer is not None:
        harness.writer.close(int(exitstatus))
    if hasattr(config, "workerinput") or config.option.collectonly or not _judges(config):
        return
    from conformance.results import Summary, read_findings, read_results

    summary = Summary(read_results(config.option.results), read_findings(config.option.results))
    config.stash[_SUMMARY] = summary
    if session.testscollected and summary.elements == 0 and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


_SUMMARY = pytest.StashKey[Any]()


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    summary = config.stash.get(_SUMMARY, None)
    if summary is None:
        return
    from conformance.setup import passed_over, summary_lines

    terminalreporter.section("conformance")
    reasons = Counter(
        f"{report.location[2].partition('[')[0]}: {report.longrepr[2].removeprefix('Skipped: ')}"
        for report in terminalreporter.stats.get("skipped", ())
    )
    lines = summary_lines(summary, config.option.results, config.stash[SEED], reasons)
    ran = any(terminalreporter.stats.get(outcome) for outcome in ("passed", "failed", "error"))
    keyword = "" if ran else config.option.keyword
    for line in lines + passed_over(harness_of(config), summary, keyword):
        terminalreporter.write_line(line)
