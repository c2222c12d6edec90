"""Worker: the sender's thread: drafts become frames, frames are kept, the server is talked to.

`step` does everything that is due and says when it must be called again; `run` is the loop around it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

from msgspec.structs import replace

from trainvitals import wire
from trainvitals.backlog import MEMORY_BYTES, Backlog
from trainvitals.console import Callback, Console
from trainvitals.courier import Courier, Failure, Notice
from trainvitals.intake import Delivery, Draft, Intake
from trainvitals.rows import Rows, join, split, to_frame
from trainvitals.spool import MAX_BYTES, Spool, next_ordinal, session_directory
from trainvitals.transport import Transport

OFFLINE_BATCH_S = 0.25  # nobody is looking: fewer, larger frames
PERSIST_AFTER_S = 0.5  # what the server has not acknowledged by then goes to disk
SPOOL_RETRY_S = 2.0  # a full disk is not asked more often
GRACE_S = 5.0  # a server that restarts is back by then; nobody needs a line about it
GIVE_UP_S = 2.0  # somebody waits, and the server was not there for so long: it will not come
TELL_AGAIN_S = 600.0

_log = logging.getLogger("trainvitals")


@dataclass(frozen=True, slots=True)
class Options:
    """What a sender was made with."""

    url: str
    spool_dir: Path
    transport: Transport
    callback: Callback | None = None
    on_command: Callable[[wire.Command], None] | None = None
    console: Console | None = None
    clock: Callable[[], float] = time.monotonic
    random: Random | None = None
    memory_bytes: int = MEMORY_BYTES
    spool_bytes: int = MAX_BYTES


class Worker:
    """Everything that the thread owns."""

    def __init__(self, hello: wire.Hello, intake: Intake, options: Options) -> None:
        self._intake = intake
        self._options = options
        self._hello = hello
        self._head = b""
        self._layouts: list[bytes] = []
        self._spool = Spool(
            session_directory(options.spool_dir, hello.run_id, hello.session_id),
            lambda: [self._head, *self._layouts],
            max_bytes=options.spool_bytes,
        )
        self._backlog = Backlog(self._spool, max_bytes=options.memory_bytes)
        self.courier = Courier(
            self._backlog,
            options.transport,
            lambda: self._head,
            on_notice=self._notice,
            wake=intake.signal,
            random=options.random,
        )
        self._spool_retry_at = 0.0
        self._told: dict[str, float] = {}
        self._batch_s = intake.batch_s
        self.has_failed = False

    @property
    def dropped(self) -> dict[str, int]:
        """What the backlog had to drop, by reason."""
        return dict(self._backlog.dropped)

    @property
    def is_done(self) -> bool:
        """Whether the server has everything."""
        return self._backlog.is_empty

    def run(self) -> None:
        """Work until the intake is closed, then keep what is left on disk."""
        try:
            self._begin()
            while True:
                now = self._options.clock()
                delivery = self._intake.take(now)
                deadline = self.step(now, delivery)
                if delivery.is_closing:
                    return
                self._wait(deadline)
        except Exception:
            self.has_failed = True
            _log.exception("the sender failed; the training goes on without it")
        finally:
            self._end()

    def _begin(self) -> None:
        """Count the session, unless somebody did; not in the caller's thread, for it is disk work."""
        if self._head:
            return
        hello = self._hello
        if hello.session_ordinal == 0:
            ordinal = next_ordinal(self._options.spool_dir, hello.run_id)
            hello = replace(hello, session_ordinal=ordinal)
        self._head = wire.encode(hello)

    def step(self, now: float, delivery: Delivery) -> float:
        """Do what is due at `now`; return when to call again at the latest."""
        self._frame(delivery.drafts, now)
        if delivery.heartbeat is not None:
            self.courier.heartbeat(wire.encode(delivery.heartbeat))
        for ticket in self._intake.tickets:
            if ticket.tries is None:
                ticket.tries = self.courier.tries
                self.courier.retry_now(now)
        deadline = self.courier.step(now, may_open=not delivery.is_closing)
        is_connected = self.courier.is_connected
        self._intake.batch_s = self._batch_s if is_connected else OFFLINE_BATCH_S
        deadline = min(deadline, self._persist(now, is_connected))
        self._backlog.trim(self.courier.sent_seq)
        self._tell(now)
        self._answer(now)
        return deadline

    def _wait(self, deadline: float) -> None:
        due = self._intake.due_at()
        deadline = deadline if due is None else min(deadline, due)
        timeout = None if deadline == float("inf") else deadline - self._options.clock()
        if timeout is None or timeout > 0:
            self._intake.wait(timeout)

    def _frame(self, drafts: list[Draft], now: float) -> None:
        rows: list[Rows] = []
        for draft in drafts:
            if isinstance(draft, Rows):
                rows.append(draft)
                continue
            self._frame_rows(rows, now)
            rows = []
            self._keep(draft, now)
        self._frame_rows(rows, now)

    def _frame_rows(self, rows: list[Rows], now: float) -> None:
        try:
            pieces = [piece for joined in join(rows) for piece in split(joined)]
        except (ValueError, TypeError, IndexError, KeyError) as error:
            self._invalid(rows, str(error), now)
            return
        for piece in pieces:
            try:
                self._backlog.append(partial(_steps, piece), now)
            except (ValueError, TypeError) as error:
                self._invalid([piece], str(error), now)

    def _keep(self, draft: wire.Layout | wire.Event | wire.Bye | wire.Gap, now: float) -> None:
        def numbered(seq: int) -> wire.Sequenced:
            if isinstance(draft, wire.Gap):
                return replace(draft, seq=seq, last_seq=seq)
            return replace(draft, seq=seq)

        try:
            frame = self._backlog.append(lambda seq: _checked(numbered(seq)), now)
        except (ValueError, TypeError) as error:
            self._invalid([], str(error), now)
            return
        if frame.kind == "layout":
            self._layouts.append(frame.payload)
            self._spool.remember(frame.payload)

    def _invalid(self, rows: Iterable[Rows], why: str, now: float) -> None:
        """Declare what cannot be put in a frame, and say why, once."""
        lost = [piece for piece in rows if len(piece)]
        count = sum(len(piece) for piece in lost)
        self._intake.count("invalid", max(count, 1))
        gap = wire.Gap(
            seq=1,
            last_seq=1,
            reason="invalid",
            first_step=int(lost[0].steps[0]) if lost else None,
            last_step=int(lost[-1].steps[-1]) if lost else None,
            steps_lost=count,
        )
        self._backlog.append(lambda seq: replace(gap, seq=seq, last_seq=seq), now)
        self._once("invalid", now, f"cannot send some of what was measured: {why}")

    def _persist(self, now: float, is_connected: bool) -> float:
        """Write what has waited long enough for its ack; return when the next is due."""
        if now < self._spool_retry_at:
            return self._spool_retry_at
        patience = PERSIST_AFTER_S if is_connected else 0.0
        if not self._backlog.persist(now - patience):
            self._spool_retry_at = now + SPOOL_RETRY_S
            return self._spool_retry_at
        return self._backlog.unkept_since() + patience

    def _answer(self, now: float) -> None:
        for ticket in list(self._intake.tickets):
            if self._intake.is_empty and self._backlog.is_empty:
                self._intake.answer(ticket, True)
            elif ticket.tries is not None and self._is_hopeless(ticket.tries, now):
                self._intake.answer(ticket, False)

    def _is_hopeless(self, tries: int, now: float) -> bool:
        failure = self.courier.failure
        if failure is None:
            return False
        if failure.trouble != "unreachable":
            return True
        return self.courier.tries > tries and now - failure.since >= GIVE_UP_S

    def _notice(self, notice: Notice) -> None:
        if isinstance(notice, wire.IncidentNotice):
            if self._options.console is not None:
                self._options.console.tell(notice, self._options.clock())
            if self._options.callback is not None:
                self._options.callback.call(notice)
        elif self._options.on_command is not None:
            try:
                self._options.on_command(notice)
            except Exception:
                _log.exception("on_command failed")

    def _tell(self, now: float) -> None:
        failure = self.courier.failure
        if failure is None:
            return
        was_there = self.courier.welcome_seq is not None
        if failure.trouble == "unreachable" and was_there and now - failure.since < GRACE_S:
            return
        self._once(failure.trouble, now, self._words(failure))

    def _words(self, failure: Failure) -> str:
        kept = f"everything is kept in {self._spool.directory}"
        if self._spool.troubles:
            kept = f"the spool {self._spool.directory} cannot be written, so only the latest steps are kept"
        sync = f"trainvitals sync {self._options.spool_dir} --url {self._options.url}"
        if failure.trouble == "unauthorized":
            return (
                f"{self._options.url} wants a valid token ({failure.message}); set TRAINVITALS_TOKEN. "
                f"Training goes on, {kept}; later: {sync}"
            )
        if failure.trouble == "protocol":
            return f"{self._options.url}: {failure.message}. Training goes on, {kept}; later: {sync}"
        return (
            f"cannot reach {self._options.url} ({failure.message}); start it with `trainvitals serve`. "
            f"Training goes on, {kept}; later: {sync}"
        )

    def _once(self, topic: str, now: float, words: str) -> None:
        """Log a line, unless it was said lately."""
        if topic not in self._told or now - self._told[topic] >= TELL_AGAIN_S:
            self._told[topic] = now
            _log.warning("%s", words)

    def _end(self) -> None:
        self._backlog.persist(float("inf"))
        self.courier.close()
        self._spool.close()
        for ticket in list(self._intake.tickets):
            self._intake.answer(ticket, self._backlog.is_empty)


def _steps(rows: Rows, seq: int) -> wire.Steps:
    frame = to_frame(rows, seq)
    _checked(frame)
    return frame


def _checked(message: wire.Sequenced) -> wire.Sequenced:
    """Return `message` if the server can take it.

    Raises:
        wire.WireError: if it is beyond a limit.
    """
    wire.decode_client(wire.encode(message))
    return message
