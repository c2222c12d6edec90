"""Tokens in the database: their lives, and that only digests are kept."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator

import pytest

from trainvitals_server.store import tokens
from trainvitals_server.store.database import migrate
from trainvitals_server.store.tokens import LOGIN_LIFE_S, SESSION_LIFE_S, TokenKind

NOW = 1_800_000_000.0


@pytest.fixture
def c() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    migrate(connection)
    yield connection
    connection.close()


def test_a_token_is_found_by_its_text_and_kept_as_its_sha256(c: sqlite3.Connection) -> None:
    token_id, token = tokens.create_token(c, "access", "ci", NOW)
    found = tokens.find_token(c, token, NOW)
    assert found is not None
    assert (found.token_id, found.name, found.kind) == (token_id, "ci", "access")
    assert c.execute("SELECT digest FROM token").fetchone() == (hashlib.sha256(token.encode()).digest(),)


@pytest.mark.parametrize(
    ("kind", "life_s"), [("login", LOGIN_LIFE_S), ("session", SESSION_LIFE_S), ("access", None)]
)
def test_each_kind_has_its_life(kind: TokenKind, life_s: float | None, c: sqlite3.Connection) -> None:
    _, token = tokens.create_token(c, kind, "", NOW)
    assert tokens.find_token(c, token, NOW + (life_s or 1e9) - 1) is not None
    assert (tokens.find_token(c, token, NOW + (life_s or 1e9)) is None) == (life_s is not None)


def test_a_login_is_exchanged_for_a_session_once(c: sqlite3.Connection) -> None:
    _, login = tokens.create_token(c, "login", "", NOW)
    session = tokens.use_login(c, login, NOW)
    assert session is not None
    found = tokens.find_token(c, session, NOW)
    assert found is not None
    assert found.kind == "session"
    assert tokens.use_login(c, login, NOW) is None


@pytest.mark.parametrize("kind", ["access", "session"])
def test_only_a_login_token_logs_in(kind: TokenKind, c: sqlite3.Connection) -> None:
    _, token = tokens.create_token(c, kind, "", NOW)
    assert tokens.use_login(c, token, NOW) is None


def test_a_revoked_token_is_revoked_once_and_found_no_more(c: sqlite3.Connection) -> None:
    token_id, token = tokens.create_token(c, "access", "", NOW)
    assert [tokens.revoke_token(c, token_id, NOW) for _ in range(2)] == [True, False]
    assert tokens.find_token(c, token, NOW) is None
    assert [each.revoked_at for each in tokens.list_tokens(c)] == [NOW]


def test_what_has_expired_is_cleared_away_and_access_tokens_stay(c: sqlite3.Connection) -> None:
    for kind in ("access", "login", "session"):
        tokens.create_token(c, kind, "old", NOW)
    tokens.create_token(c, "access", "new", NOW + SESSION_LIFE_S + 1)
    assert [(token.kind, token.name) for token in tokens.list_tokens(c)] == [
        ("access", "old"),
        ("access", "new"),
    ]


@pytest.mark.parametrize("text", ["", "tv_", "\udcff", "tv_" + "x" * 100_000])
def test_any_text_can_be_asked_for(text: str, c: sqlite3.Connection) -> None:
    assert tokens.find_token(c, text, NOW) is None
