"""Who may speak to the server: a table over names, origins and tokens, for requests and websockets alike."""

from __future__ import annotations

import dataclasses
import re
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient, WebSocketDenialResponse
from starlette.websockets import WebSocketDisconnect

from trainvitals_server import access
from trainvitals_server.app import create_app
from trainvitals_server.config import Config
from trainvitals_server.services import Services
from trainvitals_server.store import tokens

Proof = Literal["none", "token", "wrong token", "revoked token", "cookie", "wrong cookie", "own token"]
OWN_TOKEN = "a-token-from-the-settings"

LOCAL = Config(host="127.0.0.1", port=8765)
PUBLIC = Config(host="127.0.0.1", port=8765, public_url="https://vitals.example.org/team")
SHARED = Config(host="0.0.0.0", port=8765, allowed_hosts=("box.example.org",))
OWN = Config(host="127.0.0.1", port=8765, token=OWN_TOKEN)


class Site:
    """The real app with one token of each sort."""

    def __init__(self, config: Config, folder: Path) -> None:
        self.app: FastAPI = create_app(dataclasses.replace(config, data=folder))
        self.services: Services = self.app.state.services
        self.client = TestClient(self.app, base_url="http://127.0.0.1:8765", follow_redirects=False)

    def headers(self, proof: Proof) -> dict[str, str]:
        if proof == "none":
            return {}
        if "cookie" in proof:
            value = "tv_forged" if "wrong" in proof else self.create("session")
            return {"cookie": f"{access.cookie_name(self.services)}={value}"}
        given = {"wrong token": "tv_forged", "own token": OWN_TOKEN}.get(proof) or self.create("access")
        if proof == "revoked token":
            self.services.database.write(lambda c: _revoke_all(c, self.services.clock())).result()
        return {"authorization": f"Bearer {given}"}

    def create(self, kind: tokens.TokenKind) -> str:
        now = self.services.clock()
        return self.services.database.write(lambda c: tokens.create_token(c, kind, "", now)[1]).result()


def _revoke_all(c: sqlite3.Connection, now: float) -> None:
    for token in tokens.list_tokens(c):
        tokens.revoke_token(c, token.token_id, now)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Callable[[Config], Site]]:
    opened: list[Site] = []

    def open_site(config: Config) -> Site:
        found = Site(config, tmp_path / str(len(opened)))
        found.client.__enter__()
        opened.append(found)
        return found

    yield open_site
    for each in opened:
        each.client.__exit__(None, None, None)


