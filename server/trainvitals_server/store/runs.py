"""Runs and their sessions: what a Hello opens, what frames append to, what a person may change.

Functions of a connection. Those that change something must run as a job of `Database.write`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from trainvitals.wire import (
    Bye,
    Environment,
    Event,
    Gap,
    Hello,
    Layout,
    Reject,
    Sequenced,
    Steps,
    encode,
)
from trainvitals_server import batch
from trainvitals_server.errors import Conflict, NotFound

MAX_SERIES = 512
_KINDS = {Layout: "layout", Steps: "steps", Event: "event", Gap: "gap", Bye: "bye"}
ENDED = frozenset({"finished", "interrupted", "failed", "stopped"})
# When the ranks of a run ended differently, the first of these is what the run is.
_WORST_FIRST = ("running", "failed", "crashed", "interrupted", "stopped", "finished")


class StreamKey(NamedTuple):
    """One life of one reporting process."""

    run_id: str
    rank: int
    session_id: str


class Appended(NamedTuple):
    """What became of some frames: `stored` are new and kept, `reject` tells why the rest was not taken."""

    acked_seq: int
    stored: Sequence[Sequenced]
    reject: Reject | None = None


def upsert_hello(connection: sqlite3.Connection, hello: Hello, now: float) -> int:
    """Open the run and the session of `hello`, or find them again; return the session's `acked_seq`."""
    _upsert_run(connection, hello, now)
    key = StreamKey(hello.run_id, hello.rank, hello.session_id)
    row = connection.execute(
        "UPDATE session SET last_seen_at = ?, late = ? WHERE (run_id, rank, session_id) = (?, ?, ?)"
        " RETURNING acked_seq",
        (now, hello.late, *key),
    ).fetchone()
    if row is None:
        _insert_session(connection, hello, now)
    refresh_state(connection, hello.run_id)
    return int(row[0]) if row else 0


def _upsert_run(connection: sqlite3.Connection, hello: Hello, now: float) -> None:
    # A name that a person gave later, or the project it began in, is not undone by a reconnect.
    connection.execute(
        "INSERT INTO run (run_id, project, run_group, name, tags, created_at, last_seen_at, environment)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET last_seen_at = excluded.last_seen_at",
        (
            hello.run_id,
            hello.project,
            hello.group,
            hello.name,
            msgspec.json.encode(hello.tags).decode(),
            hello.started_at or now,
            now,
            msgspec.msgpack.encode(hello.environment),
        ),
    )


def _insert_session(connection: sqlite3.Connection, hello: Hello, now: float) -> None:
    (latest,) = connection.execute(
        "SELECT max(ordinal) FROM session WHERE run_id = ? AND rank = ?", (hello.run_id, hello.rank)
    ).fetchone()
    ordinal = hello.session_ordinal
    if latest is not None and not hello.late:
        ordinal = max(ordinal, latest + 1)  # for a client that forgot how often it was started
        # Whoever wanted the earlier one to stop did not mean this one.
        connection.execute("UPDATE run SET stop_reason = NULL WHERE run_id = ?", (hello.run_id,))
    connection.execute(
        "INSERT INTO session (run_id, rank, session_id, ordinal, resume_step, late, started_at, last_seen_at)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (
            hello.run_id,
            hello.rank,
            hello.session_id,
            ordinal,
            hello.resume_step,
            hello.late,
            hello.started_at or now,
            now,
        ),
    )
    # Kept as frame 0, so that a fold from the beginning knows what it knew then.
    _insert_frame(
        connection,
        StreamKey(hello.run_id, hello.rank, hello.session_id),
        (0, "hello", None, 0, now, encode(msgspec.structs.replace(hello, session_ordinal=ordinal))),
    )
    if not hello.late:
        _set_environment(connection, hello.run_id, hello.environment)


def _set_environment(connection: sqlite3.Connection, run_id: str, environment: Environment) -> None:
    connection.execute(
        "UPDATE run SET environment = ? WHERE run_id = ?", (msgspec.msgpack.encode(environment), run_id)
    )


