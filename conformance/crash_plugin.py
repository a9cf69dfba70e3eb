"""The pytest side of runs that lose a process or a GPU: journals, dead workers, lost contexts."""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Any

import pytest

from conformance import device_loss, gpus, journal
from conformance.crashes_command import last_run
from conformance.database import shown
from conformance.errors import UsageError
from conformance.pytest_plugin import built_harness, gpus_of
from conformance.runtime import choose

# Crashes in one run until xdist gives up, at least: its own limit is four a worker, which a kernel that
# always crashes passes within one format.
RESTARTS = 64
EXIT_LOST = 70
# Workers that may die before their first test: the next one would too.
STILLBORN = 3
_STARTED = pytest.StashKey[set[str]]()
_STILLBORN = pytest.StashKey[list[str]]()
_ALONE = "run with -n 1 (pytest-xdist), which gives the tests after such a kernel a new process"


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    config.stash[_STARTED], config.stash[_STILLBORN] = set(), []
    workers = getattr(config.option, "numprocesses", None)
    if workers and getattr(config.option, "maxworkerrestart", None) is None:
        config.option.maxworkerrestart = str(max(RESTARTS, 4 * workers))


@pytest.hookimpl(optionalhook=True, hookwrapper=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> Generator[None, Any, None]:
    """``-n auto`` is one worker a core, but no more than the GPUs have room for."""
    outcome = yield
    try:
        runtime = choose(config.option.device)
    except UsageError:
        return  # said where the options are read
    count = 0 if runtime.interpreter else gpus.shared(config.option.device, runtime) or 1
    outcome.force_result(gpus.most_workers(outcome.get_result(), count))


def pytest_report_header(config: pytest.Config) -> list[str]:
    lines = []
    workers = getattr(config.option, "numprocesses", None)
    count = gpus_of(config).count
    if workers and count:
        lines.append(f"conformance workers: {workers} on {count} GPUs; gwK runs on cuda:(K mod {count})")
    before = last_run(but=config.option.results)
    if before is not None and journal.left_over(before):
        lines.append(f"conformance: the run before died at a case: python -m conformance crashes {before}")
    if config.option.database is not None:
        lines.append(f"conformance database: {shown(config.option.database)}")
    return lines


# --- what a process notes ---------------------------------------------------------------------


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, None]:
    harness = built_harness(item.config)
    if harness is not None and harness.journal is not None:
        harness.journal.begin(item.nodeid)
    yield
    if harness is not None and harness.journal is not None:
        harness.journal.begin("")


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, None]:
    """Around the one that writes the failure's text: what was found out is kept, and no more is judged."""
    outcome = yield
    if call.excinfo is None:
        return
    harness = built_harness(item.config)
    error = call.excinfo.value
    reason = error.reason if isinstance(error, device_loss.DeviceLost) else ""
    if not reason and harness is not None:
        reason = device_loss.why_lost(harness.runtime.device)
    if not reason:
        return
    report = outcome.get_result()
    if hasattr(item.config, "workerinput"):
        # xdist replaces a worker that is gone; the controller reports what is noted here.
        if harness is not None and harness.journal is not None:
            properties = [list(pair) for pair in item.user_properties]
            judged = bool(getattr(report, "judged", False))
            harness.journal.note(lost=reason, text=str(report.longrepr), judged=judged, properties=properties)
        os._exit(EXIT_LOST)
    items = item.session.items
    rest = len(items) - items.index(item) - 1
    item.session.shouldfail = (
        f"the CUDA context is lost ({reason}): no later verdict of this process could be trusted, "
        f"{rest} tests were not run; {_ALONE}"
    )


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    harness = built_harness(session.config)
    if harness is not None and harness.journal is not None:
        harness.journal.close()


# --- dead workers, seen by the controller -------------------------------------------------------


def _ending(worker: Any) -> str:
    """How a worker's process ended, where execnet shows it."""
    from conformance.post_mortem import ending

    try:
        return ending(worker.gateway._io.popen.wait(timeout=5))
    except Exception:  # not a local process, or another execnet: it is only said with less detail
        return ""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: Any) -> None:
    node.config.stash[_STARTED].add(node.gateway.id)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    stash, name = node.config.stash, node.gateway.id
    gpus_of(node.config).give_back(name)
    if error and name not in stash[_STARTED]:
        stash[_STILLBORN].append(name)
        if len(stash[_STILLBORN]) == STILLBORN:
            pytest.exit(
                f"{STILLBORN} workers died before their first test, the last one {name}: {error}",
                returncode=3,
            )


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem(crashitem: str, report: Any) -> None:
    """Say which case a dead worker was at, instead of the test's name alone."""
    worker = report.node
    config = worker.config
    harness = built_harness(config)
    path = journal.path_of(config.option.results, worker.gateway.id)
    line = journal.read(path)
    if harness is None or line is None or line.get("test") != crashitem:
        return
    if "text" in line:
        text, properties, judged = line["text"], [tuple(pair) for pair in line["properties"]], line["judged"]
        text += (
            f"\n{'note':<10} the CUDA context was lost ({line['lost']}); "
            f"worker {worker.gateway.id} was replaced"
        )
    else:
        from conformance.post_mortem import post_mortem, write_up

        checked = post_mortem(harness, line, _ending(worker))
        if checked is None:
            return
        if harness.writer is not None:
            test = crashitem.rpartition("::")[2]
            harness.writer.write({**checked.verdict.to_json(), "seconds": 0.0, "test": test})
        bundle, text = write_up(harness, config.option.results, checked, line)
        judged = True
        properties = [("verdict", "CRASH_WORKER"), ("case", checked.verdict.case.id), ("bundle", str(bundle))]
    file, _, name = crashitem.partition("::")
    report.location = (file, None, name)
    report.longrepr = text
    report.judged = judged
    report.user_properties = [*report.user_properties, *properties]
    path.unlink(missing_ok=True)
