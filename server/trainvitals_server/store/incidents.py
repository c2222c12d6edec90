"""Incidents as they are kept: saving one twice, or in an older revision, changes nothing."""

from __future__ import annotations

import sqlite3
from typing import Literal

import msgspec

from trainvitals_server.incident import Incident
from trainvitals_server.stakes import news_of, stakes_of

Change = Literal["new", "escalated", "worsened", "resolved", "updated", "unchanged"]

_URGENCY = {"info": 0, "warning": 1, "critical": 2}
_decoder = msgspec.msgpack.Decoder(Incident)


def save_incident(connection: sqlite3.Connection, incident: Incident, now: float) -> Change:
    """Keep `incident` and say what that changes; `resolved` also stands for withdrawn.

    A fold that starts again from an earlier state says again what it said: that is `unchanged`.
    An incident that was over and is open again counts as escalated; one at which more is at stake than before
    (`stakes`) has worsened.
    """
    payload = msgspec.msgpack.encode(incident)
    row = connection.execute(
        "SELECT payload FROM incident WHERE run_id = ? AND id = ?", (incident.run_id, incident.id)
    ).fetchone()
    if row is None:
        _insert(connection, incident, payload, now)
        return "new"
    before = _decoder.decode(row[0])
    if incident.revision < before.revision or payload == row[0]:
        return "unchanged"
    connection.execute(
        "UPDATE incident SET severity = ?, state = ?, revision = ?, updated_at = ?, payload = ?"
        " WHERE run_id = ? AND id = ?",
        (incident.severity, incident.state, incident.revision, now, payload, incident.run_id, incident.id),
    )
    return _change(before, incident)


def _insert(connection: sqlite3.Connection, incident: Incident, payload: bytes, now: float) -> None:
    connection.execute(
        "INSERT INTO incident (run_id, id, severity, state, detected_step, revision, created_at, updated_at,"
        " payload) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            incident.run_id,
            incident.id,
            incident.severity,
            incident.state,
            incident.detected_step,
            incident.revision,
            now,
            now,
            payload,
        ),
    )


def _change(before: Incident, after: Incident) -> Change:
    if after.state == "open":
        is_worse = _URGENCY[after.severity] > _URGENCY[before.severity]
        if is_worse or before.state != "open":
            return "escalated"
        return "worsened" if news_of(after, stakes_of(before)) else "updated"
    return "resolved" if before.state == "open" else "updated"


def list_incidents(connection: sqlite3.Connection, run_id: str) -> list[Incident]:
    """Return the incidents of a run in order of detection."""
    rows = connection.execute(
        "SELECT payload FROM incident WHERE run_id = ? ORDER BY detected_step, created_at, id", (run_id,)
    )
    return [_decoder.decode(payload) for (payload,) in rows]


def find_incident(connection: sqlite3.Connection, run_id: str, incident_id: str) -> Incident | None:
    """Return one incident, or None."""
    row = connection.execute(
        "SELECT payload FROM incident WHERE run_id = ? AND id = ?", (run_id, incident_id)
    ).fetchone()
    return _decoder.decode(row[0]) if row else None