Row = tuple[Config, str, str | None, Proof, int, int, int]
# settings, Host, Origin, proof -> status of GET, of POST, of the websocket (101 = accepted)
TABLE: list[Row] = [
    (LOCAL, "localhost:8765", None, "none", 200, 200, 101),
    (LOCAL, "localhost:9000", "http://localhost:9000", "none", 200, 200, 101),  # ssh -L 9000:localhost:8765
    (LOCAL, "127.0.0.1:8765", "http://127.0.0.1:8765", "none", 200, 200, 101),
    (LOCAL, "127.8.9.1", None, "none", 200, 200, 101),
    (LOCAL, "[::1]:8765", "http://[::1]:8765", "none", 200, 200, 101),
    (LOCAL, "LOCALHOST.", "HTTP://LocalHost", "none", 200, 200, 101),
    (LOCAL, "run.localhost:80", "https://run.localhost", "none", 200, 200, 101),
    (LOCAL, "localhost:8765", "http://evil.example", "none", 200, 403, 403),
    (LOCAL, "localhost:8765", "null", "none", 200, 403, 403),
    (LOCAL, "localhost:8765", "", "none", 200, 403, 403),
    (LOCAL, "localhost:8765", "file://", "none", 200, 403, 403),
    (LOCAL, "localhost:8765", "http://localhost.evil.example", "none", 200, 403, 403),
    (LOCAL, "localhost:8765", "http://evil.example#localhost", "none", 200, 403, 403),
    (LOCAL, "localhost:8765", "http://localhost@evil.example", "none", 200, 403, 403),
    (LOCAL, "rebound.example:8765", None, "none", 403, 403, 403),
    (LOCAL, "rebound.example:8765", "http://rebound.example:8765", "none", 403, 403, 403),
    (LOCAL, "notlocalhost", None, "none", 403, 403, 403),
    (LOCAL, "localhost.evil.example", None, "none", 403, 403, 403),
    (LOCAL, "evil.example/livez?", None, "none", 403, 403, 403),  # must not pass as the path of a probe
    (LOCAL, "evil@localhost", None, "none", 403, 403, 403),
    (LOCAL, "localhost:http", None, "none", 403, 403, 403),
    (LOCAL, "", None, "none", 403, 403, 403),
    (LOCAL, "0.0.0.0:8765", None, "none", 403, 403, 403),
    (LOCAL, "10.0.0.7:8765", None, "none", 403, 403, 403),
    (LOCAL, "localhost:8765", None, "wrong token", 200, 200, 101),  # none is needed here
    (LOCAL, "trainvitals:8765", None, "token", 200, 200, 101),  # no page of another site has one
    (PUBLIC, "vitals.example.org", "https://vitals.example.org", "none", 200, 200, 101),
    (PUBLIC, "localhost:8765", "https://vitals.example.org", "none", 200, 200, 101),  # a proxy that renames
    (PUBLIC, "other.example.org", None, "none", 403, 403, 403),
    (SHARED, "10.0.0.7:8765", None, "none", 401, 401, 401),
    (SHARED, "localhost:8765", None, "none", 401, 401, 401),
    (SHARED, "10.0.0.7:8765", None, "token", 200, 200, 101),
    (SHARED, "10.0.0.7:8765", None, "wrong token", 401, 401, 401),
    (SHARED, "10.0.0.7:8765", None, "revoked token", 401, 401, 401),
    (SHARED, "trainvitals:8765", None, "token", 200, 200, 101),  # another container
    (SHARED, "10.0.0.7:8765", "http://10.0.0.7:8765", "cookie", 200, 200, 101),
    (SHARED, "box.example.org", "http://box.example.org", "cookie", 200, 200, 101),
    (SHARED, "10.0.0.7:8765", "http://10.0.0.7:8765", "wrong cookie", 401, 401, 401),
    (SHARED, "10.0.0.7:8765", "http://evil.example", "cookie", 200, 403, 403),  # no forgery across sites
    (SHARED, "rebound.example:8765", "http://rebound.example:8765", "cookie", 403, 403, 403),
    (OWN, "localhost:8765", None, "none", 401, 401, 401),
    (OWN, "localhost:8765", None, "own token", 200, 200, 101),
    (OWN, "localhost:8765", None, "wrong token", 401, 401, 401),
]


@pytest.mark.parametrize(("config", "host", "origin", "proof", "get", "post", "websocket"), TABLE)
def test_names_origins_and_tokens_decide_who_may_speak(
    config: Config,
    host: str,
    origin: str | None,
    proof: Proof,
    get: int,
    post: int,
    websocket: int,
    site: Callable[[Config], Site],
) -> None:
    here = site(config)
    headers = {"host": host, **({} if origin is None else {"origin": origin}), **here.headers(proof)}
    found = (
        here.client.get("/api/v1/webhooks", headers=headers).status_code,
        _accepted(here.client.post("/api/v1/webhooks", headers=headers, json={}).status_code),
        _websocket_status(here.client, headers),
    )
    assert found == (get, post, websocket)


def _accepted(status: int) -> int:
    return (
        200 if status == 400 else status
    )  # an empty webhook is refused by the route: the gate let it through


def _websocket_status(client: TestClient, headers: dict[str, str]) -> int:
    try:
        with client.websocket_connect("/api/v1/live", headers=headers):
            return 101
    except WebSocketDenialResponse as denial:
        return denial.status_code
    except WebSocketDisconnect as closed:
        return closed.code


@pytest.mark.parametrize("path", ["/livez", "/readyz"])
def test_probes_need_neither_a_name_nor_a_token(path: str, site: Callable[[Config], Site]) -> None:
    assert site(SHARED).client.get(path, headers={"host": "10.1.2.3"}).status_code == 200
    assert site(LOCAL).client.get(path, headers={"host": "pod-7.cluster"}).status_code == 200


