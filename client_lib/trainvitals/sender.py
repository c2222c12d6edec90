"""Sender: takes rows and events from the training, and sees to it that they reach the server.

The caller's side is a lock and an append (intake): it never blocks and never raises. One daemon thread
(worker), started by the first frame, does the rest: it makes frames, keeps them in memory and then on disk
(backlog, spool) until the server has committed them, and talks to the server (courier, transport).
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Literal

import numpy as np
from msgspec.structs import replace

from trainvitals import wire
from trainvitals.console import Callback, Console
from trainvitals.intake import Draft, Intake, Ticket
from trainvitals.rows import Rows
from trainvitals.spool import default_directory
from trainvitals.transport import NetworkTransport, Transport
from trainvitals.worker import Options, Worker

Status = Literal["finished", "interrupted", "failed", "stopped"]

CLOSE_TIMEOUT_S = 5.0
EXIT_TIMEOUT_S = 5.0  # for all senders of the process together
END_TIMEOUT_S = 2.0  # what the thread needs beyond that to write the rest to disk

_senders: weakref.WeakSet[Sender] = weakref.WeakSet()
_retiring: list[_Life] = []  # of senders that nobody holds any more and that are not done
_hooks = threading.Lock()
_has_hooks = False


@dataclass(slots=True)
class _Life:
    """What outlives a sender that nobody holds: `fit(callbacks=[...])` forgets its callbacks at once."""

    intake: Intake
    thread: threading.Thread | None = None

    @property
    def is_alive(self) -> bool:
        return self.thread is not None and self.thread.is_alive()

    def close(self, timeout_s: float) -> None:
        """Flush within `timeout_s`, then end the thread."""
        thread = self.thread
        if thread is None or not thread.is_alive():
            return
        deadline = time.monotonic() + timeout_s
        self.intake.wait_for(Ticket(listens=True), timeout_s)
        self.intake.close()
        if thread is not threading.current_thread():
            thread.join(max(deadline - time.monotonic(), 0.0) + END_TIMEOUT_S)


class Sender:
    """Sends the frames of one session; nothing happens before the first one.

    Raises:
        ValueError: if `url` is no server address.
    """

    def __init__(
        self,
        hello: wire.Hello,
        *,
        url: str,
        token: str | None = None,
        spool_dir: Path | None = None,
        transport: Transport | None = None,
        on_incident: Callable[[wire.IncidentNotice], None] | None = None,
        on_command: Callable[[wire.Command], None] | None = None,
        on_notice: Callable[[wire.IncidentNotice], None] | None = None,
        console: bool = True,
        random: Random | None = None,
    ) -> None:
        self._hello = hello
        self._options = Options(
            url=url,
            spool_dir=spool_dir or default_directory(os.environ),
            transport=transport or NetworkTransport(url, token),
            callback=Callback(on_incident) if on_incident is not None else None,
            on_command=on_command,
            on_notice=on_notice,
            console=Console(lambda: sys.stderr) if console else None,
            random=random,
        )
        self._lock = threading.Lock()
        self._intake = Intake()
        self._worker: Worker | None = None
        self._layout_id = 0
        self._is_inert = False
        self._life = _Life(self._intake)
        self._finalizer = weakref.finalize(self, _retire, self._life)
        self._finalizer.atexit = False
        _senders.add(self)
        _install_hooks()

    @property
    def dropped(self) -> dict[str, int]:
        """Return how many rows (or frames without rows) were dropped so far, by reason."""
        worker = self._worker
        return dict(Counter(self._intake.dropped) + Counter(worker.dropped if worker is not None else {}))

    @property
    def dashboard_url(self) -> str:
        """Return where the server says the run can be looked at; empty until it has answered."""
        return self._worker.courier.dashboard_url if self._worker is not None else ""

    def update_hello(self, environment: wire.Environment) -> None:
        """Replace the environment of the Hello; without effect once something was handed over."""
        if self._worker is None:
            self._hello = replace(self._hello, environment=environment)

    def layout(self, layers: Sequence[wire.Layer], environment: wire.Environment | None = None) -> int:
        """Announce the layers that later layer columns mean; return their layout_id."""
        with self._lock:
            self._layout_id += 1
            layout_id = self._layout_id
        named = [replace(layer, name=wire.clip(layer.name)) for layer in layers]
        self._put(wire.Layout(seq=1, layout_id=layout_id, layers=named, environment=environment))
        return layout_id

    def rows(self, rows: Rows) -> None:
        """Take rows of steps; the caller does not touch their arrays again."""
        if len(rows):
            self._put(rows)

    def event(self, kind: wire.EventKind, step: int, data: Mapping[str, object]) -> None:
        """Take something that happened once; values that no message can carry become text."""
        values = {wire.clip(str(key)): _plain(value) for key, value in data.items()}
        self._put(wire.Event(seq=1, step=step, kind=kind, time=time.time(), data=values))

    def lost(self, reason: str, first_step: int, last_step: int, steps_lost: int) -> None:
        """Declare rows that were lost before they got here."""
        self._intake.count(reason, steps_lost)
        self._put(
            wire.Gap(
                seq=1,
                last_seq=1,
                reason=reason,
                first_step=first_step,
                last_step=last_step,
                steps_lost=steps_lost,
            )
        )

    def heartbeat(self, next_within_s: float, activity: str = "training") -> None:
        """Promise when the server hears from us again; only the latest promise is sent."""
        if self._start():
            self._intake.beat(wire.Heartbeat(next_within_s=next_within_s, activity=activity))

    def say(self, line: str, *, is_below: bool = True) -> None:
        """Print a line in the user's terminal, unless the console is off."""
        if self._options.console is not None and not self._is_inert:
            self._options.console.say(line, self._options.clock(), is_below=is_below)

    def bye(self, status: Status, step: int | None, error: str = "") -> None:
        """Say how the session ended; a later frame revives it."""
        self._put(wire.Bye(seq=1, status=status, step=step, error=wire.clip(error, wire.MAX_TEXT_CHARS)))

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything is on the server; return whether it is.

        Returns False early when the server has not been there for a while: everything is in the spool then.
        """
        if self._is_inert or not self._life.is_alive:
            return self._intake.is_empty and (self._worker is None or self._worker.is_done)
        return self._intake.wait_for(Ticket(), timeout_s)

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Flush within `timeout_s`, spool the rest, stop the thread. May be called again."""
        if not self._is_inert:
            self._life.close(timeout_s)

    def _put(self, draft: Draft) -> None:
        if self._start():
            self._intake.put(draft, self._options.clock())

    def _start(self) -> bool:
        """See to it that the thread runs; return False when this sender does nothing any more."""
        if self._is_inert:
            return False
        if self._life.is_alive:
            return True
        with self._lock:
            return self._life.is_alive or self._launch()

    def _launch(self) -> bool:
        if self._worker is not None and self._worker.has_failed:
            self._is_inert = True
            return False
        try:
            if self._worker is None:
                self._worker = Worker(self._hello, self._intake, self._options)
            self._intake.reopen()
            thread = threading.Thread(target=self._worker.run, name="trainvitals-sender", daemon=True)
            thread.start()
            self._life.thread = thread
        except RuntimeError:  # no more threads, or the interpreter is shutting down
            self._is_inert = True
        return not self._is_inert

    def _after_fork(self) -> None:
        """Be inert in a forked child: the thread, the connection and the spool are the parent's."""
        self._is_inert = True
        self._finalizer.detach()
        self._lock = threading.Lock()
        self._intake = Intake()


