"""Endpoints in the database: where alerts go."""

from __future__ import annotations

import sqlite3

import msgspec

from trainvitals_server.alert.endpoint import Endpoint

_ENDPOINT = "endpoint_id, url, format, secret, min_severity, created_at, disabled_at, disabled_why"


def list_endpoints(c: sqlite3.Connection) -> list[Endpoint]:
    """Return every endpoint, the oldest first."""
    rows = c.execute(f"SELECT {_ENDPOINT} FROM endpoint ORDER BY created_at, endpoint_id")
    return [_endpoint(row) for row in rows]


def find_endpoint(c: sqlite3.Connection, endpoint_id: str) -> Endpoint | None:
    """Return one endpoint, or None."""
    row = c.execute(f"SELECT {_ENDPOINT} FROM endpoint WHERE endpoint_id = ?", (endpoint_id,)).fetchone()
    return _endpoint(row) if row else None


def save_endpoint(c: sqlite3.Connection, endpoint: Endpoint) -> None:
    """Insert `endpoint`, or overwrite the one of its id; what waits for it stays."""
    c.execute(
        f"INSERT INTO endpoint ({_ENDPOINT}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (endpoint_id) DO UPDATE SET url = excluded.url, format = excluded.format,"
        " secret = excluded.secret,"
        " min_severity = excluded.min_severity, disabled_at = excluded.disabled_at,"
        " disabled_why = excluded.disabled_why",
        (
            endpoint.endpoint_id,
            endpoint.url,
            endpoint.format,
            endpoint.secret,
            endpoint.min_severity,
            endpoint.created_at,
            endpoint.disabled_at,
            endpoint.disabled_why,
        ),
    )


def delete_endpoint(c: sqlite3.Connection, endpoint_id: str) -> bool:
    """Delete an endpoint with its messages and alerts; return whether there was one."""
    return c.execute("DELETE FROM endpoint WHERE endpoint_id = ?", (endpoint_id,)).rowcount > 0


def _endpoint(row: tuple[object, ...]) -> Endpoint:
    names = [name.strip() for name in _ENDPOINT.split(",")]
    return msgspec.convert(dict(zip(names, row, strict=True)), Endpoint)
