"""Frames and conversations in one line each, for the tests of the server."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import numpy.typing as npt
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from trainvitals import wire

TIMEOUT_S = 20.0


def hello(run_id: str = "run", session_id: str = "s1", **fields: object) -> wire.Hello:
    """Return the Hello of a session."""
    return wire.Hello(run_id=run_id, session_id=session_id, **fields)  # type: ignore[arg-type]


def steps(seq: int, first_step: int, loss: npt.ArrayLike, **columns: npt.ArrayLike) -> wire.Steps:
    """Return rows of a loss, and of other series, from `first_step` on."""
    packed = {name: wire.Column.pack(values) for name, values in {"loss": loss, **columns}.items()}
    count = len(packed["loss"].data) // 8
    return wire.Steps(seq=seq, first_step=first_step, count=count, columns=packed)


class Client:
    """A websocket that speaks the wire protocol by hand; open within a `with` block."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._exit = contextlib.ExitStack()

    def __enter__(self) -> Client:
        opening = connect(self._url, compression=None, open_timeout=TIMEOUT_S)
        self._socket = self._exit.enter_context(opening)
        return self

    def __exit__(self, *_: object) -> None:
        self._exit.close()

    def send(self, *frames: wire.ClientFrame | bytes) -> None:
        """Send frames, or bytes that are none."""
        for frame in frames:
            self._socket.send(frame if isinstance(frame, bytes) else wire.encode(frame))

    def receive(self) -> wire.ServerFrame:
        """Return the next answer."""
        data = self._socket.recv(TIMEOUT_S)
        assert isinstance(data, bytes)
        return wire.decode_server(data)

    def ask(self, *frames: wire.ClientFrame | bytes) -> wire.ServerFrame:
        """Send frames and return the next answer."""
        self.send(*frames)
        return self.receive()

    def wait_for_ack(self, seq: int) -> None:
        """Read answers until everything up to `seq` is acknowledged."""
        while True:
            answer = self.receive()
            assert isinstance(answer, wire.Ack), answer
            if answer.acked_seq >= seq:
                return

    def until_closed(self) -> list[wire.ServerFrame]:
        """Return all answers until the server hangs up."""
        found = []
        with contextlib.suppress(ConnectionClosed):
            while True:
                found.append(self.receive())
        return found

    def closing_code(self) -> int:
        """Wait until the server hangs up; return the code it does so with."""
        with contextlib.suppress(ConnectionClosed):
            while True:
                self._socket.recv(TIMEOUT_S)
        code = self._socket.close_code
        assert code is not None
        return code


def packet(frames: Iterable[wire.ClientFrame | bytes]) -> bytes:
    """Return the body of a POST."""
    return wire.join_packet(f if isinstance(f, bytes) else wire.encode(f) for f in frames)


def answers(body: bytes) -> list[wire.ServerFrame]:
    """Return the frames of the answer to a POST."""
    return [wire.decode_server(frame) for frame in wire.split_packet(body)]
