"""Worker: the sender's thread: drafts become frames, frames are kept, the server is talked to.

`step` does everything that is due and says when it must be called again; `run` is the loop around it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from dataclasses import replace as replace_fields
from functools import partial
from pathlib import Path
from random import Random

from msgspec.structs import replace

from trainvitals import wire
from trainvitals.backlog import MEMORY_BYTES, Backlog
from trainvitals.console import Callback, Console
from trainvitals.courier import Courier, Failure, Notice
from trainvitals.gate import Gate
from trainvitals.intake import Delivery, Draft, Intake
from trainvitals.rows import Rows, join, split, to_frame
from trainvitals.spool import MAX_BYTES, Spool, next_ordinal, session_directory
from trainvitals.transport import Transport

OFFLINE_BATCH_S = 0.25  # nobody is looking: fewer, larger frames
PERSIST_AFTER_S = 0.5  # what the server has not acknowledged by then goes to disk
SPOOL_RETRY_S = 2.0  # a full disk is not asked more often
GRACE_S = 5.0  # a server that restarts is back by then; nobody needs a line about it
LISTEN_S = 1.5  # after bad rows, for the incident that the server makes of them: a program may end at once
GIVE_UP_S = 2.0  # somebody waits, and the server was not there for so long: it will not come
TELL_AGAIN_S = 600.0
RETIRE_S = 30.0  # for the last frames of a sender that nobody holds any more

_UNSENDABLE = (ValueError, TypeError, IndexError, KeyError, OverflowError, RecursionError)

_log = logging.getLogger("trainvitals")


@dataclass(frozen=True, slots=True)
class Options:
    """What a sender was made with."""

    url: str
    spool_dir: Path
    transport: Transport
    callback: Callback | None = None
    on_command: Callable[[wire.Command], None] | None = None
    on_notice: Callable[[wire.IncidentNotice], None] | None = None  # in this thread: it only takes note
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
        self._widths: dict[int, int] = {}  # layers of each layout that was kept
        self._spool = Spool(
            session_directory(options.spool_dir, hello.run_id, hello.session_id),
            lambda: [self._head, *self._layouts],
            url=options.url,
            max_bytes=options.spool_bytes,
        )
        self._backlog = Backlog(self._spool, max_bytes=options.memory_bytes)
        self._gate = Gate(lambda: self._backlog.acked_seq)
        self.courier = Courier(
            self._backlog,
            options.transport,
            lambda: self._head,
            on_notice=self._notice,
            wake=intake.signal,
            salvage=self._salvage,
            random=options.random,
        )
        self._spool_retry_at = 0.0
        self._told: dict[str, float] = {}
        self._is_away_told = False
        self._batch_s = intake.batch_s
        self.has_failed = False
        self._retire_at = float("inf")
        self._was_finite = True
        self._listens_until = 0.0  # since rows turned bad that the server has said nothing of

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
            self.begin()
            deadline = 0.0
            while True:
                now = self._options.clock()
                delivery = self._intake.take(now)
                if delivery.is_news or now >= min(deadline, self._retire_at):
                    deadline = self.step(now, delivery)
                if delivery.is_closing or (delivery.is_retiring and self._may_retire(now)):
                    return
                self._wait(min(deadline, self._retire_at))
        except Exception:
            self.has_failed = True
            _log.exception("the sender failed; the training goes on without it")
        finally:
            self.end()

    def begin(self) -> None:
        """Count the session, unless somebody did; not in the caller's thread, for it is disk work."""
        if self._head:
            return
        hello = self._hello
        if hello.session_ordinal == 0:
            ordinal = next_ordinal(self._options.spool_dir, hello.run_id, hello.rank)
            hello = replace(hello, session_ordinal=ordinal)
        self._head = wire.encode(hello)

    def step(self, now: float, delivery: Delivery) -> float:
        """Do what is due at `now`; return when to call again at the latest."""
        self._frame(delivery.drafts, now)
        self._expect_news(delivery.drafts, now)
        if delivery.heartbeat is not None:
            self.courier.heartbeat(wire.encode(delivery.heartbeat))
        for ticket in self._intake.tickets:
            if ticket.tries is None:
                ticket.tries = self.courier.tries
                self.courier.retry_now(now)
        # While the training goes on, an ack wakes nobody: that would be one more turn of this thread for each
        # frame, in time that the training does not have to spare.
        self.courier.may_be_late = not self._intake.tickets and not delivery.is_retiring
        deadline = self.courier.step(now, may_open=not delivery.is_closing)
        is_connected = self.courier.is_connected
        self._intake.batch_s = self._batch_s if is_connected else OFFLINE_BATCH_S
        deadline = min(deadline, self._persist(now, is_connected))
        self._backlog.trim(self.courier.sent_seq)
        self._tell(now)
        return min(deadline, self._answer(now))

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
            fitting = [self._admitted(self._fitting(one, now)) for one in rows]
            pieces = [piece for joined in join(fitting) for piece in split(joined)]
        except _UNSENDABLE as error:
            if len(rows) > 1:  # one of them is wrong: the others need not go with it
                for one in rows:
                    self._frame_rows([one], now)
            else:
                self._invalid(rows, str(error), now)
            return
        for piece in pieces:
            try:
                frame = self._backlog.append(partial(to_frame, piece), now)
            except _UNSENDABLE as error:
                self._invalid([piece], str(error), now)
            else:
                self._gate.note(piece.columns, piece.layer_columns, frame.seq)

    def _fitting(self, rows: Rows, now: float) -> Rows:
        """Return `rows` without layer columns that fit no layout: the server would refuse the frame."""
        width = self._widths.get(rows.layout_id)
        if all(values.ndim == 2 and values.shape[1] == width for values, _ in rows.layer_columns.values()):
            return rows
        self._intake.count("layers_unknown", len(rows))
        self._once("layers", now, "cannot send the values of layers: they do not fit their layout")
        return replace_fields(rows, layer_columns={})

    def _admitted(self, rows: Rows) -> Rows:
        passing = self._gate.admit(rows)
        if passing is not rows:
            self._intake.count("series_cap", len(rows))
        return passing

    def _salvage(self, frame: wire.Steps) -> wire.Steps | None:
        kept = self._gate.salvage(frame)
        if kept is not None:
            self._intake.count("series_cap", frame.count)
        words = "the server takes no more series; is a metric named by its step? New ones are left out"
        self._once("series", self._options.clock(), words)
        return kept

    def _keep(self, draft: wire.Layout | wire.Event | wire.Bye | wire.Gap, now: float) -> None:
        def numbered(seq: int) -> wire.Sequenced:
            if isinstance(draft, wire.Gap):
                return replace(draft, seq=seq, last_seq=seq)
            return replace(draft, seq=seq)

        try:
            frame = self._backlog.append(lambda seq: _checked(numbered(seq)), now)
        except _UNSENDABLE as error:
            self._invalid([], str(error), now)
            return
        if isinstance(draft, wire.Layout):
            self._widths[draft.layout_id] = len(draft.layers)
            self._layouts.append(frame.payload)
            self._spool.remember(frame.payload)

    def _invalid(self, rows: Iterable[Rows], why: str, now: float) -> None:
        """Declare what cannot be put in a frame, and say why, once."""
        lost = [piece for piece in rows if len(piece)]
        count = sum(len(piece) for piece in lost)
        self._intake.count("invalid", max(count, 1))
        gap = wire.Gap(seq=1, last_seq=1, reason="invalid", steps_lost=count)
        first, last = (int(lost[0].steps[0]), int(lost[-1].steps[-1])) if lost else (-1, -1)
        if 0 <= first <= last <= wire.MAX_STEP:  # else the steps are what is wrong
            gap = replace(gap, first_step=first, last_step=last)
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

    def _expect_news(self, drafts: list[Draft], now: float) -> None:
        """Listen for a while when rows turn bad, if there is somebody to tell what the server says."""
        is_heard = self._options.console is not None or self._options.callback is not None
        for rows in drafts:
            if isinstance(rows, Rows):
                is_finite = rows.is_finite
                if is_heard and self._was_finite and not is_finite:
                    self._listens_until = now + LISTEN_S
                self._was_finite = is_finite

    def _answer(self, now: float) -> float:
        """Answer who waits, if there is an answer; return when there is one at the latest."""
        failure = self.courier.failure
        deadline = float("inf")
        for ticket in list(self._intake.tickets):
            if self._intake.is_empty and self._backlog.is_empty:
                if ticket.listens and now < self._listens_until:
                    deadline = min(deadline, self._listens_until)
                else:
                    self._intake.answer(ticket, True)
            elif failure is not None and ticket.tries is not None:
                hopeless_at = _hopeless_at(failure, self.courier.tries > ticket.tries)
                deadline = min(deadline, hopeless_at)
                if now >= hopeless_at:
                    self._intake.answer(ticket, False)
        return deadline

    def _may_retire(self, now: float) -> bool:
        """Return whether nothing can be done any more for a sender that nobody holds."""
        if self._retire_at == float("inf"):
            self._retire_at = now + RETIRE_S
        failure = self.courier.failure
        is_hopeless = failure is not None and now >= _hopeless_at(failure, was_tried=True)
        return self._backlog.is_empty or is_hopeless or now >= self._retire_at

    def _notice(self, notice: Notice) -> None:
        if isinstance(notice, wire.IncidentNotice):
            self._listens_until = 0.0
            if self._options.on_notice is not None:
                self._options.on_notice(notice)
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
            if self._is_away_told and self.courier.is_connected:
                self._is_away_told = False
                _log.warning("%s", f"back again: {self._options.url} gets what it missed")
            return
        was_there = self.courier.welcome_seq is not None
        if failure.trouble == "unreachable" and was_there and now - failure.since < GRACE_S:
            return
        if self._told.get(failure.trouble, -1.0) < failure.since:  # once for each outage
            self._is_away_told |= self._once(failure.trouble, now, self._words(failure))

    def _words(self, failure: Failure) -> str:
        kept = f"everything is kept in {self._spool.directory}"
        if self._spool.troubles:
            kept = f"the spool {self._spool.directory} cannot be written, so only the latest steps are kept"
        sync = f"trainvitals sync {self._options.spool_dir}"
        if failure.trouble == "unreachable" and self.courier.welcome_seq is not None:
            rows = (
                "only the latest steps are kept" if self._spool.troubles else "unsent rows are kept on disk"
            )
            return (
                f"lost the server at {self._options.url}; training goes on and {rows}. "
                f"It reconnects by itself; if the process ends first: `{sync}`"
            )
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

    def _tell_loss(self, steps: int) -> None:
        """Say what ends with this process, unless it goes on to report after all."""
        _log.warning(
            "%d steps are lost if the process ends now: %s has not taken them, and %s cannot be written",
            steps,
            self._options.url,
            self._spool.directory,
        )

    def _once(self, topic: str, now: float, words: str) -> bool:
        """Log a line, unless it was said lately; return whether it was."""
        if topic in self._told and now - self._told[topic] < TELL_AGAIN_S:
            return False
        self._told[topic] = now
        _log.warning("%s", words)
        return True

    def end(self) -> None:
        """Put what is left on disk and let everything go."""
        if not self._backlog.persist(float("inf")):
            self._tell_loss(self._backlog.unkept_steps())
        self.courier.close()
        self._spool.close()
        for ticket in list(self._intake.tickets):
            self._intake.answer(ticket, self._backlog.is_empty)


def _hopeless_at(failure: Failure, was_tried: bool) -> float:
    """Return when waiting for the server is no use any more."""
    if failure.trouble != "unreachable":
        return failure.since
    return failure.since + GIVE_UP_S if was_tried else float("inf")


def _checked(message: wire.Sequenced) -> wire.Sequenced:
    """Return `message` if the server can take it.

    Raises:
        wire.WireError: if it is beyond a limit.
    """
    wire.decode_client(wire.encode(message))
    return message
