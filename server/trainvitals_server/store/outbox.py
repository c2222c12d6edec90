"""The outbox: messages to send, each kept with every try, from the transaction of their cause to an answer.

A message is claimed by moving its next try beyond the time one try can take. A server that dies in between
has claimed it and recorded nothing: it comes due again, under the same id.
"""

from __future__ import annotations

import json
import sqlite3
import uuid
from collections.abc import Collection
from dataclasses import dataclass

import msgspec

from trainvitals_server.alert.endpoint import Endpoint
from trainvitals_server.alert.message import Message
from trainvitals_server.store.endpoints import find_endpoint

# What may be sent: its endpoint is not paused, and nothing earlier about the same incident still waits, so
# that "over" never overtakes "opened".
_SENDABLE = """
    FROM outbox AS o JOIN endpoint AS e USING (endpoint_id)
    WHERE o.next_try_at IS NOT NULL AND e.disabled_at IS NULL
      AND o.endpoint_id NOT IN (SELECT value FROM json_each(:busy))
      AND NOT EXISTS (
          SELECT 1 FROM outbox AS earlier
          WHERE earlier.next_try_at IS NOT NULL AND earlier.rowid < o.rowid
            AND earlier.endpoint_id = o.endpoint_id
            AND earlier.run_id = o.run_id AND earlier.incident_id = o.incident_id)
"""
_WAITING = "endpoint_id = ? AND run_id = ? AND incident_id = ? AND tries = 0 AND next_try_at > ?"


@dataclass(frozen=True, slots=True)
class Claim:
    """A message to send now; `tries` counts this one."""

    message_id: str
    tries: int
    message: Message
    endpoint: Endpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """How one try ended: with a status, or with an error where no answer came."""

    at: float
    status: int | None
    error: str | None
    duration_s: float

    @property
    def is_delivered(self) -> bool:
        """Whether the receiver took it."""
        return self.status is not None and 200 <= self.status < 300


def add_message(
    c: sqlite3.Connection, endpoint_id: str, message: Message, now: float, *, due_at: float
) -> str:
    """Queue `message` and return its id, the webhook-id of every try."""
    message_id = f"msg_{uuid.uuid4().hex}"
    run_id = message.run.run_id if message.run else None
    incident_id = message.incident.id if message.incident else None
    body = msgspec.msgpack.encode(message)
    c.execute(
        "INSERT INTO outbox"
        " (message_id, endpoint_id, run_id, incident_id, event, body, created_at, next_try_at)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (message_id, endpoint_id, run_id, incident_id, message.event, body, now, due_at),
    )
    return message_id


def is_waiting(c: sqlite3.Connection, endpoint_id: str, run_id: str, incident_id: str, now: float) -> bool:
    """Return whether a message about the incident has not come due yet."""
    query = f"SELECT EXISTS (SELECT 1 FROM outbox WHERE {_WAITING})"
    return bool(c.execute(query, (endpoint_id, run_id, incident_id, now)).fetchone()[0])


def cancel_waiting(
    c: sqlite3.Connection, endpoint_id: str, run_id: str, incident_id: str, now: float
) -> None:
    """Take back the message about the incident that has not come due yet."""
    c.execute(
        f"UPDATE outbox SET next_try_at = NULL, outcome = 'cancelled' WHERE {_WAITING}",
        (endpoint_id, run_id, incident_id, now),
    )


def count_opened(c: sqlite3.Connection, endpoint_id: str, since: float) -> int:
    """Return how many alerts were opened at an endpoint, or held back with a notice, after `since`."""
    row = c.execute(
        "SELECT count(*) FROM outbox WHERE endpoint_id = ? AND created_at > ?"
        " AND event IN ('incident.opened', 'alerts.capped')",
        (endpoint_id, since),
    ).fetchone()
    return int(row[0])


def next_due(c: sqlite3.Connection, busy: Collection[str]) -> float | None:
    """Return when the next message for an endpoint outside `busy` is to be sent, or None: nothing waits."""
    row = c.execute(f"SELECT min(o.next_try_at) {_SENDABLE}", {"busy": json.dumps(sorted(busy))}).fetchone()
    return None if row[0] is None else float(row[0])


def claim_due(
    c: sqlite3.Connection, now: float, *, lease_s: float, limit: int, busy: Collection[str]
) -> list[Claim]:
    """Claim up to `limit` due messages, one an endpoint; each comes due again after `lease_s`."""
    rows = c.execute(
        "WITH due AS (SELECT o.message_id, o.tries, o.body, o.endpoint_id, o.next_try_at, row_number() OVER"
        f" (PARTITION BY o.endpoint_id ORDER BY o.next_try_at, o.rowid) AS place {_SENDABLE}"
        "      AND o.next_try_at <= :now)"
        " SELECT message_id, tries, body, endpoint_id FROM due"
        " WHERE place = 1 ORDER BY next_try_at LIMIT :limit",
        {"busy": json.dumps(sorted(busy)), "now": now, "limit": limit},
    ).fetchall()
    for message_id, *_rest in rows:
        c.execute(
            "UPDATE outbox SET next_try_at = ?, tries = tries + 1 WHERE message_id = ?",
            (now + lease_s, message_id),
        )
    claims = (_claim(c, *row) for row in rows)
    return [claim for claim in claims if claim is not None]


