"""Transport: how frames get to the server and messages back: by websocket, or by POST where those fail.

A link is one try to talk to the server. `run` opens it and blocks, in a thread of its own, until it is over;
`send` and `close` are called from another. Nothing here knows what a frame means.

    LinkError
    +-- Unauthorized    401 or 403: another token is needed, trying again soon is no use
    +-- Overloaded      429 or 503: come back after `retry_after_s`
    +-- NoWebsocket     the way is there, but something on it refuses websockets
"""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import logging
import queue
import socket
import ssl
import struct
import sys
import threading
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from websockets.exceptions import InvalidStatus, WebSocketException
from websockets.sync.client import ClientConnection, connect

from trainvitals import wire

INGEST_PATH = "/api/v1/ingest"
OPEN_TIMEOUT_S = 10.0
SEND_TIMEOUT_S = 5.0  # a server that reads nothing for so long is as good as gone
CLOSE_TIMEOUT_S = 1.0
SEND_BUFFER_BYTES = 512 * 1024  # more than the sender ever has unacknowledged, so that a send does not block
_MAX_ANSWER_BYTES = 1 << 20

Deliver = Callable[[bytes], None]


class LinkError(Exception):
    """The link could not be opened, or was lost; the message says why."""

    retry_after_s: float | None = None


class Unauthorized(LinkError):
    """The server wants another token."""


class Overloaded(LinkError):
    """The server has no room now."""

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class NoWebsocket(LinkError):
    """The upgrade was answered with a status that a plain request might not get."""


class Link(Protocol):
    """One try to talk to the server."""

    def run(self, hello: bytes, deliver: Deliver) -> None:
        """Open, send `hello`, deliver every message until the link ends; raise LinkError when it breaks."""

    def send(self, frames: Sequence[bytes]) -> None:
        """Hand frames over, in order; raise LinkError when the link is gone."""

    def close(self, *, abrupt: bool = False) -> None:
        """End `run`; abrupt: without a good-bye, at once."""


class Transport(Protocol):
    """Makes links to one server."""

    def link(self) -> Link:
        """Return a new link; nothing is opened yet."""


class NetworkTransport:
    """Websocket first; POST of the same bytes while websockets are refused."""

    def __init__(self, url: str, token: str | None = None) -> None:
        self._url = ingest_url(url)
        self._token = token
        self._use_http = False

    def link(self) -> Link:
        """Return a link of the kind that worked, or else of the kind to try next."""
        return _Fallback(self)

    def open(self) -> Link:
        """Return the next link to run."""
        kind = HttpLink if self._use_http else WebsocketLink
        return kind(self._url, self._token)

    def refused(self) -> None:
        """Websockets do not get through: use POST from now on."""
        self._use_http = True

    def failed(self) -> None:
        """Whatever was tried does not work: begin with a websocket again."""
        self._use_http = False


class _Fallback:
    """Runs a websocket link, and a POST link in its place when the upgrade is refused."""

    def __init__(self, transport: NetworkTransport) -> None:
        self._transport = transport
        self._link = transport.open()
        self._is_closed = False

    def run(self, hello: bytes, deliver: Deliver) -> None:
        try:
            self._link.run(hello, deliver)
        except NoWebsocket:
            self._transport.refused()
            self._link = self._transport.open()
            if self._is_closed:
                return
            self._run_http(hello, deliver)
        except LinkError:
            self._transport.failed()
            raise

    def _run_http(self, hello: bytes, deliver: Deliver) -> None:
        try:
            self._link.run(hello, deliver)
        except LinkError:
            self._transport.failed()
            raise

    def send(self, frames: Sequence[bytes]) -> None:
        self._link.send(frames)

    def close(self, *, abrupt: bool = False) -> None:
        self._is_closed = True
        self._link.close(abrupt=abrupt)


