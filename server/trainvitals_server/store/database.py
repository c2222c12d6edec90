"""Database: the SQLite file, its one writer thread with group commit, and its pool of readers.

Knows nothing of runs or frames: a job is a function of a connection. Jobs that wait together share one
transaction (and so one fsync); each has a savepoint of its own, so that one that fails takes nobody with it.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Generic, TypeVar

from trainvitals_server.errors import Busy, ConfigError, StorageFailed

T = TypeVar("T")
Job = Callable[[sqlite3.Connection], T]

QUEUE_JOBS = 512  # what waits before callers are told to come back
GROUP_JOBS = 128  # jobs of one transaction: bounds how long the first one waits for its commit
READERS = 4
BUSY_TIMEOUT_S = 10.0
CLOSE_TIMEOUT_S = 10.0
# After these SQLite may have rolled back the whole transaction by itself.
_LOST = frozenset(
    {
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_INTERRUPT,
    }
)

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Waiting(Generic[T]):
    job: Job[T]
    future: Future[T]


class Database:
    """One SQLite file. `write` from any thread; `read` from a worker thread, never from the event loop."""

    def __init__(self, path: Path, *, queue_jobs: int = QUEUE_JOBS, readers: int = READERS) -> None:
        """Open or create `path`, bring its schema up to date and start the writer.

        Raises:
            ConfigError: if the file is no database of ours, is newer than this server, or cannot be opened.
        """
        self.path = path
        self._jobs: queue.Queue[_Waiting[Any] | None] = queue.Queue(queue_jobs)
        self._failure: str | None = None
        self._is_closed = False
        try:
            self._writer = _connect(path)
            migrate(self._writer)
        except sqlite3.Error as error:
            raise ConfigError(f"cannot use {path} as a database: {error}") from error
        self._readers: queue.Queue[sqlite3.Connection] = queue.Queue()
        for _ in range(readers):
            self._readers.put(_connect(path, read_only=True))
        self._reader_count = readers
        self._thread = threading.Thread(target=self._run, name="trainvitals-writer", daemon=True)
        self._thread.start()

    @property
    def failure(self) -> str | None:
        """Why the last transaction that changes something could not be written, or None."""
        return self._failure

    @property
    def waiting(self) -> int:
        """How many jobs stand in the queue."""
        return self._jobs.qsize()

    def write(self, job: Job[T]) -> Future[T]:
        """Queue `job` for the writer; the future resolves after the commit.

        The job runs inside a transaction that it must not end. Its exception comes back in the future, its
        changes are rolled back, those of its neighbours are kept.

        Raises:
            Busy: if the queue is full; nothing was queued.
            StorageFailed: if the database is closed.
        """
        if self._is_closed:
            raise StorageFailed("the database is closed")
        waiting = _Waiting(job, Future())
        try:
            self._jobs.put_nowait(waiting)
        except queue.Full:
            raise Busy("the writer's queue is full") from None
        return waiting.future

    def read(self, query: Job[T]) -> T:
        """Run `query` on a read-only connection in the calling thread and return its result."""
        with self._reader() as connection:
            return query(connection)

    def close(self) -> None:
        """Write what waits, then close the file."""
        self._is_closed = True
        self._jobs.put(None)
        self._thread.join(CLOSE_TIMEOUT_S)
        for _ in range(self._reader_count):
            self._readers.get(timeout=CLOSE_TIMEOUT_S).close()
        self._writer.close()

    @contextlib.contextmanager
    def _reader(self) -> Iterator[sqlite3.Connection]:
        connection = self._readers.get()
        try:
            yield connection
        finally:
            self._readers.put(connection)

    def _run(self) -> None:
        while True:
            group = self._take_group()
            if group:
                self._write_group(group)
            else:
                return

    def _take_group(self) -> list[_Waiting[Any]]:
        first = self._jobs.get()
        if first is None:
            return []
        group = [first]
        while len(group) < GROUP_JOBS:
            try:
                waiting = self._jobs.get_nowait()
            except queue.Empty:
                break
            if waiting is None:
                self._jobs.put(None)
                break
            group.append(waiting)
        return group

    def _write_group(self, taken: list[_Waiting[Any]]) -> None:
        # From here on a caller cannot cancel; one that has, for its connection is gone, is not served.
        group = [waiting for waiting in taken if waiting.future.set_running_or_notify_cancel()]
        outcomes: list[tuple[_Waiting[Any], Any, BaseException | None]] = []
        changes = self._writer.total_changes
        try:
            self._writer.execute("BEGIN IMMEDIATE")
            outcomes.extend(self._run_job(waiting) for waiting in group)
            self._writer.execute("COMMIT")
        except sqlite3.Error as error:
            self._fail_group(group, error)
            return
        if self._writer.total_changes > changes:
            self._failure = None
        for waiting, result, problem in outcomes:
            if problem is None:
                waiting.future.set_result(result)
            else:
                waiting.future.set_exception(problem)

    def _run_job(self, waiting: _Waiting[T]) -> tuple[_Waiting[T], T | None, BaseException | None]:
        self._writer.execute("SAVEPOINT job")
        try:
            result = waiting.job(self._writer)
        except Exception as error:  # the job's own failure, which its caller gets
            if isinstance(error, sqlite3.Error) and error.sqlite_errorcode & 0xFF in _LOST:
                raise  # nobody's job can be kept
            self._writer.execute("ROLLBACK TO job")
            self._writer.execute("RELEASE job")
            return waiting, None, error
        self._writer.execute("RELEASE job")
        return waiting, result, None

    def _fail_group(self, group: list[_Waiting[Any]], error: sqlite3.Error) -> None:
        if self._failure != str(error):  # once, not for every try of every client
            _log.error("cannot write to %s: %s", self.path, error)
        self._failure = str(error)
        with contextlib.suppress(sqlite3.Error):
            self._writer.execute("ROLLBACK")
        for waiting in group:
            waiting.future.set_exception(StorageFailed(f"the database cannot be written: {error}"))


def _connect(path: Path, *, read_only: bool = False) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False, cached_statements=256
    )
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")  # an acked frame must survive a power cut
    connection.execute("PRAGMA foreign_keys = ON")
    if read_only:
        connection.execute("PRAGMA query_only = ON")
    return connection


def migrate(connection: sqlite3.Connection) -> None:
    """Apply the numbered migrations that this file lacks, each in a transaction of its own.

    Raises:
        ConfigError: if the file was written by a newer server.
    """
    scripts = _migrations()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > len(scripts):
        raise ConfigError(
            f"the database has schema {version}, this server knows up to {len(scripts)}: upgrade it"
        )
    for number, script in enumerate(scripts[version:], start=version + 1):
        connection.executescript(f"BEGIN IMMEDIATE; {script}; PRAGMA user_version = {number}; COMMIT;")


def _migrations() -> list[str]:
    folder = resources.files("trainvitals_server.store") / "migrations"
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".sql"))
    return [(folder / name).read_text(encoding="utf-8") for name in names]