def test_the_login_link_lets_one_browser_in_once_and_leaves_the_url(site: Callable[[Config], Site]) -> None:
    here = site(SHARED)
    link = access.login_link(here.services)
    assert link is not None
    assert link.startswith("http://127.0.0.1:8765/login?token=")
    first = here.client.get(link)
    cookie = first.headers["set-cookie"]
    assert (first.status_code, first.headers["location"]) == (303, "./")
    assert re.search(r"; HttpOnly", cookie)
    assert re.search(r"; SameSite=lax", cookie)
    assert here.client.get("/api/v1/webhooks").status_code == 200
    assert here.client.get(link).status_code == 303  # the same browser is in already
    assert "set-cookie" not in here.client.get(link).headers
    here.client.cookies.clear()
    assert here.client.get(link).status_code == 401
    assert here.client.get("/api/v1/webhooks").status_code == 401


def test_a_login_link_expires(site: Callable[[Config], Site]) -> None:
    here = site(SHARED)
    long_ago = here.services.clock() - tokens.LOGIN_LIFE_S - 1
    token = here.services.database.write(lambda c: tokens.create_token(c, "login", "", long_ago)[1]).result()
    assert here.client.get(f"/login?token={token}").status_code == 401


def test_an_access_token_is_no_login_link_and_a_login_token_no_bearer(site: Callable[[Config], Site]) -> None:
    here = site(SHARED)
    assert here.client.get(f"/login?token={here.create('access')}").status_code == 401
    bearer = {"authorization": f"Bearer {here.create('login')}"}
    assert here.client.get("/api/v1/webhooks", headers=bearer).status_code == 401


def test_a_revoked_session_is_out_as_soon_as_it_is_looked_up_again(site: Callable[[Config], Site]) -> None:
    here = site(SHARED)
    cookie = here.headers("cookie")
    assert here.client.get("/api/v1/webhooks", headers=cookie).status_code == 200
    here.services.database.write(lambda c: _revoke_all(c, here.services.clock())).result()
    fresh = TestClient(create_app(here.services.config), base_url="http://127.0.0.1:8765")
    with fresh:
        assert fresh.get("/api/v1/webhooks", headers=cookie).status_code == 401


def test_a_browser_without_a_cookie_is_told_how_to_get_in(site: Callable[[Config], Site]) -> None:
    answer = site(SHARED).client.get("/", headers={"accept": "text/html,*/*"})
    assert answer.status_code == 401
    assert "trainvitals token link" in answer.text


def test_a_program_without_a_token_gets_the_one_error_shape(site: Callable[[Config], Site]) -> None:
    answer = site(SHARED).client.get("/api/v1/runs")
    assert answer.json()["error"]["code"] == "unauthorized"
    assert answer.headers["www-authenticate"] == "Bearer"


def test_answers_of_the_interface_are_not_sniffed_kept_or_framed(site: Callable[[Config], Site]) -> None:
    headers = site(LOCAL).client.get("/api/v1/webhooks").headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"
    assert "frame-ancestors 'none'" in headers["content-security-policy"]


def test_only_the_first_start_beyond_loopback_creates_a_token(site: Callable[[Config], Site]) -> None:
    here = site(SHARED)
    token = access.first_token(here.services)
    assert token is not None
    bearer = {"authorization": f"Bearer {token}"}
    assert here.client.get("/api/v1/webhooks", headers=bearer).status_code == 200
    assert access.first_token(here.services) is None


def test_a_server_on_loopback_prints_neither_link_nor_token(site: Callable[[Config], Site]) -> None:
    services = site(LOCAL).services
    assert (access.login_link(services), access.first_token(services)) == (None, None)


def test_the_database_keeps_no_token(site: Callable[[Config], Site]) -> None:
    here = site(SHARED)
    token = here.create("access")
    rows = here.services.database.read(lambda c: c.execute("SELECT * FROM token").fetchall())
    assert token not in str(rows)
