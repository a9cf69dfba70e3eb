"""``--database``: failing examples in a folder or on a Redis server, found by one runner, met by another."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance import database
from conformance.database import open_database, shown
from conformance.errors import UsageError
from conformance.verdict import FAILING
from tests.harness_runs import pytest_run, python, records

QUICK = ("conformance/test_formats.py", "-k", "nf4 and words and fp16")


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


class Server:
    """A Redis server of the test's own, on a free port, that keeps nothing."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        options = ("--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no")
        self.process = subprocess.Popen(
            ["redis-server", *options, "--dir", str(folder), "--requirepass", "secret"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.url = f"redis://:secret@127.0.0.1:{self.port}/0"

    def wait(self) -> None:
        for _ in range(100):
            with socket.socket() as sock:
                if sock.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.1)
        raise AssertionError("redis-server did not start in 10 seconds")

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(timeout=10)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed (Debian: apt-get install redis-server)")
    pytest.importorskip("redis", reason="the package redis is not installed")
    started = Server(tmp_path)
    try:
        started.wait()
        yield started
    finally:
        started.stop()


def run(
    folder: Path, url: str, *options: str, kernel: str = "tail_of_previous_block"
) -> list[tuple[str, str]]:
    """Case and verdict of each case of a run of its own. The simplest case, which every run begins with, is
    not wrong with this kernel."""
    given = ("--kernel", f"nf4=tests/planted.py:{kernel}", "--database", url, "--results", str(folder))
    done = pytest_run(*QUICK, *given, *options)
    assert "secret" not in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    return [(r["case"], r["verdict"]) for r in records(folder) if r.get("test")]


def meets_what_another_found(tmp_path: Path, url: str) -> None:
    found = run(tmp_path / "one", url)
    shrunk, kind = found[-1]
    assert kind in FAILING
    # The other runner draws other cases (its seed is its own) and begins with the shrunk one.
    first = run(tmp_path / "two", url, "--max-examples", "1")[0]
    assert first == (shrunk, kind)
    # A failure is remembered of its kernel.
    others = run(tmp_path / "three", url, "--max-examples", "1", kernel="right")
    assert shrunk not in [case for case, _ in others]


def test_the_sign_of_a_zero_is_remembered_too(tmp_path: Path):
    """Nothing else is wrong with this kernel, and hardly a case shows it."""
    kernel, url = "positive_zero_in_large_blocks", str(tmp_path / "database")
    found = run(tmp_path / "first", url, "--max-examples", "300", kernel=kernel)
    assert found[-1][1] in FAILING
    for attempt in ("second", "third"):
        again = run(tmp_path / attempt, url, "--max-examples", "3", kernel=kernel)
        assert again[-1] == found[-1]


def test_one_runner_meets_what_another_found_by_redis(server: Server, tmp_path: Path):
    meets_what_another_found(tmp_path, server.url)


def test_one_runner_meets_what_another_found_by_a_folder(tmp_path: Path):
    meets_what_another_found(tmp_path, str(tmp_path / "made" / "database"))


def test_a_server_lost_during_a_run_is_a_warning(server: Server):
    store = open_database(server.url)
    store.save(b"key", b"value")
    store.move(b"key", b"other", b"value")
    store.save(b"other", b"second")
    store.delete(b"other", b"second")
    assert (list(store.fetch(b"key")), list(store.fetch(b"other"))) == ([], [b"value"])
    server.stop()
    with pytest.warns(
        RuntimeWarning, match=r"--database redis://:\*\*\*@127.* was lost during the run"
    ) as seen:
        assert list(store.fetch(b"other")) == []
    assert len(seen) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # said once
        store.save(b"key", b"value")
        store.move(b"key", b"other", b"value")
        store.delete(b"key", b"value")
        assert list(store.fetch(b"key")) == []


def test_a_wrong_password_is_one_sentence(server: Server):
    with pytest.raises(
        UsageError, match=r"--database: expected a Redis server that answers at redis://:\*\*\*@"
    ):
        open_database(server.url.replace("secret", "guess"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("http://localhost:6379/0", "expected a folder or redis://host:port/number, found 'http://"),
        ("redis:///0", "expected a folder or redis://host:port/number, found 'redis:///0'"),
        ("redis://localhost:6379/first", "expected a folder or redis://host:port/number, found"),
        ("redis://localhost:port/0", "expected a folder or redis://host:port/number, found"),
        ("ftp://me:secret@host/0", "found 'ftp://me:***@host/0'"),
        ("README.md", "expected a folder or redis://host:port/number, found 'README.md' (File exists)"),
        ("README.md/x", "found 'README.md/x' (Not a directory)"),
        ("", "expected a folder or redis://host:port/number, found ''"),
        ("redis://[::1/0", "expected a folder or redis://host:port/number, found"),
    ],
)
def test_a_database_that_cannot_be_is_one_sentence(text: str, words: str):
    with pytest.raises(UsageError, match=f"^--database: .*{re.escape(words)}") as info:
        open_database(text)
    assert "\n" not in str(info.value)


def test_a_server_that_does_not_answer_is_one_sentence():
    pytest.importorskip("redis", reason="the package redis is not installed")
    url = f"redis://127.0.0.1:{free_port()}/0"
    with pytest.raises(
        UsageError, match=f"^--database: expected a Redis server that answers at {url}, found: "
    ):
        open_database(url)


def test_the_client_is_asked_for_only_where_it_is_needed():
    code = "from conformance.database import open_database; open_database('redis://localhost:1/0')"
    done = python("-c", code, blocked=("redis",))
    assert done.stderr.splitlines()[-1] == (
        "conformance.errors.UsageError: --database: expected the package redis for a redis:// URL, "
        "found none; pip install redis"
    )
    assert python("-c", "import conformance.database", blocked=("redis",)).returncode == 0


def test_a_password_is_not_shown():
    assert shown("redis://me:pa:ss@host:1/0") == "redis://me:***@host:1/0"
    assert shown("redis://host:1/0") == "redis://host:1/0"
    assert shown("folder") == "folder"


def test_a_seed_that_is_given_stands_for_its_cases_alone(tmp_path: Path):
    options = ("--database", str(tmp_path / "d"), "--hypothesis-seed", "5", "--results", str(tmp_path / "r"))
    done = pytest_run(*QUICK, *options)
    assert done.returncode == 4
    assert "--database: expected no --hypothesis-seed" in done.stderr
    assert database.SCHEMES == ("redis", "rediss")
