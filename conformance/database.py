"""Where failing examples are remembered: a folder, or a Redis server that several runners share."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

from hypothesis.database import DirectoryBasedExampleDatabase, ExampleDatabase

from conformance.errors import UsageError

SCHEMES = ("redis", "rediss")
# Of the first answer; a server that takes longer would slow every test.
SECONDS = 5
EXPECTED = "expected a folder or redis://host:port/number"


def open_database(text: str) -> ExampleDatabase:
    """Database of ``--database``: ``redis://host:port/number`` (``rediss`` for TLS), or a folder.

    Raises:
        UsageError: another URL, the package ``redis`` is missing, no server answers, or no folder to
            write to.
    """
    if "://" in text:
        return _redis(text)
    folder = Path(text)
    if text in ("", "."):
        raise UsageError(f"--database: {EXPECTED}, found {text!r}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--database: {EXPECTED}, found {text!r} ({error.strerror})") from error
    return DirectoryBasedExampleDatabase(folder)


def shown(text: str) -> str:
    """The option's value without a password."""
    scheme, mark, rest = text.partition("://")
    login, at, place = rest.rpartition("@")
    name, colon, _ = login.partition(":")
    return f"{scheme}{mark}{name}{colon}***{at}{place}" if colon else text


def _redis(url: str) -> ExampleDatabase:
    if not _names_a_server(url):
        raise UsageError(f"--database: {EXPECTED}, found {shown(url)!r}")
    try:
        import redis
    except ImportError as error:
        raise UsageError(
            "--database: expected the package redis for a redis:// URL, found none; pip install redis"
        ) from error
    try:
        client = redis.Redis.from_url(url, socket_connect_timeout=SECONDS, socket_timeout=SECONDS)
        client.ping()
    except (redis.RedisError, ValueError, OSError) as error:
        reason = " ".join(str(error).split())
        raise UsageError(
            f"--database: expected a Redis server that answers at {shown(url)}, found: {reason}"
        ) from error
    from hypothesis.extra.redis import RedisExampleDatabase

    return Lenient(RedisExampleDatabase(client), shown(url))


def _names_a_server(url: str) -> bool:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:  # a port or an IPv6 address that is none
        return False
    number = parts.path.removeprefix("/")
    return (
        parts.scheme in SCHEMES and bool(parts.hostname) and port != 0 and (number.isdecimal() or not number)
    )


class Lenient(ExampleDatabase):
    """A database on a server whose loss is no verdict on a kernel: warns once, and the run goes on."""

    def __init__(self, inner: ExampleDatabase, name: str) -> None:
        super().__init__()
        self.inner = inner
        self.name = name
        self.lost = False

    def __repr__(self) -> str:
        return f"Lenient({self.inner!r})"

    @contextlib.contextmanager
    def _tried(self) -> Iterator[None]:
        import redis

        try:
            yield
        except (redis.RedisError, OSError) as error:
            self.lost = True
            warnings.warn(
                f"--database {self.name} was lost during the run ({error}): failures are no longer shared",
                RuntimeWarning,
                stacklevel=3,
            )

    def fetch(self, key: bytes) -> Iterable[bytes]:
        found: list[bytes] = []
        if not self.lost:
            with self._tried():
                found = list(self.inner.fetch(key))
        return found

    def save(self, key: bytes, value: bytes) -> None:
        if not self.lost:
            with self._tried():
                self.inner.save(key, value)

    def delete(self, key: bytes, value: bytes) -> None:
        if not self.lost:
            with self._tried():
                self.inner.delete(key, value)

    def move(self, src: bytes, dest: bytes, value: bytes) -> None:
        if not self.lost:
            with self._tried():
                self.inner.move(src, dest, value)
