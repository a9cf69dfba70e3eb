"""A plugin, ``-p tests.worker_threads``: each process of a run says how many CPU threads torch has there, in
``$THREADS_LOG``."""

from __future__ import annotations

import os

import torch


def pytest_sessionstart() -> None:
    worker = os.environ.get("PYTEST_XDIST_WORKER", "controller")
    with open(os.environ["THREADS_LOG"], "a", encoding="utf-8") as file:
        file.write(f"{worker} {torch.get_num_threads()}\n")
