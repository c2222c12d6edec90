"""A relay before a real server that hurts what passes: message by message, as a bad network or proxy does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from random import Random
from typing import Literal

from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.sync.client import ClientConnection, connect
from websockets.sync.server import Server, ServerConnection, serve

Fault = Literal["slow", "refuses", "drops_acks", "closes", "holds_acks"]

DELAY_S = 0.02  # of each answer of a slow server
CLOSE_TIMEOUT_S = 0.1  # of a connection whose other end is cut off
FAULTS = 12  # so often; then it lets everything pass, or the test would not end


@dataclass(slots=True)
class Relay:
    """What the faults have done so far."""

    fault: Fault
    upstream: str  # where the real server takes frames
    faults: int = 0
    is_open: threading.Event = field(default_factory=threading.Event)  # no more faults
    has_struck: threading.Event = field(default_factory=threading.Event)
    url: str = ""
    _random: Random = field(default_factory=lambda: Random(7))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def happens(self, share: float) -> bool:
        """Return whether the fault strikes now, and count it."""
        with self._lock:
            if self.is_open.is_set() or self._random.random() >= share:
                return False
            self.faults += 1
            self.has_struck.set()
            if self.fault != "refuses" and self.faults >= FAULTS:
                self.is_open.set()
            return True

    def handle(self, connection: ServerConnection) -> None:
        """Pass messages on in both directions for as long as both ends are there."""
        with connect(self.upstream, compression=None, close_timeout=CLOSE_TIMEOUT_S) as server:
            server.send(connection.recv())
            connection.send(server.recv())  # it has been let in
            answers = threading.Thread(target=self._pass, args=(server, connection, self._answers))
            answers.start()
            self._pass(connection, server, self._asks)
            server.close()
            answers.join()

    def _pass(
        self,
        source: ServerConnection | ClientConnection,
        target: ServerConnection | ClientConnection,
        passes: Callable[[], bool | None],
    ) -> None:
        with suppress(ConnectionClosed):
            for message in source:
                verdict = passes()
                if verdict is None:  # what is under way is lost with the connection
                    source.socket.close()
                    break
                if verdict:
                    target.send(message)
        target.close()

    def _asks(self) -> bool | None:
        return None if self.fault == "closes" and self.happens(0.5) else True

    def _answers(self) -> bool | None:
        if self.fault == "slow":
            self.is_open.wait(DELAY_S)
        if self.fault == "holds_acks" and self.happens(1.0):
            self.is_open.wait()
        if self.fault == "drops_acks" and self.happens(0.8):
            return None if self.faults % 3 == 0 else False
        return None if self.fault == "closes" and self.happens(0.3) else True

    def refuse(self, connection: ServerConnection, request: Request) -> Response | None:
        """Answer the upgrade with an error for as long as that is the fault."""
        if self.fault != "refuses" or not self.happens(1.0):
            return None
        return connection.respond(HTTPStatus.INTERNAL_SERVER_ERROR, "no")


@contextmanager
def relaying(upstream: str, fault: Fault) -> Iterator[Relay]:
    """Run a relay for as long as the block lasts."""
    relay = Relay(fault, upstream)
    serving = partial(serve, relay.handle, "127.0.0.1", 0, process_request=relay.refuse)
    server: Server = serving(compression=None, close_timeout=CLOSE_TIMEOUT_S)
    with server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        relay.url = f"http://127.0.0.1:{server.socket.getsockname()[1]}"
        try:
            yield relay
        finally:
            relay.is_open.set()
            server.shutdown()
            thread.join()
