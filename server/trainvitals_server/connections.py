"""Connections: how many there may be, and how long one may be open without asking for anything.

A browser or reporter that is cut off half-way leaves a connection that says nothing more; without an end to
them they would fill the process's table of files. Bodies have a deadline of their own, in `body_limit`.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_S = 30.0  # from the connection, or the first byte of a request, to the end of its header
MAX_FILES = 65_536  # more than that is never needed, and some platforms refuse to go higher
OTHER_FILES = 128  # for the database, the outbox and the log
FALLBACK_FILES = 512  # where the platform does not tell

if sys.platform != "win32":
    import resource


class PromptProtocol(H11Protocol):
    """uvicorn's HTTP; hangs up on who does not finish a header, or dribbles after the answer."""

    request_s = REQUEST_S
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Take bytes, and wait no more once the header is there."""
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """Wait again: for the next request, or the rest of a body that nobody wanted."""
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        super().connection_lost(exc)
        self._stop_watching()

    def _watch(self) -> None:
        if self.transport.is_closing() or not self._is_waiting():
            self._stop_watching()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(self.request_s, self._hang_up)

    def _is_waiting(self) -> bool:
        if self.conn.their_state is h11.IDLE:
            return True
        is_answered = self.cycle is not None and self.cycle.response_complete
        return is_answered and self.conn.their_state is h11.SEND_BODY

    def _stop_watching(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _hang_up(self) -> None:
        if self._is_waiting():
            self.timeout_keep_alive_handler()


def raise_file_limit() -> int:
    """Let this process open as many files as it may; return how many that is."""
    if sys.platform == "win32":
        return FALLBACK_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):  # macOS says "infinity" and means less
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_FILES if soft == resource.RLIM_INFINITY else soft


def connections_for(files: int) -> int:
    """Return how many connections a process that may open so many files can serve."""
    return max(files - OTHER_FILES, files // 2)
