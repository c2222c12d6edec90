"""Events: what happened once to a run - the end of an epoch, a validation, a checkpoint - in order."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from itertools import islice
from typing import Any

import msgspec

from trainvitals.wire import Event
from trainvitals_server.series import NEVER
from trainvitals_server.store.branches import load_branches

MAX_EVENTS = 2000  # of one answer, the newest: as many as a chart has points
_decoder = msgspec.msgpack.Decoder(Event)


class ToldEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event as the REST interface tells it."""

    step: int
    kind: str
    time: float
    data: dict[str, Any]


def load_events(
    connection: sqlite3.Connection, run_id: str, rank: int, kind: str | None = None, limit: int = MAX_EVENTS
) -> list[ToldEvent]:
    """Return the newest events of a stream's main line, all or those of one kind, the oldest first."""
    newest = list(islice(_newest_first(connection, run_id, rank, kind), limit))
    return [
        ToldEvent(step=event.step, kind=event.kind, time=event.time, data=event.data)
        for event in reversed(newest)
    ]


def _newest_first(
    connection: sqlite3.Connection, run_id: str, rank: int, kind: str | None
) -> Iterator[Event]:
    stops = {branch.key.session_id: branch.main_stop for branch in load_branches(connection, run_id, rank)}
    rows = connection.execute(
        "SELECT session_id, frame.payload FROM session CROSS JOIN frame USING (run_id, rank, session_id)"
        " WHERE run_id = ? AND rank = ? AND frame.kind = 'event'"
        " ORDER BY session.ordinal DESC, session.started_at DESC, session_id DESC, frame.seq DESC",
        (run_id, rank),
    )
    for session_id, payload in rows:
        event = _decoder.decode(payload)
        if kind in (None, event.kind) and event.step < stops.get(session_id, NEVER):
            yield event
