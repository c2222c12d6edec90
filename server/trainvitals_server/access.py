"""Access: who may speak to the server, decided before any route sees a request or a websocket.

1. `Authorization: Bearer` with a valid token passes: no page of another site can send it.
2. `Host` must be a name of ours, and so must the `Origin` of a websocket or of a request that changes
   something.
3. A server that listens beyond loopback (or was given a token) wants a token; a browser's is a cookie, which
   it gets by opening the one-time link that the server prints.

A proxy in front of a server on loopback makes it reachable: it must ask for a password itself, or the server
must be given a token.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import socket
import sqlite3
from dataclasses import dataclass

from fastapi import FastAPI
from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trainvitals_server.body_limit import BodyLimit
from trainvitals_server.errors import Forbidden, ServerError, Unauthorized
from trainvitals_server.hosts import HostRules
from trainvitals_server.responses import error_response
from trainvitals_server.services import Services, services_of
from trainvitals_server.store import tokens
from trainvitals_server.store.tokens import SESSION_LIFE_S, TOUCH_S, Token

OPEN_PATHS = frozenset({"/livez", "/readyz"})  # probes carry no token and know no name
LOGIN_PATH = "/login"
KNOWN_S = 5.0  # a token is looked up again after this long: how soon a revocation is felt
MAX_KNOWN = 1024
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_API_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}
_LOGIN_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>trainvitals: log in</title>
<h1>Open the login link</h1>
<p>This server is reachable from other machines, so it wants to know you. It printed a link when it started;
each link works once, for an hour.</p>
<p>On the server's machine, <code>trainvitals token link</code> prints a new one.</p>
</html>
"""


def install(app: FastAPI, services: Services) -> None:
    """Put the gate before every route of `app` and add the login."""
    app.add_route(LOGIN_PATH, _login, methods=["GET"], include_in_schema=False)
    app.add_middleware(BodyLimit)  # behind the gate: who may not speak is not listened to
    app.add_middleware(Access, gate=Gate(services, HostRules(services.config, _machine_names())))


def needs_token(services: Services) -> bool:
    """Return whether a token is needed: beyond loopback, or where the settings name one."""
    return not services.config.is_loopback or services.config.token is not None


def login_link(services: Services) -> str | None:
    """Return a fresh link that lets one browser in, once; None where no token is needed. May block."""
    if not needs_token(services):
        return None
    now = services.clock()
    _, token = services.database.write(lambda c: tokens.create_token(c, "login", "login link", now)).result()
    return f"{services.config.base_url}{LOGIN_PATH}?token={token}"


def first_token(services: Services) -> str | None:
    """Return a new access token where one is needed and there is none yet: the first start. May block."""
    if services.config.is_loopback or services.config.token is not None:
        return None
    now = services.clock()

    def create(c: sqlite3.Connection) -> str | None:
        if any(token.kind == "access" for token in tokens.list_tokens(c)):
            return None
        return tokens.create_token(c, "access", "first start", now)[1]

    return services.database.write(create).result()


@dataclass(frozen=True, slots=True)
class _Known:
    token: Token
    until: float