class WebsocketLink:
    """One websocket connection."""

    def __init__(self, url: str, token: str | None = None) -> None:
        self._url = url
        self._token = token
        self._connection: ClientConnection | None = None
        self._is_closed = False

    def run(self, hello: bytes, deliver: Deliver) -> None:
        """Open, send `hello`, deliver every message until the connection ends."""
        try:
            with self._connect() as connection:
                _bound_sends(connection.socket)
                self._connection = connection
                if self._is_closed:
                    return
                connection.send(hello)
                for message in connection:
                    deliver(message if isinstance(message, bytes) else message.encode())
        except InvalidStatus as error:
            raise _status_error(
                error.response.status_code, error.response.headers.get("Retry-After")
            ) from error
        except (OSError, WebSocketException, ValueError) as error:
            if not self._is_closed:
                raise LinkError(_words(error)) from error
        if not self._is_closed:
            raise LinkError("the server closed the connection")

    def _connect(self) -> AbstractContextManager[ClientConnection]:
        parts = urllib.parse.urlsplit(self._url)
        return connect(
            urllib.parse.urlunsplit(parts._replace(scheme="wss" if parts.scheme == "https" else "ws")),
            compression=None,
            additional_headers=_headers(self._token),
            proxy=None if is_loopback(parts.hostname or "") else True,
            open_timeout=OPEN_TIMEOUT_S,
            ping_interval=None,  # silence is judged by missing acks; one thread less
            close_timeout=CLOSE_TIMEOUT_S,
            max_size=_MAX_ANSWER_BYTES,
            logger=logging.Logger("trainvitals.websocket", logging.CRITICAL + 1),  # the console is the user's
        )

    def send(self, frames: Sequence[bytes]) -> None:
        """Send each frame as one binary message."""
        connection = self._connection
        if connection is None:
            raise LinkError("not connected")
        try:
            for frame in frames:
                connection.send(frame)
        except (OSError, WebSocketException) as error:
            raise LinkError(_words(error)) from error

    def close(self, *, abrupt: bool = False) -> None:
        """Say good-bye, or cut the connection."""
        self._is_closed = True
        connection = self._connection
        if connection is None:
            return
        with contextlib.suppress(OSError, WebSocketException):  # it is closed already
            if abrupt:
                connection.socket.shutdown(socket.SHUT_RDWR)
            else:
                connection.close()


class HttpLink:
    """POST requests over one kept-alive connection; the answer carries the server's messages."""

    def __init__(self, url: str, token: str | None = None) -> None:
        parts = urllib.parse.urlsplit(url)
        self._parts = parts
        self._path = urllib.parse.urlunsplit(("", "", parts.path, parts.query, ""))
        self._headers = {**_headers(token), "Content-Type": "application/octet-stream"}
        self._packets: queue.SimpleQueue[list[bytes] | None] = queue.SimpleQueue()
        self._connection: http.client.HTTPConnection | None = None
        self._is_closed = False

    def run(self, hello: bytes, deliver: Deliver) -> None:
        """Post `hello`, then what `send` hands over, and deliver the answers."""
        self._connection = _http_connection(self._parts)
        try:
            self._post([hello], deliver)
            while (frames := self._packets.get()) is not None and not self._is_closed:
                self._post([hello, *frames], deliver)
        except (OSError, http.client.HTTPException, wire.WireError) as error:
            if not self._is_closed:
                raise LinkError(_words(error)) from error
        finally:
            self._connection.close()

    def _post(self, frames: list[bytes], deliver: Deliver) -> None:
        assert self._connection is not None
        self._connection.request("POST", self._path, wire.join_packet(frames), self._headers)
        response = self._connection.getresponse()
        body = response.read(_MAX_ANSWER_BYTES)
        if response.status != 200:
            raise _status_error(response.status, response.headers.get("Retry-After"), upgrade=False)
        for message in wire.split_packet(body):
            deliver(bytes(message))

    def send(self, frames: Sequence[bytes]) -> None:
        """Queue one request."""
        self._packets.put(list(frames))

    def close(self, *, abrupt: bool = False) -> None:
        """End after the request that is under way; abrupt: cut it off."""
        self._is_closed = self._is_closed or abrupt
        self._packets.put(None)
        sock = self._connection.sock if self._connection is not None else None
        if abrupt and sock is not None:
            with contextlib.suppress(OSError):  # it is closed already
                sock.shutdown(socket.SHUT_RDWR)


