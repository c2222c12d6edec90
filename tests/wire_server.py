"""A small server of the wire protocol, with faults, for the tests of the client."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from random import Random

from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection, serve

from trainvitals import wire
from trainvitals.transport import LinkError

FAULTS = ("close", "close_after", "no_ack", "lose", "busy")


class Store:
    """What the server keeps: frames by session, each once and in order."""

    def __init__(
        self, *, random: Random | None = None, fault_rate: float = 0.0, faults: Sequence[str] = FAULTS
    ) -> None:
        self.frames: dict[str, list[wire.Sequenced]] = {}
        self.hellos: list[wire.Hello] = []
        self.heartbeats: list[wire.Heartbeat] = []
        self.refuse: Callable[[wire.ClientFrame], wire.Reject | None] = lambda frame: None
        self.changed = threading.Condition()
        self.faults = 0
        self._random = random or Random(0)
        self._rate = fault_rate
        self._kinds = faults

    def acked(self, session_id: str) -> int:
        kept = self.frames.get(session_id, [])
        return end_of(kept[-1]) if kept else 0

    def stop_faults(self) -> None:
        self._rate = 0.0

    def answer(self, session_id: str, frame: wire.ClientFrame) -> list[wire.ServerFrame]:
        """Take one frame; raise LinkError where the connection is to break."""
        with self.changed:
            answers = self._answer(session_id, frame)
            self.changed.notify_all()
            return answers

    def _answer(self, session_id: str, frame: wire.ClientFrame) -> list[wire.ServerFrame]:
        if (reject := self.refuse(frame)) is not None:
            return [reject]
        if isinstance(frame, wire.Heartbeat):
            self.heartbeats.append(frame)
            return []
        fault = self._random.choice(self._kinds) if self._random.random() < self._rate else ""
        self.faults += bool(fault)
        if fault == "close":
            raise LinkError("fault")
        if isinstance(frame, wire.Hello):
            self.hellos.append(frame)
            return [wire.Welcome(acked_seq=self.acked(session_id))]
        if fault == "busy":
            return [wire.Reject(code="busy", message="fault", seq=frame.seq, retry_after_s=0.05)]
        if fault == "lose":
            return []
        if frame.seq > self.acked(session_id):
            if frame.seq != self.acked(session_id) + 1:
                expected = self.acked(session_id) + 1
                return [wire.Reject(code="seq_jump", message="", seq=frame.seq, expected_seq=expected)]
            self.frames.setdefault(session_id, []).append(frame)
        if fault == "close_after":
            raise LinkError("fault")
        return [] if fault == "no_ack" else [wire.Ack(acked_seq=self.acked(session_id))]

    def wait_for(self, is_true: Callable[[], bool], timeout_s: float = 20.0) -> None:
        with self.changed:
            assert self.changed.wait_for(is_true, timeout_s), "the server did not get it"

    def handler(self) -> Callable[[bytes], list[bytes]]:
        """Return what a MemoryTransport takes, for one session."""
        session = ["?"]

        def answer(message: bytes) -> list[bytes]:
            frame = wire.decode_client(message)
            if isinstance(frame, wire.Hello):
                session[0] = frame.session_id
            return [wire.encode(one) for one in self.answer(session[0], frame)]

        return answer


def end_of(frame: wire.Sequenced) -> int:
    """Return the last seq that a frame stands for."""
    return frame.last_seq if isinstance(frame, wire.Gap) else frame.seq


@contextmanager
def websocket_server(store: Store, *, status: int = 0, port: int = 0) -> Iterator[str]:
    """Serve `store` on a websocket; with a status, answer every upgrade with it instead."""

    def refuse(connection: ServerConnection, request: Request) -> Response | None:
        return connection.respond(HTTPStatus(status), "no") if status else None

    def handle(connection: ServerConnection) -> None:
        session = "?"
        for message in connection:
            assert isinstance(message, bytes)
            frame = wire.decode_client(message)
            if isinstance(frame, wire.Hello):
                session = frame.session_id
            try:
                for one in store.answer(session, frame):
                    connection.send(wire.encode(one))
            except LinkError:
                connection.socket.close()
                return

    with serve(handle, "127.0.0.1", port, process_request=refuse, compression=None) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.socket.getsockname()[1]}"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def http_server(
    store: Store,
    *,
    status: int = 200,
    path: str = "/api/v1/ingest",
    headers: Callable[[str | None], object] = lambda authorization: None,
) -> Iterator[str]:
    """Serve `store` by POST; every upgrade to a websocket is a GET that finds nothing."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            headers(self.headers["Authorization"])
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if status != 200 or self.path != path:
                self._respond(status if status != 200 else 404, b"")
                return
            answers: list[bytes] = []
            session = "?"
            for data in wire.split_packet(body):
                frame = wire.decode_client(data)
                if isinstance(frame, wire.Hello):
                    session = frame.session_id
                try:
                    answers += [wire.encode(one) for one in store.answer(session, frame)]
                except LinkError:
                    self.close_connection = True
                    return
            self._respond(200, wire.join_packet(answers))

        def do_GET(self) -> None:
            headers(self.headers["Authorization"])
            self._respond(404, b"")

        def _respond(self, code: int, body: bytes) -> None:
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