def append_frames(
    connection: sqlite3.Connection,
    run_id: str,
    rank: int,
    session_id: str,
    frames: Iterable[Sequenced],
    now: float,
    max_series: int = MAX_SERIES,
) -> Appended:
    """Store `frames` as far as they continue the session; duplicates are skipped, a jump ends it.

    Raises:
        NotFound: if the session was never opened, or its run was deleted.
    """
    key = StreamKey(run_id, rank, session_id)
    acked, late, is_ended = _find_session(connection, key)
    names = _SeriesNames(connection, run_id, max_series)
    stored: list[Sequenced] = []
    reject = None
    for frame in frames:
        if frame.seq <= acked:
            continue
        reject = _refusal(frame, acked, names)
        if reject:
            break
        _insert_frame(connection, key, _frame_row(frame, now))
        acked = frame.last_seq if isinstance(frame, Gap) else frame.seq
        stored.append(frame)
    _touch_session(connection, key, stored, acked, now)
    if stored:
        _touch_run(connection, key, stored, is_late=late, was_ended=is_ended, now=now)
    return Appended(acked, stored, reject)


class _SeriesNames:
    """Which series a run has, within its cap."""

    def __init__(self, connection: sqlite3.Connection, run_id: str, cap: int) -> None:
        self._connection, self._run_id, self._cap = connection, run_id, cap
        rows = connection.execute("SELECT name FROM series WHERE run_id = ?", (run_id,))
        self._names = {name for (name,) in rows}

    def add(self, frame: Steps) -> bool:
        """Note the series of `frame` and return True, or False where that would pass the cap."""
        new = dict.fromkeys(frame.columns, 0) | dict.fromkeys(frame.layer_columns, 1)
        new = {name: flag for name, flag in new.items() if name not in self._names}
        if not new:
            return True  # the usual case
        if len(self._names) + len(new) > self._cap:
            return False
        self._names.update(new)
        rows = [(self._run_id, name, flag) for name, flag in new.items()]
        self._connection.executemany("INSERT INTO series (run_id, name, per_layer) VALUES (?, ?, ?)", rows)
        return True

    @property
    def cap(self) -> int:
        """How many there may be."""
        return self._cap


def _refusal(frame: Sequenced, acked: int, names: _SeriesNames) -> Reject | None:
    if frame.seq != acked + 1:
        text = f"seq {frame.seq} came where {acked + 1} was expected"
        return Reject(code="seq_jump", message=text, seq=frame.seq, expected_seq=acked + 1)
    if isinstance(frame, Steps) and not names.add(frame):
        text = f"a run may have {names.cap} series; is a metric named by its step?"
        return Reject(code="series_cap", message=text, seq=frame.seq)
    return None


def _find_session(connection: sqlite3.Connection, key: StreamKey) -> tuple[int, bool, bool]:
    row = connection.execute(
        "SELECT acked_seq, late, status IS NOT NULL FROM session"
        " WHERE (run_id, rank, session_id) = (?, ?, ?)",
        key,
    ).fetchone()
    if row is None:
        raise NotFound(
            f"run {key.run_id!r} has no session {key.session_id!r} of rank {key.rank}; say Hello first"
        )
    return int(row[0]), bool(row[1]), bool(row[2])


FrameRow = tuple[int, str, int | None, int, float, bytes]  # seq, kind, first_step, count, at, payload


def _frame_row(frame: Sequenced, now: float) -> FrameRow:
    first_step, count = None, 0
    if isinstance(frame, Steps):
        first_step, count = frame.first_step, frame.count
    elif isinstance(frame, Event | Bye):
        first_step = frame.step
    elif isinstance(frame, Gap):
        first_step = frame.first_step
    return frame.seq, _KINDS[type(frame)], first_step, count, now, encode(frame)


def _insert_frame(connection: sqlite3.Connection, key: StreamKey, row: FrameRow) -> None:
    connection.execute(
        "INSERT INTO frame (run_id, rank, session_id, seq, kind, first_step, count, received_at, payload)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (*key, *row),
    )


def last_step(frames: Iterable[Sequenced]) -> int | None:
    """Return the last training step that `frames` report, or None where they report none."""
    return max((batch.last_step(frame) for frame in frames if isinstance(frame, Steps)), default=None)


def _touch_session(
    connection: sqlite3.Connection,
    key: StreamKey,
    stored: Sequence[Sequenced],
    acked: int,
    now: float,
) -> None:
    connection.execute(
        "UPDATE session SET acked_seq = ?, last_seen_at = ?, last_step = coalesce(?, last_step)"
        " WHERE (run_id, rank, session_id) = (?, ?, ?)",
        (acked, now, last_step(stored), *key),
    )