class MemoryTransport:
    """A server in this process, for tests: `answer` gets each message and returns the answers to it."""

    def __init__(self, answer: Callable[[bytes], Sequence[bytes]]) -> None:
        self._answer = answer

    def link(self) -> Link:
        """Return a new link to the server."""
        return MemoryLink(self._answer)


class MemoryLink:
    """Delivers answers from within `send`; an `answer` that raises LinkError breaks it."""

    def __init__(self, answer: Callable[[bytes], Sequence[bytes]]) -> None:
        self._answer = answer
        self._deliver: Deliver = lambda message: None
        self._closed = threading.Event()

    def run(self, hello: bytes, deliver: Deliver) -> None:
        """Answer `hello` and wait for the end."""
        self._deliver = deliver
        self.send([hello])
        self._closed.wait()

    def send(self, frames: Sequence[bytes]) -> None:
        """Answer each frame."""
        for frame in frames:
            for answer in self._answer(frame):
                self._deliver(answer)

    def close(self, *, abrupt: bool = False) -> None:
        """End `run`."""
        self._closed.set()


def ingest_url(url: str) -> str:
    """Return the address of the ingest below the server's `url`, which may have a path prefix.

    Raises:
        ValueError: if it is no http or https address.
    """
    parts = urllib.parse.urlsplit(url)
    scheme = {"ws": "http", "wss": "https"}.get(parts.scheme, parts.scheme)
    if scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url!r} is no server address; give one like http://127.0.0.1:8765")
    return urllib.parse.urlunsplit((scheme, parts.netloc, parts.path.rstrip("/") + INGEST_PATH, "", ""))


def is_loopback(host: str) -> bool:
    """Return whether `host` names this machine, which no proxy can reach."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _headers(token: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"} if token else {}


def _status_error(status: int, retry_after: str | None, *, upgrade: bool = True) -> LinkError:
    if status in (401, 403):
        return Unauthorized(f"the server answered {status}")
    if status in (429, 503):
        seconds = float(retry_after) if retry_after and retry_after.isdigit() else None
        return Overloaded(f"the server answered {status}", seconds)
    kind = NoWebsocket if upgrade else LinkError
    return kind(f"the server answered {status}")


def _http_connection(parts: urllib.parse.SplitResult) -> http.client.HTTPConnection:
    host = parts.hostname or ""
    proxy = None if is_loopback(host) or urllib.request.proxy_bypass(host) else _proxy(parts.scheme)
    at, port = (proxy.hostname or "", proxy.port) if proxy else (host, parts.port)
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        context = ssl.create_default_context()
        connection = http.client.HTTPSConnection(at, port, timeout=OPEN_TIMEOUT_S, context=context)
    else:
        connection = http.client.HTTPConnection(at, port, timeout=OPEN_TIMEOUT_S)
    if proxy:
        connection.set_tunnel(host, parts.port or (443 if parts.scheme == "https" else 80))
    return connection


def _proxy(scheme: str) -> urllib.parse.SplitResult | None:
    address = urllib.request.getproxies().get(scheme)
    return urllib.parse.urlsplit(address) if address else None


def _bound_sends(sock: socket.socket) -> None:
    """Let a send fail after a while instead of blocking for ever, without touching the reading side."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        if sys.platform == "win32":
            timeout = struct.pack("@I", int(SEND_TIMEOUT_S * 1000))
        else:
            timeout = struct.pack("@ll", int(SEND_TIMEOUT_S), 0)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeout)
    except OSError:
        pass  # a socket that cannot be told: the window alone keeps sends short


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__
