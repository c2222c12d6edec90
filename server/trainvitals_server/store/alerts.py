"""Alerts in the database: what each endpoint was told of each incident, and what it is to be told next."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

import msgspec

from trainvitals_server.alert.endpoint import Endpoint, guess_format
from trainvitals_server.alert.message import Message, Run, capped_message
from trainvitals_server.alert.policy import STORM_LIMITS, STORM_WINDOW_S, Alert, Decision, decide
from trainvitals_server.alert.signing import new_secret
from trainvitals_server.incident import Incident
from trainvitals_server.stakes import news_of, stakes_of
from trainvitals_server.store import outbox
from trainvitals_server.store.endpoints import list_endpoints

CONFIGURED = "config_"  # how the ids of endpoints from the settings begin
NOT_CONFIGURED = "no longer in the settings"


def enqueue_alerts(c: sqlite3.Connection, incident: Incident, change: str, now: float) -> int:
    """Queue what the endpoints are to be told of `incident`, saved with `change` in this very transaction.

    Returns:
        How many messages were queued; after the commit the outbox must be woken if any was.
    """
    if change == "unchanged" or incident.late:
        return 0
    queued = 0
    for endpoint in list_endpoints(c):
        if endpoint.disabled_at is None:
            queued += _enqueue_one(c, incident, endpoint, now)
    return queued


def _enqueue_one(c: sqlite3.Connection, incident: Incident, endpoint: Endpoint, now: float) -> int:
    alert = _find_alert(c, incident, endpoint, now)
    if alert is None and incident.severity == "info":
        return 0  # most incidents: not worth counting
    decision = decide(
        incident,
        alert,
        min_severity=endpoint.min_severity,
        opened_recently=outbox.count_opened(c, endpoint.endpoint_id, now - STORM_WINDOW_S),
        now=now,
    )
    if decision is None:
        return 0
    if decision.cancel_waiting:
        outbox.cancel_waiting(c, endpoint.endpoint_id, incident.run_id, incident.id, now)
    _save_alert(c, incident, endpoint, decision, _told(incident, alert, decision), now)
    if decision.event is None:
        return 0
    news = news_of(incident, alert.told) if alert and decision.event == "incident.updated" else ""
    message = _message(c, incident, decision, news, now)
    outbox.add_message(c, endpoint.endpoint_id, message, now, due_at=now + decision.delay_s)
    return 1


def _told(incident: Incident, alert: Alert | None, decision: Decision) -> frozenset[str]:
    """Return the stakes that the endpoint has heard of with this decision; an opening begins anew."""
    before = frozenset() if alert is None or decision.event == "incident.opened" else alert.told
    return before | stakes_of(incident).keys() if decision.event else before


def _message(c: sqlite3.Connection, incident: Incident, decision: Decision, news: str, now: float) -> Message:
    assert decision.event is not None
    if decision.event == "alerts.capped":
        return capped_message(now, STORM_LIMITS[incident.severity], STORM_WINDOW_S)
    row = c.execute("SELECT project, name FROM run WHERE run_id = ?", (incident.run_id,)).fetchone()
    project, name = row or ("", "")
    run = Run(run_id=incident.run_id, project=project or "", name=name or "")
    told = msgspec.structs.replace(incident, findings=[])
    return Message(event=decision.event, at=now, run=run, incident=told, text=news)


def _find_alert(c: sqlite3.Connection, incident: Incident, endpoint: Endpoint, now: float) -> Alert | None:
    row = c.execute(
        "SELECT state, severity, updated_at, told FROM alert"
        " WHERE run_id = ? AND incident_id = ? AND endpoint_id = ?",
        (incident.run_id, incident.id, endpoint.endpoint_id),
    ).fetchone()
    if row is None:
        return None
    is_waiting = outbox.is_waiting(c, endpoint.endpoint_id, incident.run_id, incident.id, now)
    state, severity, updated_at, told = row
    return Alert(state, severity, updated_at, is_waiting, frozenset(told.split()))


def _save_alert(
    c: sqlite3.Connection,
    incident: Incident,
    endpoint: Endpoint,
    decision: Decision,
    told: frozenset[str],
    now: float,
) -> None:
    key = (incident.run_id, incident.id, endpoint.endpoint_id)
    c.execute(
        "INSERT INTO alert (run_id, incident_id, endpoint_id, state, severity, told, updated_at)"
        " VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (run_id, incident_id, endpoint_id)"
        " DO UPDATE SET state = excluded.state, severity = excluded.severity, told = excluded.told,"
        " updated_at = excluded.updated_at",
        (*key, decision.state, incident.severity, " ".join(sorted(told)), now),
    )


def list_alerts(c: sqlite3.Connection, run_id: str | None, limit: int) -> list[dict[str, object]]:
    """Return what was told to whom, the latest first."""
    cursor = c.execute(
        "SELECT run_id, incident_id, endpoint_id AS webhook_id, state, severity, updated_at FROM alert"
        " WHERE ?1 IS NULL OR run_id = ?1 ORDER BY updated_at DESC LIMIT ?2",
        (run_id, limit),
    )
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor]


def save_configured(
    c: sqlite3.Connection, wanted: Iterable[tuple[str, str]], secret: str | None, now: float
) -> None:
    """Make the endpoints of the settings, `(id, url)`, the ones in the database; pause those that left."""
    ids = dict(wanted)
    for endpoint_id, url in ids.items():
        first_secret = secret or new_secret()
        c.execute(
            "INSERT INTO endpoint (endpoint_id, url, format, secret, created_at) VALUES (?, ?, ?, ?, ?)"
            " ON CONFLICT (endpoint_id) DO UPDATE SET secret = ifnull(?, secret),"
            " disabled_at = iif(disabled_why = ?, NULL, disabled_at),"
            " disabled_why = iif(disabled_why = ?, NULL, disabled_why)",
            (endpoint_id, url, guess_format(url), first_secret, now, secret, NOT_CONFIGURED, NOT_CONFIGURED),
        )
    for endpoint in list_endpoints(c):
        is_gone = endpoint.endpoint_id.startswith(CONFIGURED) and endpoint.endpoint_id not in ids
        if is_gone and endpoint.disabled_at is None:
            outbox.disable_endpoint(c, endpoint.endpoint_id, NOT_CONFIGURED, now)
