from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainvitals_server.errors import Busy, ConfigError, StorageFailed
from trainvitals_server.store.database import Database, Job

TIMEOUT_S = 20.0


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = Database(tmp_path / "test.db", queue_jobs=8)
    opened.write(lambda c: c.execute("CREATE TABLE word (text TEXT UNIQUE)") and None).result(TIMEOUT_S)
    yield opened
    opened.close()


def add(word: str) -> Job[str]:
    def job(connection: sqlite3.Connection) -> str:
        connection.execute("INSERT INTO word VALUES (?)", (word,))
        return word

    return job


def words(database: Database) -> list[str]:
    return database.read(lambda c: [text for (text,) in c.execute("SELECT text FROM word ORDER BY rowid")])


class Gate:
    """A job that holds the writer until it is opened."""

    def __init__(self, database: Database) -> None:
        self._entered, self._open = threading.Event(), threading.Event()
        self.future = database.write(self._wait)
        assert self._entered.wait(TIMEOUT_S)

    def _wait(self, _connection: sqlite3.Connection) -> None:
        self._entered.set()
        assert self._open.wait(TIMEOUT_S)

    def open(self) -> None:
        self._open.set()


def test_a_result_comes_after_the_commit(database: Database) -> None:
    assert database.write(add("a")).result(TIMEOUT_S) == "a"
    assert words(database) == ["a"]


def test_a_job_that_fails_takes_nobody_of_its_group_with_it(database: Database) -> None:
    def half(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO word VALUES ('half')")
        raise KeyError("changed my mind")

    gate = Gate(database)
    before, failing, after = database.write(add("a")), database.write(half), database.write(add("b"))
    gate.open()
    assert (before.result(TIMEOUT_S), after.result(TIMEOUT_S)) == ("a", "b")
    with pytest.raises(KeyError, match="changed my mind"):
        failing.result(TIMEOUT_S)
    assert words(database) == ["a", "b"]


def test_a_broken_constraint_or_statement_is_the_jobs_own_failure(database: Database) -> None:
    gate = Gate(database)
    database.write(add("a"))
    twice = database.write(add("a"))
    nonsense = database.write(lambda c: c.execute("SELECT * FROM nowhere"))
    last = database.write(add("b"))
    gate.open()
    with pytest.raises(sqlite3.IntegrityError):
        twice.result(TIMEOUT_S)
    with pytest.raises(sqlite3.OperationalError, match="nowhere"):
        nonsense.result(TIMEOUT_S)
    last.result(TIMEOUT_S)
    assert words(database) == ["a", "b"]


def test_jobs_that_wait_together_share_one_transaction(database: Database) -> None:
    statements: list[str] = []
    database.write(lambda c: c.set_trace_callback(statements.append)).result(TIMEOUT_S)
    gate = Gate(database)
    futures = [database.write(add(word)) for word in "abcdef"]
    gate.open()
    for future in futures:
        future.result(TIMEOUT_S)
    began = max(index for index, statement in enumerate(statements) if statement == "BEGIN IMMEDIATE")
    inserts = [statement for statement in statements[began:] if statement.startswith("INSERT")]
    assert (len(inserts), statements[began:].count("COMMIT")) == (6, 1)


def test_a_full_queue_refuses_at_once_and_takes_again_later(database: Database) -> None:
    gate = Gate(database)
    futures = [database.write(add(str(number))) for number in range(8)]
    with pytest.raises(Busy) as refusal:
        database.write(add("too much"))
    assert refusal.value.status == 503
    gate.open()
    for future in futures:
        future.result(TIMEOUT_S)
    database.write(add("now")).result(TIMEOUT_S)
    assert words(database) == [*map(str, range(8)), "now"]


def test_a_job_that_was_cancelled_while_it_waited_is_not_run(database: Database) -> None:
    gate = Gate(database)
    cancelled, kept = database.write(add("a")), database.write(add("b"))
    assert cancelled.cancel()
    gate.open()
    kept.result(TIMEOUT_S)
    assert words(database) == ["b"]


def test_a_full_disk_fails_the_group_is_told_and_is_over_when_there_is_room(database: Database) -> None:
    (pages,) = database.read(lambda c: c.execute("PRAGMA page_count").fetchone())
    database.write(lambda c: c.execute(f"PRAGMA max_page_count = {pages}").fetchall()).result(TIMEOUT_S)
    gate = Gate(database)
    small = database.write(add("small"))
    large = database.write(lambda c: c.execute("INSERT INTO word VALUES (zeroblob(1000000))") and None)
    gate.open()
    for future in (small, large):
        with pytest.raises(StorageFailed, match="full"):
            future.result(TIMEOUT_S)
    assert "full" in (database.failure or "")
    assert words(database) == []

    database.write(lambda c: c.execute("PRAGMA max_page_count = 100000").fetchall()).result(TIMEOUT_S)
    assert database.failure is not None, "a job that writes nothing shows nothing"
    database.write(add("again")).result(TIMEOUT_S)
    assert words(database) == ["again"]
    assert database.failure is None


def test_closing_writes_what_waits_and_takes_no_more(tmp_path: Path) -> None:
    database = Database(tmp_path / "test.db")
    database.write(lambda c: c.execute("CREATE TABLE word (text TEXT)") and None)
    gate = Gate(database)
    waiting = database.write(add("a"))
    gate.open()
    database.close()
    assert waiting.result(0) == "a"
    with pytest.raises(StorageFailed, match="closed"):
        database.write(add("b"))


def test_readers_cannot_write(database: Database) -> None:
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        database.read(lambda c: c.execute("INSERT INTO word VALUES ('a')"))


def test_a_newer_schema_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "test.db"
    Database(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 999")
    connection.close()
    with pytest.raises(ConfigError, match=r"schema 999.*upgrade"):
        Database(path)


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "test.db"
    path.write_bytes(b"this is a letter, not a database" * 100)
    with pytest.raises(ConfigError, match="cannot use"):
        Database(path)
