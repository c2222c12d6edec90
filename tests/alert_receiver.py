"""A real HTTP receiver of webhooks, in a thread: answers what it is told to and keeps what came."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TIMEOUT_S = 10.0


@dataclass
class Received:
    """One request as it came over the socket."""

    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Receiver:
    """`answers` are used up one by one; then it says 204. `hold` keeps every answer back until it is set."""

    url: str
    received: queue.Queue[Received] = field(default_factory=queue.Queue)
    answers: queue.Queue[tuple[int, Mapping[str, str]]] = field(default_factory=queue.Queue)
    hold: threading.Event = field(default_factory=threading.Event)

    def take(self) -> Received:
        """Return the next request; waits for it."""
        return self.received.get(timeout=TIMEOUT_S)

    def answer(self, status: int, headers: Mapping[str, str] | None = None) -> None:
        """Answer the next request so."""
        self.answers.put((status, headers or {}))


@contextmanager
def receiver() -> Iterator[Receiver]:
    """Run a receiver on a free port of loopback."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            here.received.put(Received(self.path, headers, body))
            here.hold.wait(TIMEOUT_S)
            status, extra = here.answers.get() if not here.answers.empty() else (204, {})
            self.send_response(status)
            for name, value in {**extra, "content-length": "0"}.items():
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    here = Receiver(f"http://127.0.0.1:{server.server_port}/hook")
    here.hold.set()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield here
    finally:
        here.hold.set()
        server.shutdown()
        server.server_close()
        thread.join()