class Gate:
    """The rules with what they need to know: names, tokens, and the tokens seen a moment ago."""

    def __init__(self, services: Services, rules: HostRules) -> None:
        self._services = services
        self._rules = rules
        self._needs_token = needs_token(services)
        self._known: dict[bytes, _Known] = {}
        own = services.config.token
        self._own_digest = None if own is None else tokens.digest(own)

    async def check(self, connection: HTTPConnection) -> None:
        """Let `connection` pass.

        Raises:
            Forbidden: if its Host or Origin is not ours.
            Unauthorized: if a token is needed and it has none that is valid.
        """
        # Not `connection.url`: that is put together from the Host header, which anybody writes as they like.
        if connection.scope["path"] in OPEN_PATHS:
            return
        bearer = _bearer(connection)
        if bearer is not None and await self._is_valid(bearer, "access"):
            return
        if bearer is not None and self._needs_token:
            raise Unauthorized("this token was revoked or never issued; `trainvitals token create` makes one")
        self._check_names(connection)
        if self._needs_token and connection.scope["path"] != LOGIN_PATH:
            await self._check_session(connection)

    async def has_session(self, connection: HTTPConnection) -> bool:
        """Return whether the browser is logged in."""
        token = connection.cookies.get(cookie_name(self._services))
        return token is not None and await self._is_valid(token, "session")

    def _check_names(self, connection: HTTPConnection) -> None:
        hosts = connection.headers.getlist("host")
        if len(hosts) != 1 or not self._rules.allows_host(hosts[0]):
            raise Forbidden(
                f"this server is not called {', '.join(hosts)[:100]!r}: name it in the setting public_url or"
                " allowed_hosts, or send a token"
            )
        if connection.scope["type"] == "http" and connection.scope["method"] in _SAFE_METHODS:
            return
        origins = connection.headers.getlist("origin")  # programs send none
        if not all(self._rules.allows_origin(origin) for origin in origins):
            raise Forbidden(f"pages from {', '.join(origins)[:100]!r} may not do this")

    async def _check_session(self, connection: HTTPConnection) -> None:
        if not await self.has_session(connection):
            raise Unauthorized(
                "a token is needed: send `Authorization: Bearer ...`, or open the link that the server"
                " printed"
            )

    async def _is_valid(self, text: str, kind: str) -> bool:
        digest = tokens.digest(text)
        if (
            self._own_digest is not None
            and kind == "access"
            and hmac.compare_digest(digest, self._own_digest)
        ):
            return True
        now = self._services.clock()
        known = self._known.get(digest)
        if known is None or now >= known.until:
            known = await self._look_up(text, digest, now)
        return known is not None and known.token.kind == kind and known.token.is_valid(now)

    async def _look_up(self, text: str, digest: bytes, now: float) -> _Known | None:
        token = await asyncio.to_thread(
            self._services.database.read, lambda c: tokens.find_token(c, text, now)
        )
        self._known.pop(digest, None)
        if token is None:
            return None
        if len(self._known) >= MAX_KNOWN:
            self._known.clear()
        self._known[digest] = known = _Known(token, now + KNOWN_S)
        if token.last_used_at is None or now - token.last_used_at >= TOUCH_S:
            await self._touch(token.token_id, now)
        return known

    async def _touch(self, token_id: str, now: float) -> None:
        try:
            self._services.database.write(lambda c: tokens.touch_token(c, token_id, now))
        except ServerError:
            return  # a full queue must not keep anybody out


class Access:
    """ASGI middleware: asks the gate, and adds the security headers to what is answered."""

    def __init__(self, app: ASGIApp, gate: Gate) -> None:
        self._app = app
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the connection through to the app, or refuse it."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        scope.setdefault("state", {})["gate"] = self._gate
        try:
            await self._gate.check(HTTPConnection(scope))
        except ServerError as error:
            await _refuse(error, scope, receive, send)
            return
        await self._app(scope, receive, _with_headers(scope, send))


async def _refuse(error: ServerError, scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket" and "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": 1008, "reason": error.message[:100]})
        return
    response = _refusal(error, HTTPConnection(scope))
    await response(scope, receive, _with_headers(scope, send))


def _refusal(error: ServerError, connection: HTTPConnection) -> Response:
    is_page = "text/html" in connection.headers.get("accept", "")
    if isinstance(error, Unauthorized) and is_page and connection.scope["type"] == "http":
        return _login_page()
    response = error_response(error)
    response.headers.update(_API_HEADERS)
    if isinstance(error, Unauthorized):
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


def _with_headers(scope: Scope, send: Send) -> Send:
    wanted = {**_HEADERS, **_API_HEADERS} if scope["path"].startswith("/api/") else _HEADERS

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in wanted.items():
                headers.setdefault(name, value)
        await send(message)

    return send_with_headers


async def _login(request: Request) -> Response:
    """Exchange the one-time token in the link for a cookie, and lead on so that it leaves the URL."""
    services, gate = services_of(request), request.scope["state"]["gate"]
    token, now = request.query_params.get("token", ""), services.clock()
    session = await asyncio.wrap_future(services.database.write(lambda c: tokens.use_login(c, token, now)))
    if session is None and not await gate.has_session(request):
        return _login_page()
    response = RedirectResponse("./", status_code=303, headers={"Cache-Control": "no-store"})
    if session is not None:
        response.set_cookie(
            cookie_name(services),
            session,
            max_age=int(SESSION_LIFE_S),
            httponly=True,
            samesite="lax",  # `strict` would keep out those who follow the link in an alert
            secure=request.scope["scheme"] == "https",
        )
    return response


def cookie_name(services: Services) -> str:
    """Return a name of this server's own: cookies do not tell the ports of one machine apart."""
    return "trainvitals_" + hashlib.sha256(str(services.database.path.resolve()).encode()).hexdigest()[:8]


def _login_page() -> Response:
    return HTMLResponse(_LOGIN_PAGE, status_code=401, headers=_API_HEADERS)


def _bearer(connection: HTTPConnection) -> str | None:
    scheme, _, token = connection.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" and token.strip() else None


def _machine_names() -> set[str]:
    name = socket.gethostname()  # not `getfqdn`: it asks a name server, and may wait for it
    return {name, f"{name}.local"}
