"""Session: one reporting life of a run: its identity, its sender, and how it ended.

The sender and its thread come with the first thing that is sent; a copy of a session is a run of its own.
"""

from __future__ import annotations

import atexit
import logging
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from trainvitals import wire
from trainvitals.identity import Identity
from trainvitals.sender import Sender

Status = Literal["finished", "interrupted", "failed", "stopped"]

_log = logging.getLogger("trainvitals")


class Session:
    """Holds the sender of a reporter. Not for several threads, but for `stop_requested`."""

    def __init__(
        self,
        identity: Identity,
        *,
        on_incident: Callable[[wire.IncidentNotice], None] | None = None,
        spool_dir: str | Path | None = None,
        console: bool = True,
    ) -> None:
        if on_incident is not None and not callable(on_incident):
            raise TypeError(f"on_incident must be callable, not {on_incident!r}")
        self.identity = identity
        self.stop_requested = False
        self.is_open = False  # something was sent and no goodbye yet
        self._on_incident = on_incident
        self._spool_dir = None if spool_dir is None else Path(spool_dir)
        self._console = console
        self._sender: Sender | None = None

    def __getstate__(self) -> dict[str, object]:
        """Leave out threads and sockets, and take a run id of its own."""
        fresh = {"identity": self.identity.copy(), "_sender": None, "is_open": False, "stop_requested": False}
        return {**self.__dict__, **fresh}

    @property
    def sender(self) -> Sender:
        """The sender; made on first use."""
        if self._sender is None:
            self._sender = Sender(
                self.identity.hello(),
                url=self.identity.url,
                token=self.identity.token,
                spool_dir=self._spool_dir,
                on_incident=self._on_incident,
                on_command=_weak_command(self),
                console=self._console,
            )
        return self._sender

    def open(self, environment: wire.Environment) -> None:
        """Begin to report, or go on after a goodbye; a life that was left without one ends first."""
        self.leave()
        if self._sender is None:
            self.sender.update_hello(environment)
            _open_sessions.add(self)
        self.stop_requested = False
        self.is_open = True

    def bye(self, status: Status, step: int | None, error: str = "") -> None:
        """Say how it ended; once for each `open`."""
        if self.is_open:
            self.is_open = False
            self.sender.bye(status, step, wire.clip(error, wire.MAX_TEXT_CHARS))

    def leave(self, step: int | None = None, error: BaseException | None = None) -> None:
        """End a life that nobody ended; without an error all that is known is that it was left."""
        if error is None or isinstance(error, KeyboardInterrupt | SystemExit):
            self.bye("interrupted", step)
        else:
            self.bye("failed", step, f"{type(error).__name__}: {error}")


_open_sessions: weakref.WeakSet[Session] = weakref.WeakSet()


def _weak_command(session: Session) -> Callable[[wire.Command], None]:
    reference = weakref.ref(session)

    def on_command(command: wire.Command) -> None:
        target = reference()
        if target is not None and command.name == "stop":
            target.stop_requested = True

    return on_command


@atexit.register
def _leave_all() -> None:
    """Say goodbye for what the interpreter's end cuts off; the senders flush after this."""
    error = getattr(sys, "last_value", None)
    for session in list(_open_sessions):
        try:
            session.leave(error=error if isinstance(error, BaseException) else None)
        except Exception:
            _log.debug("no goodbye", exc_info=True)