def _touch_run(
    connection: sqlite3.Connection,
    key: StreamKey,
    stored: Sequence[Sequenced],
    *,
    is_late: bool,
    was_ended: bool,
    now: float,
) -> None:
    run_id = key.run_id
    step = last_step(stored)
    chosen = "max(coalesce(last_step, 0), coalesce(?1, 0))" if is_late else "coalesce(?1, last_step)"
    (state,) = connection.execute(
        f"UPDATE run SET last_seen_at = ?2, last_step = {chosen} WHERE run_id = ?3 RETURNING state",
        (step, now, run_id),
    ).fetchone()
    for frame in stored:
        if isinstance(frame, Layout) and frame.environment is not None and not is_late:
            _set_environment(connection, run_id, frame.environment)
    status = _status_after(stored)
    if status or was_ended or state != "running":
        connection.execute(
            "UPDATE session SET status = ? WHERE (run_id, rank, session_id) = (?, ?, ?)", (status, *key)
        )
        refresh_state(connection, run_id)


def _status_after(frames: Sequence[Sequenced]) -> str | None:
    # A frame after a Bye is a second `fit` of the same process: the session lives again.
    last = frames[-1]
    return last.status if isinstance(last, Bye) else None


def refresh_state(connection: sqlite3.Connection, run_id: str) -> str:
    """Set and return the state that the run's sessions say: that of the latest one of each rank."""
    rows = connection.execute(
        "SELECT coalesce(status, iif(late, 'crashed', 'running')), max(ordinal) FROM session"
        " WHERE run_id = ? GROUP BY rank",
        (run_id,),
    ).fetchall()
    states = {state for state, _ordinal in rows}
    state = next((state for state in _WORST_FIRST if state in states), "running")
    if state != "running":
        connection.execute("UPDATE run SET state = ?, stop_reason = NULL WHERE run_id = ?", (state, run_id))
    else:
        connection.execute("UPDATE run SET state = ? WHERE run_id = ?", (state, run_id))
    return state


def keep_promise(connection: sqlite3.Connection, key: StreamKey, promised_at: float, now: float) -> None:
    """Note until when the session said it would be heard from again."""
    connection.execute(
        "UPDATE session SET promised_at = ?, last_seen_at = ? WHERE (run_id, rank, session_id) = (?, ?, ?)",
        (promised_at, now, *key),
    )


def request_stop(connection: sqlite3.Connection, run_id: str, reason: str) -> None:
    """Note that somebody wants the run to stop; it stays noted until a session of the run says Bye.

    Raises:
        NotFound: if there is no such run.
        Conflict: if it has ended.
    """
    _update_run(connection, run_id, "stop_reason = ?", reason)
    (state,) = connection.execute("SELECT state FROM run WHERE run_id = ?", (run_id,)).fetchone()
    if state in ENDED:
        raise Conflict(f"the run has ended: {state}")


def stop_reason(connection: sqlite3.Connection, run_id: str) -> str | None:
    """Return why the run was asked to stop, or None."""
    row = connection.execute("SELECT stop_reason FROM run WHERE run_id = ?", (run_id,)).fetchone()
    return str(row[0]) if row and row[0] is not None else None


def patch_run(
    connection: sqlite3.Connection,
    run_id: str,
    *,
    name: str | None = None,
    tags: Sequence[str] | None = None,
    notes: str | None = None,
) -> None:
    """Change what a person may change; None leaves a field as it is.

    Raises:
        NotFound: if there is no such run.
    """
    _update_run(
        connection,
        run_id,
        "name = coalesce(?, name), tags = coalesce(?, tags), notes = coalesce(?, notes)",
        name,
        None if tags is None else msgspec.json.encode(list(tags)).decode(),
        notes,
    )


def _update_run(connection: sqlite3.Connection, run_id: str, changes: str, *values: object) -> None:
    cursor = connection.execute(f"UPDATE run SET {changes} WHERE run_id = ?", (*values, run_id))
    if cursor.rowcount == 0:
        raise NotFound(f"there is no run {run_id!r}")


def delete_run(connection: sqlite3.Connection, run_id: str) -> None:
    """Forget the run and all that belongs to it; take back the messages about it that were not sent.

    Raises:
        NotFound: if there is no such run.
    """
    connection.execute(
        "UPDATE outbox SET next_try_at = NULL, outcome = 'cancelled'"
        " WHERE run_id = ? AND next_try_at IS NOT NULL",
        (run_id,),
    )
    if connection.execute("DELETE FROM run WHERE run_id = ?", (run_id,)).rowcount == 0:
        raise NotFound(f"there is no run {run_id!r}")