def release_claims(c: sqlite3.Connection, now: float) -> None:
    """Make due at once what was claimed and never recorded: whoever claimed it is gone.

    Only at the start of the one server that owns this file.
    """
    c.execute(
        "UPDATE outbox SET next_try_at = ?1 WHERE next_try_at > ?1 AND tries >"
        " (SELECT ifnull(max(try), 0) FROM delivery WHERE delivery.message_id = outbox.message_id)",
        (now,),
    )


def _claim(c: sqlite3.Connection, message_id: str, tries: int, body: bytes, endpoint_id: str) -> Claim | None:
    endpoint = find_endpoint(c, endpoint_id)
    assert endpoint is not None  # the foreign key
    try:
        message = msgspec.msgpack.decode(body, type=Message)
    except msgspec.MsgspecError:  # another version wrote it; it must not stop those behind it
        query = "UPDATE outbox SET next_try_at = NULL, outcome = 'given_up' WHERE message_id = ?"
        c.execute(query, (message_id,))
        return None
    return Claim(message_id, tries + 1, message, endpoint)


def record_try(c: sqlite3.Connection, claim: Claim, result: Try, next_try_at: float | None) -> None:
    """Log `result`; the message is delivered, tried again at `next_try_at`, or given up (None).

    One that was cancelled while it was tried is not tried again.
    """
    outcome = "delivered" if result.is_delivered else "given_up" if next_try_at is None else None
    found = c.execute(
        "UPDATE outbox SET next_try_at = iif(outcome IS 'cancelled', NULL, ?), outcome = ifnull(?, outcome)"
        " WHERE message_id = ?",
        (None if result.is_delivered else next_try_at, outcome, claim.message_id),
    ).rowcount
    if not found:
        return  # its endpoint was deleted in the meantime
    c.execute(
        "INSERT OR REPLACE INTO delivery (message_id, try, at, status, error, duration_s)"
        " VALUES (?, ?, ?, ?, ?, ?)",
        (claim.message_id, claim.tries, result.at, result.status, result.error, result.duration_s),
    )
    if result.is_delivered:
        c.execute(
            "UPDATE alert SET state = 'firing' WHERE state = 'pending' AND endpoint_id = ?"
            " AND (run_id, incident_id) = (SELECT run_id, incident_id FROM outbox WHERE message_id = ?)",
            (claim.endpoint.endpoint_id, claim.message_id),
        )


def disable_endpoint(c: sqlite3.Connection, endpoint_id: str, why: str, now: float) -> None:
    """Pause an endpoint for good and give up what waits for it."""
    c.execute(
        "UPDATE endpoint SET disabled_at = ?, disabled_why = ? WHERE endpoint_id = ?", (now, why, endpoint_id)
    )
    c.execute(
        "UPDATE outbox SET next_try_at = NULL, outcome = 'given_up'"
        " WHERE endpoint_id = ? AND next_try_at IS NOT NULL",
        (endpoint_id,),
    )


def redeliver(c: sqlite3.Connection, message_id: str, now: float) -> str | None:
    """Make a message due at once, whatever became of it; return its endpoint, None without such a message."""
    query = "UPDATE outbox SET next_try_at = ?, outcome = NULL WHERE message_id = ? RETURNING endpoint_id"
    row = c.execute(query, (now, message_id)).fetchone()
    return row[0] if row else None


def delete_old(c: sqlite3.Connection, before: float) -> None:
    """Forget what was delivered or given up and is older than `before`."""
    c.execute("DELETE FROM outbox WHERE next_try_at IS NULL AND created_at < ?", (before,))


def list_messages(c: sqlite3.Connection, endpoint_id: str | None, limit: int) -> list[dict[str, object]]:
    """Return the latest messages, each with its tries: the delivery log."""
    cursor = c.execute(
        "SELECT message_id, endpoint_id AS webhook_id, event, run_id, incident_id, created_at, next_try_at,"
        " tries, outcome FROM outbox WHERE ?1 IS NULL OR endpoint_id = ?1"
        " ORDER BY created_at DESC, rowid DESC LIMIT ?2",
        (endpoint_id, limit),
    )
    names = [column[0] for column in cursor.description]
    messages = [dict(zip(names, row, strict=True)) for row in cursor]
    for message in messages:
        message["attempts"] = list_tries(c, str(message["message_id"]))
    return messages


def list_tries(c: sqlite3.Connection, message_id: str) -> list[dict[str, object]]:
    """Return the tries of one message, the first one first."""
    cursor = c.execute(
        "SELECT try, at, status, error, duration_s FROM delivery WHERE message_id = ? ORDER BY try",
        (message_id,),
    )
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor]
