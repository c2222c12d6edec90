"""Tokens in the database: only their SHA-256, so that a stolen file opens nothing.

An id begins with the token's kind: `access` for programs, `login` for the one-time link, `session` for a
browser that came by such a link.
"""

from __future__ import annotations

import hashlib
import secrets
import sqlite3
from dataclasses import dataclass
from typing import Literal

TokenKind = Literal["access", "login", "session"]

LOGIN_LIFE_S = 3600.0  # of a printed link; `trainvitals token link` makes another one
SESSION_LIFE_S = 30 * 86400.0
TOUCH_S = 60.0  # how exactly the last use is known
_LIVES: dict[str, float] = {"login": LOGIN_LIFE_S, "session": SESSION_LIFE_S}


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """What is known of a token: everything but the token."""

    token_id: str
    name: str
    created_at: float
    last_used_at: float | None
    revoked_at: float | None

    @property
    def kind(self) -> str:
        """Return access, login or session."""
        return self.token_id.partition("_")[0]

    def is_valid(self, now: float) -> bool:
        """Return whether it opens anything at `now`."""
        life = _LIVES.get(self.kind)
        return self.revoked_at is None and (life is None or now - self.created_at < life)


def digest(token: str) -> bytes:
    """Return what is kept of a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def create_token(c: sqlite3.Connection, kind: TokenKind, name: str, now: float) -> tuple[str, str]:
    """Create a token and return `(id, token)`: nobody can show it again. Clears away what has expired."""
    for expiring, life in _LIVES.items():
        c.execute(
            "DELETE FROM token WHERE created_at < ? AND substr(token_id, 1, ?) = ?",
            (now - life, len(expiring) + 1, f"{expiring}_"),
        )
    token_id, token = f"{kind}_{secrets.token_hex(6)}", f"tv_{secrets.token_urlsafe(32)}"
    c.execute(
        "INSERT INTO token (token_id, name, digest, created_at) VALUES (?, ?, ?, ?)",
        (token_id, name, digest(token), now),
    )
    return token_id, token


def find_token(c: sqlite3.Connection, token: str, now: float) -> Token | None:
    """Return the valid token of this text, or None."""
    row = c.execute(
        "SELECT token_id, name, created_at, last_used_at, revoked_at FROM token WHERE digest = ?",
        (digest(token),),
    ).fetchone()
    found = _token(row) if row else None
    return found if found is not None and found.is_valid(now) else None


def use_login(c: sqlite3.Connection, token: str, now: float) -> str | None:
    """Exchange a one-time token for a session's token; None if it was used, has expired or never was."""
    found = find_token(c, token, now)
    if found is None or found.kind != "login":
        return None
    revoke_token(c, found.token_id, now)
    return create_token(c, "session", "browser", now)[1]


def touch_token(c: sqlite3.Connection, token_id: str, now: float) -> None:
    """Note that a token was used."""
    c.execute("UPDATE token SET last_used_at = ? WHERE token_id = ?", (now, token_id))


def revoke_token(c: sqlite3.Connection, token_id: str, now: float) -> bool:
    """Make a token open nothing any more; return whether it did until now."""
    query = "UPDATE token SET revoked_at = ? WHERE token_id = ? AND revoked_at IS NULL"
    return c.execute(query, (now, token_id)).rowcount > 0


def list_tokens(c: sqlite3.Connection) -> list[Token]:
    """Return every token, the oldest first."""
    rows = c.execute(
        "SELECT token_id, name, created_at, last_used_at, revoked_at FROM token ORDER BY created_at, token_id"
    )
    return [_token(row) for row in rows]


def _token(row: tuple[str, str, float, float | None, float | None]) -> Token:
    token_id, name, created_at, last_used_at, revoked_at = row
    return Token(
        token_id=token_id,
        name=name,
        created_at=created_at,
        last_used_at=last_used_at,
        revoked_at=revoked_at,
    )
