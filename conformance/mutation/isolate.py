"""Each job in a process of its own: a mutant may read wild memory, never end, or eat the machine.

On the CPU processes are forked from one that has everything imported and all cases drawn. CUDA does not
survive a fork, so on a GPU they are forked from a server that has only the imports.
"""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import multiprocessing
import os
import resource
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from typing import Any

import torch

from conformance.mutation.score import Job, Outcome, Plan, base_harness, run_job
from conformance.mutation.suite import suite

# Address space that a job may take beyond what its process has when it begins.
MORE_MEMORY = 8 << 30
# Seconds without a new case after which a job counts as one that never ends.
SILENCE = 60.0
# Seconds for a process to end in once it has said what it found: a thread of a mutant may hold it up.
LEAVE = 5.0

Run = Callable[[Job, Plan, Callable[..., Any]], Outcome]


@dataclasses.dataclass
class _Running:
    job: Job
    process: Any
    connection: Connection
    since: float
    started: float
    at: tuple[str, int, str, str] = ("", 0, "", "")

    def ended(self, verdict: str) -> Outcome:
        """Outcome of a job that did not get to say what it found."""
        name, number, test, case = self.at
        return Outcome(
            self.job.kind,
            self.job.name,
            name or " ".join(self.job.formats),
            verdict,
            test,
            case,
            number,
            fault=self.job.fault,
            change=self.job.mutant.change if self.job.mutant else "",
            seconds=time.monotonic() - self.started,
        )


def _limit_memory() -> None:
    with contextlib.suppress(OSError, ValueError):
        pages = int(open("/proc/self/statm", encoding="ascii").read().split()[0])  # noqa: SIM115
        most = pages * resource.getpagesize() + MORE_MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _child(connection: Connection, job: Job, plan: Plan, run: Run, limited: bool) -> None:
    faulthandler.disable()  # a crash is an outcome here, and no report of it belongs on the terminal
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if limited:
        _limit_memory()
    torch.set_num_threads(1)

    def begun(name: str, number: int, item: Any) -> None:
        connection.send(("case", (name, number, item.test, item.case)))

    message: tuple[str, Any]
    try:
        message = ("done", run(job, plan, begun))
    except BaseException:
        message = ("error", traceback.format_exc())
    connection.send(message)
    connection.close()


def _context(interpreter: bool) -> BaseContext:
    if interpreter:
        return multiprocessing.get_context("fork")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["conformance.mutation.score"])
    return context


def run_all(
    jobs: Iterable[Job],
    plan: Plan,
    *,
    interpreter: bool,
    parallel: int,
    silence: float = SILENCE,
    run: Run = run_job,
) -> Iterator[Outcome]:
    """Outcomes as they come, ``parallel`` jobs at a time."""
    pending = list(jobs)[::-1]
    context = _context(interpreter)
    threads = torch.get_num_threads()
    if interpreter:
        torch.set_num_threads(1)  # a pool of threads does not survive a fork
        base_harness(plan.device)
        for name in dict.fromkeys(name for job in pending for name in job.formats):
            suite(name, plan.seed, plan.examples)
    running: list[_Running] = []
    try:
        while pending or running:
            while pending and len(running) < parallel:
                running.append(_start(context, pending.pop(), plan, run, interpreter))
            wait([entry.connection for entry in running], timeout=1.0)
            for entry in list(running):
                outcome = _look(entry, silence)
                if outcome is not None:
                    running.remove(entry)
                    yield outcome
    finally:
        for entry in running:
            entry.process.kill()
            entry.process.join()
        torch.set_num_threads(threads)


def _start(context: Any, job: Job, plan: Plan, run: Run, limited: bool) -> _Running:
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(theirs, job, plan, run, limited))
    process.start()
    theirs.close()
    now = time.monotonic()
    return _Running(job, process, ours, now, now)


def _look(entry: _Running, silence: float) -> Outcome | None:
    """Outcome of a job that has ended or that has to be ended, or None."""
    try:
        while entry.connection.poll():
            kind, content = _received(entry, silence)
            entry.since = time.monotonic()
            if kind == "case":
                entry.at = content
                continue
            _end(entry.process)
            if kind == "done":
                return content
            # No verdict: the harness itself failed, perhaps since a mutant wrote into its memory.
            return dataclasses.replace(entry.ended(""), error=content)
    except Exception:  # no message any more, part of one, or one that says nothing: it broke its own memory
        code = _end(entry.process)
        return entry.ended(f"CRASH (signal {-code})" if code < 0 else f"CRASH (exit code {code})")
    if time.monotonic() - entry.since > silence:
        os.kill(entry.process.pid, signal.SIGKILL)
        entry.process.join()
        return entry.ended("TIMEOUT")
    return None


def _received(entry: _Running, silence: float) -> tuple[str, Any]:
    """The next message. A process that does not send all of it is killed, which ends the message too."""
    late = threading.Timer(silence, entry.process.kill)
    late.start()
    try:
        kind, content = entry.connection.recv()
    finally:
        late.cancel()
        late.join()  # no thread may be there when the next process is forked
    return kind, content


def _end(process: Any) -> int:
    """Exit code of a process that has nothing more to say; it is killed if it does not end by itself."""
    process.join(LEAVE)
    if process.is_alive():
        process.kill()
        process.join()
    return int(process.exitcode)
