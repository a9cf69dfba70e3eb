"""Compile many kernels at once, in processes of their own, into Triton's cache on disk.

``python -m benchmarks.warm JOBS.json [--share I/N] [--times]``: the file is a list of
``{"case": ..., "launches": [...]}``; each launch is run once. Compiling is what a run on a rented
device else spends its time on, one core at a time.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.cases import BenchCase
from conformance.errors import UsageError

ROOT = Path(__file__).resolve().parent.parent


def compile_all(
    jobs: Iterable[tuple[BenchCase, Sequence[Mapping[str, int]]]], workers: int, seconds: float
) -> str:
    """Run ``jobs`` once each, spread over ``workers`` processes.

    Args:
        jobs: cases and the launch parameters to compile for each.
        workers: processes; 0 does nothing.
        seconds: after which those that still run are ended.

    Returns:
        What went wrong, in one line, or an empty string. Nothing depends on it: what is not in
        the cache is compiled where it is needed.
    """
    single = [
        {"case": dataclasses.asdict(case), "launches": [dict(launch)]}
        for case, launches in jobs
        for launch in launches
    ]
    workers = min(workers, len(single))
    if workers < 1:
        return ""
    end = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "jobs.json"
        path.write_text(json.dumps(single), encoding="utf-8")
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", "benchmarks.warm", str(path), "--share", f"{index}/{workers}"],
                cwd=ROOT,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            for index in range(workers)
        ]
        late = failed = 0
        for process in processes:
            try:
                failed += process.wait(timeout=max(0.0, end - time.monotonic())) != 0
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                late += 1
    return (
        f"compiling ahead: {failed} of {workers} processes failed, {late} were too slow"
        if failed + late
        else ""
    )


def _run(jobs: Sequence[Mapping[str, Any]], times: bool) -> None:
    import torch

    from benchmarks import weights
    from benchmarks.subjects import builtin
    from conformance.bits import DTYPES
    from conformance.runtime import choose

    device = choose("auto").device
    kept: tuple[BenchCase, Any] | None = None
    for number, job in enumerate(jobs):
        case = BenchCase.from_dict(dict(job["case"]))
        kernel, dtype = builtin(case.format), DTYPES[case.dtype]
        seconds: list[float] = []
        reason = ""
        try:
            # Neighbouring jobs are of one case.
            if kept is None or kept[0] != case:
                kept = case, weights.make(case, device)
            if times and not number:
                # What starts once a process is no kernel's. No kernel has so many warps.
                kernel(kept[1], dtype=dtype, num_warps=16)
            for launch in job["launches"]:
                for _ in range(2 if times else 1):
                    start = time.perf_counter()
                    kernel(kept[1], dtype=dtype, **launch)
                    if device.type == "cuda":
                        torch.cuda.synchronize(device)
                    seconds.append(time.perf_counter() - start)
        except Exception as error:  # a configuration that does not compile is found again by who needs it
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        if times:
            first, following = (seconds[0], seconds[1]) if len(seconds) > 1 else (None, None)
            named = {"format": case.format, "variant": case.variant, "dtype": case.dtype}
            entry = {**named, "first_seconds": first, "next_seconds": following, "reason": reason}
            print(json.dumps(entry), flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.warm", description=__doc__)
    parser.add_argument("jobs", type=Path)
    parser.add_argument("--share", default="0/1", help="every N-th job, from the I-th")
    parser.add_argument("--times", action="store_true", help="print how long the first two launches take")
    options = parser.parse_args(arguments)
    index, count = map(int, options.share.split("/"))
    try:
        jobs = json.loads(options.jobs.read_text(encoding="utf-8"))
        # Every N-th: what is slow to compile comes in a row, and is everyone's then.
        _run(jobs[index::count], options.times)
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