def _plain(value: object, depth: int = 0) -> Any:  # noqa: ANN401 - the data of an event is free
    """Return `value` as what a message can carry: text is bounded, numpy numbers become Python's."""
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        return value if abs(value) < 2**63 else str(value)[: wire.MAX_NAME_CHARS]
    if isinstance(value, str):
        return wire.clip(value, wire.MAX_TEXT_CHARS)
    if isinstance(value, np.generic):
        return _plain(value.item(), depth)
    if isinstance(value, np.ndarray):
        return _plain(value.tolist(), depth)
    if depth < 8 and isinstance(value, Mapping):
        return {wire.clip(str(key)): _plain(item, depth + 1) for key, item in value.items()}
    if depth < 8 and isinstance(value, list | tuple):
        return [_plain(item, depth + 1) for item in value]
    try:
        return wire.clip(str(value), wire.MAX_TEXT_CHARS)
    except Exception:
        return type(value).__name__


def _install_hooks() -> None:
    """Arrange for what must happen at a fork, once, and not before there is a sender."""
    global _has_hooks
    with _hooks:
        if _has_hooks:
            return
        _has_hooks = True
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=_disarm_all)


@atexit.register  # at import, so that it runs after the goodbyes of whoever imports this
def _close_all() -> None:
    deadline = time.monotonic() + EXIT_TIMEOUT_S
    lives = [sender._life for sender in _senders if not sender._is_inert]
    for life in [*lives, *_retiring]:
        life.close(max(deadline - time.monotonic(), 0.0))


def _retire(life: _Life) -> None:
    """Let the thread of a forgotten sender finish its work."""
    _retiring[:] = [one for one in _retiring if one.is_alive]
    if life.is_alive:
        _retiring.append(life)
        life.intake.retire()


def _disarm_all() -> None:
    _retiring.clear()
    for sender in list(_senders):
        sender._after_fork()
