"""What is known of the sessions that may be alive: for judging whether they still are."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

import msgspec

from trainvitals.wire import Bye
from trainvitals_server.incident import Incident
from trainvitals_server.store.incidents import list_incidents
from trainvitals_server.store.runs import StreamKey

_bye_decoder = msgspec.msgpack.Decoder(Bye)


class SessionRow(NamedTuple):
    """One session that is not late. `is_superseded`: the process has been started again since."""

    key: StreamKey
    last_seen_at: float
    promised_at: float | None
    last_step: int | None
    status: Literal["finished", "interrupted", "failed", "stopped"] | None
    is_superseded: bool
    run_state: str


def watched_sessions(connection: sqlite3.Connection, since: float) -> list[SessionRow]:
    """Return the sessions of the runs that go on, and those that were heard from after `since`."""
    rows = connection.execute(
        "SELECT run_id, rank, session_id, s.last_seen_at, promised_at, s.last_step, status,"
        " EXISTS (SELECT 1 FROM session later WHERE (later.run_id, later.rank) = (s.run_id, s.rank)"
        " AND later.ordinal > s.ordinal), state"
        " FROM session s JOIN run USING (run_id)"
        " WHERE NOT late AND (state IN ('running', 'stalled') OR s.last_seen_at >= ?)",
        (since,),
    )
    return [
        SessionRow(StreamKey(run_id, rank, session_id), seen_at, promised_at, step, status, bool(over), state)
        for run_id, rank, session_id, seen_at, promised_at, step, status, over, state in rows
    ]


def bye_error(connection: sqlite3.Connection, key: StreamKey) -> str:
    """Return the error that the session's last Bye tells."""
    row = connection.execute(
        "SELECT payload FROM frame WHERE (run_id, rank, session_id) = (?, ?, ?) AND kind = 'bye'"
        " ORDER BY seq DESC LIMIT 1",
        key,
    ).fetchone()
    return _bye_decoder.decode(row[0]).error if row else ""


class _EventKind(msgspec.Struct):
    step: int
    kind: str


_event_decoder = msgspec.msgpack.Decoder(_EventKind)


def last_checkpoint_step(connection: sqlite3.Connection, key: StreamKey) -> int | None:
    """Return the step of the session's latest checkpoint."""
    rows = connection.execute(
        "SELECT payload FROM frame WHERE (run_id, rank, session_id) = (?, ?, ?) AND kind = 'event'"
        " ORDER BY seq DESC",
        key,
    )
    events = (_event_decoder.decode(payload) for (payload,) in rows)
    return next((event.step for event in events if event.kind == "checkpoint"), None)


def incidents_of_runs(connection: sqlite3.Connection, run_ids: Iterable[str]) -> list[Incident]:
    """Return the incidents of several runs."""
    return [incident for run_id in run_ids for incident in list_incidents(connection, run_id)]


def save_states(connection: sqlite3.Connection, states: Mapping[str, str]) -> None:
    """Say how runs are, until their next frame says otherwise."""
    connection.executemany(
        "UPDATE run SET state = ? WHERE run_id = ?", [(state, run_id) for run_id, state in states.items()]
    )
