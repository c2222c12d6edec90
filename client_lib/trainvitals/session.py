"""Session: one reporting life of a run: its identity, its sender, and how it ended.

The sender and its thread come with the first thing that is sent; a copy of a session is a run of its own.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import os
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from trainvitals import wire
from trainvitals.identity import Identity
from trainvitals.sender import Sender
from trainvitals.spool import default_directory
from trainvitals.stay import Stay, lookout, stay_in_fit

Status = Literal["finished", "interrupted", "failed", "stopped"]

READ_REST_TIMEOUT_S = 2.0
MAX_REASON_CHARS = 200  # in a line on the terminal

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
        self.stop_reason = ""
        self.trouble_told = False  # the server has an open incident; whoever acts on it sets it back
        self._is_announced = False
        self._process = 0  # that opened it: a forked child must not touch TensorFlow
        self.is_open = False  # something was sent and no goodbye yet
        self.last_step: int | None = None  # of the last row that was sent
        self._stay: Stay | None = None  # in the `fit` that is reported
        self._read_rest: Callable[[], Callable[[], None] | None] = lambda: None
        self._on_incident = on_incident
        self._spool_dir = None if spool_dir is None else Path(spool_dir)
        self._console = console
        self._sender: Sender | None = None

    def __getstate__(self) -> dict[str, object]:
        """Leave out threads and sockets, and take a run id of its own."""
        return {
            **self.__dict__,
            "identity": self.identity.copy(),
            "stop_requested": False,
            "stop_reason": "",
            "trouble_told": False,
            "_is_announced": False,
            "is_open": False,
            "last_step": None,
            "_stay": None,
            "_sender": None,
            "_read_rest": None,
        }

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._read_rest = lambda: None

    def __del__(self) -> None:
        """Say goodbye for what was left by an exception and then forgotten."""
        with contextlib.suppress(Exception):  # the interpreter may be half gone
            self.leave()

    @property
    def spool_dir(self) -> Path:
        """Where what is not sent is kept."""
        return self._spool_dir or default_directory(os.environ)

    @property
    def sender(self) -> Sender:
        """The sender; made on first use."""
        return self._sender or self._connect(self.identity.hello())

    def _connect(self, hello: wire.Hello) -> Sender:
        self._sender = Sender(
            hello,
            url=self.identity.url,
            token=self.identity.token,
            spool_dir=self._spool_dir,
            on_incident=self._on_incident,
            on_command=_weak_command(self),
            on_notice=_weak_notice(self),
            console=self._console,
        )
        return self._sender

    def open(self, environment: wire.Environment, first_step: int = 0) -> None:
        """Begin to report, or go on after a goodbye; a life that was left without one ends first."""
        self.leave()
        if self._sender is None:
            resume_step = first_step or None
            self._connect(replace(self.identity.hello(resume_step), environment=environment))
        _open_sessions.add(self)
        _leave_at_exit()
        self.stop_requested = False
        self.is_open, self._process = True, os.getpid()
        self._stay = stay_in_fit(sys._getframe())
        if self._stay is not None:
            lookout.add(self)
        self._announce()
        if first_step:
            self.sender.event("resume", first_step, {"step": first_step})

    def _announce(self) -> None:
        """Say once where the run can be looked at; before the first progress bar, not into it."""
        if not self._is_announced:
            self._is_announced = True
            name = self.identity.name or f"run {self.identity.run_id}"
            self.sender.say(f"{name} -> {self.identity.dashboard_url}", is_below=False)

    def when_left(self, read_rest: Callable[[], None]) -> None:
        """Let `read_rest`, a method of whoever reports, be called before a goodbye that nobody else says."""
        self._read_rest = weakref.WeakMethod(read_rest)

    def read_rest(self) -> None:
        """Have the rows sent that an exception between two steps left unread."""
        read_rest = self._read_rest()
        if self.is_open and read_rest is not None and self._process == os.getpid():
            read_rest()

    def bye(self, status: Status, error: str = "") -> None:
        """Say how it ended; once for each `open`."""
        if self.is_open:
            self.is_open, self._stay = False, None
            lookout.discard(self)
            self.sender.bye(status, self.last_step, wire.clip(error, wire.MAX_TEXT_CHARS))
            if status == "stopped" and not error:  # else whoever stopped it has said so
                reason = wire.clip(self.stop_reason, MAX_REASON_CHARS).strip()
                self.sender.say("stopped from the page" + (f" ({reason})" if reason else ""))

    def leave(self, error: BaseException | None = None) -> None:
        """End a life that nobody ended; without an error all that is known is that it was left."""
        if error is None or isinstance(error, KeyboardInterrupt | SystemExit):
            self.bye("interrupted")
        else:
            self.bye("failed", f"{type(error).__name__}: {error}")

    def look(self) -> None:
        """Say goodbye where `fit` was left at a live prompt: Keras tells nobody."""
        stay = self._stay
        if stay is None or self._process != os.getpid() or not stay.is_over_for_good():
            return
        _within(READ_REST_TIMEOUT_S, self.read_rest)
        if self._stay is stay and stay.is_over():  # else the next `fit` has begun by now
            self.leave(stay.error())


_open_sessions: weakref.WeakSet[Session] = weakref.WeakSet()


def _weak_command(session: Session) -> Callable[[wire.Command], None]:
    reference = weakref.ref(session)

    def on_command(command: wire.Command) -> None:
        target = reference()
        if target is not None and command.name == "stop":
            target.stop_reason = command.reason
            target.stop_requested = True

    return on_command


def _weak_notice(session: Session) -> Callable[[wire.IncidentNotice], None]:
    reference = weakref.ref(session)

    def on_notice(notice: wire.IncidentNotice) -> None:
        target = reference()
        if target is not None and notice.state == "open" and notice.severity != "info":
            target.trouble_told = True

    return on_notice


def _within(timeout_s: float, action: Callable[[], None]) -> None:
    """Call `action` and wait so long at most: a device that hangs must not hold up the exit."""
    thread = threading.Thread(target=action, name="trainvitals-rest", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # Python from 3.12 on starts no threads here
        action()
    else:
        thread.join(timeout_s)


@functools.cache
def _leave_at_exit() -> None:
    """Register once, when something trains: what comes last goes first, so that TensorFlow is still there."""
    atexit.register(_leave_all)


def _leave_all() -> None:
    """Say goodbye for what the interpreter's end cuts off; the senders flush after this."""
    error = getattr(sys, "last_value", None)
    for session in list(_open_sessions):
        try:
            _within(READ_REST_TIMEOUT_S, session.read_rest)
            session.leave(error=error if isinstance(error, BaseException) else None)
        except Exception:
            _log.debug("no goodbye", exc_info=True)
