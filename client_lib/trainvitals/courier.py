"""Courier: the conversation with the server about one backlog: what to send, what answers mean, when to try.

Shared by the live sender and by `sync`. It reads no clock (every call is told `now`) and sends only when
`step` is called; links run in threads of their own and put what they hear into the inbox.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Literal

from trainvitals import wire
from trainvitals.backlog import Backlog
from trainvitals.transport import Link, LinkError, Transport, Unauthorized

WINDOW_BYTES = 256 * 1024  # unacknowledged at once: fits socket buffers, so that a send does not block
FIRST_RETRY_S = 0.2
LAST_RETRY_S = 30.0
LONGEST_RETRY_S = 600.0  # however long a server, or whoever answers in its place, asks us to wait
RARE_RETRY_S = 60.0  # for what a person must mend first: a token, a version
HOLD_S = 0.1  # after a rejection: lets the answers to frames behind it come in before they are sent again
ACK_TIMEOUT_S = 20.0  # no answer for so long: the connection is dead, whatever TCP thinks
WELCOME_TIMEOUT_S = 15.0
_MESSAGE_CHARS = 300  # of what a server says, in a line on somebody's terminal
_ACK = wire.encode(wire.Ack(acked_seq=0))[:-1]  # how an ack begins, from a server that spells it as we do
_PERMANENT = frozenset({"malformed", "too_large", "series_cap", "conflict"})

Trouble = Literal["unreachable", "unauthorized", "protocol"]
Notice = wire.IncidentNotice | wire.Command


@dataclass(slots=True)
class Failure:
    """Why nothing arrives, and since when; told to the person once."""

    trouble: Trouble
    message: str
    since: float


@dataclass(slots=True)
class _Closed:
    error: LinkError | None


@dataclass(slots=True)
class _Talk:
    """One link and what is known about it."""

    link: Link
    inbox: deque[bytes | _Closed] = field(default_factory=deque)
    opened_at: float = 0.0
    is_welcomed: bool = False
    next_seq: int = 1
    heard_at: float = 0.0
    in_flight: deque[tuple[int, int]] = field(default_factory=deque)  # (last_seq, bytes)
    in_flight_bytes: int = 0
    amended: set[int] = field(default_factory=set)  # sent in full, then cut down to what the server takes
    is_patient: bool = False  # nothing can be done with an ack but to note it


class Courier:
    """Talks to one server about one session; one thread calls it."""

    def __init__(
        self,
        backlog: Backlog,
        transport: Transport,
        hello: Callable[[], bytes],
        *,
        on_notice: Callable[[Notice], None],
        wake: Callable[[], None],
        salvage: Callable[[wire.Steps], wire.Steps | None] = lambda frame: None,
        random: Random | None = None,
    ) -> None:
        self.failure: Failure | None = None
        self.tries = 0  # links that ended or failed
        self.dashboard_url = ""
        self.may_be_late = False  # nobody waits for acks: they are heard when `step` is called next
        self.sent_frames = 0
        self._backlog = backlog
        self._transport = transport
        self._hello = hello
        self._on_notice = on_notice
        self._wake = wake
        self._salvage = salvage
        self._random = random or Random()
        self._talk: _Talk | None = None
        self._retry_at = 0.0
        self._failures = 0
        self._hold_until = 0.0
        self._heartbeat: bytes | None = None
        self.welcome_seq: int | None = None  # what the server had when it first answered

    @property
    def is_connected(self) -> bool:
        """Return whether the server has answered our Hello on the present link."""
        return self._talk is not None and self._talk.is_welcomed

    @property
    def is_linking(self) -> bool:
        """Return whether a link is being opened."""
        return self._talk is not None and not self._talk.is_welcomed

    @property
    def sent_seq(self) -> int:
        """The highest seq that was sent on the present link, or is acknowledged."""
        return max(self._backlog.acked_seq, self._talk.next_seq - 1 if self._talk is not None else 0)

    def heartbeat(self, frame: bytes) -> None:
        """Send this when next possible; only the latest counts."""
        self._heartbeat = frame

    def retry_now(self, now: float) -> None:
        """Forget the back-off, once: somebody waits."""
        if self.failure is None or self.failure.trouble == "unreachable":
            self._retry_at = min(self._retry_at, now)

    def step(self, now: float, *, may_open: bool = True) -> float:
        """Do all that can be done at `now`; return when to call again at the latest."""
        talk = self._talk
        if talk is not None:
            talk.is_patient = False
        while talk is not None and talk is self._talk and talk.inbox:
            self._hear(talk, talk.inbox.popleft(), now)
        if self._talk is None:
            if not may_open or (self._backlog.is_empty and self._heartbeat is None):
                return float("inf")
            if now < self._retry_at:
                return self._retry_at
            self._open(now)
        talk = self._talk
        if talk is None:
            return self._retry_at
        if talk.is_welcomed and now >= self._hold_until:
            self._send(talk, now)
        deadline = self._deadline(talk, now)
        talk.is_patient = self.may_be_late and talk.is_welcomed and talk.next_seq > self._backlog.last_seq
        return deadline

    def close(self, *, abrupt: bool = False) -> None:
        """End the present link."""
        talk, self._talk = self._talk, None
        if talk is not None:
            talk.link.close(abrupt=abrupt)

    def _open(self, now: float) -> None:
        talk = _Talk(self._transport.link(), opened_at=now, heard_at=now)
        self._talk = talk
        thread = threading.Thread(
            target=_run, args=(talk, self._hello(), self._wake), name="trainvitals-link", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:  # the interpreter is shutting down
            self._lose(LinkError(str(error)), now)

    def _deadline(self, talk: _Talk, now: float) -> float:
        if self._talk is not talk:
            return self._retry_at
        if not talk.is_welcomed:
            limit = talk.opened_at + WELCOME_TIMEOUT_S
        elif talk.next_seq > self._backlog.acked_seq + 1:
            limit = talk.heard_at + ACK_TIMEOUT_S
        elif not self._backlog.is_empty:
            return max(self._hold_until, now)
        else:
            return float("inf")
        if now >= limit:
            self._lose(LinkError("the server does not answer"), now)
            return self._retry_at
        return min(limit, self._hold_until) if self._hold_until > now else limit

    def _hear(self, talk: _Talk, item: bytes | _Closed, now: float) -> None:
        if isinstance(item, _Closed):
            self._lose(item.error or LinkError("the server closed the connection"), now)
            return
        talk.heard_at = now
        try:
            message = wire.decode_server(item)
        except wire.WireError as error:
            self._lose(LinkError(f"an answer that cannot be read: {error}"), now)
            return
        if isinstance(message, wire.Welcome):
            self._welcome(talk, message)
        elif isinstance(message, wire.Ack):
            self._ack(talk, message.acked_seq)
        elif isinstance(message, wire.Reject):
            self._reject(talk, message, now)
        else:
            self._on_notice(message)

    def _welcome(self, talk: _Talk, message: wire.Welcome) -> None:
        self.failure = None
        self.dashboard_url = message.dashboard_url or self.dashboard_url
        if talk.is_welcomed:  # by POST every answer begins with one
            self._ack(talk, message.acked_seq)
            return
        talk.is_welcomed = True
        if self.welcome_seq is None:
            self.welcome_seq = message.acked_seq
        self._backlog.rewind(message.acked_seq + 1)
        self._ack(talk, message.acked_seq)
        talk.next_seq = self._backlog.acked_seq + 1

    def _ack(self, talk: _Talk, seq: int) -> None:
        if seq > self._backlog.acked_seq:
            self._failures = 0
        self._backlog.ack(seq)
        talk.amended = {one for one in talk.amended if one > seq}
        while talk.in_flight and talk.in_flight[0][0] <= seq:
            talk.in_flight_bytes -= talk.in_flight.popleft()[1]
        talk.next_seq = max(talk.next_seq, self._backlog.acked_seq + 1)

    def _reject(self, talk: _Talk, message: wire.Reject, now: float) -> None:
        if message.code in ("unauthorized", "protocol"):
            kind: Trouble = "unauthorized" if message.code == "unauthorized" else "protocol"
            self._lose(LinkError(message.message), now, kind)
            return
        if not talk.is_welcomed:
            self._refused(message, now)
            return
        if message.code == "seq_jump":
            expected = message.expected_seq or self._backlog.acked_seq + 1
            self._backlog.rewind(expected)
            self._go_back(talk, expected, now + HOLD_S)
        elif message.code in _PERMANENT:
            seq = message.seq or message.expected_seq or self._backlog.acked_seq + 1
            is_news = message.code == "series_cap" and self._amend(talk, seq)
            is_news = is_news or self._backlog.reject(seq, message.code)
            self._go_back(talk, seq, now + (HOLD_S if is_news else self._pause()))
        else:
            asked = _asked(message.retry_after_s)
            wait = self._pause() if asked is None else asked
            self._go_back(talk, self._backlog.acked_seq + 1, now + wait)

    def _amend(self, talk: _Talk, seq: int) -> bool:
        """Keep what can be kept of the frame `seq`, and of those sent behind it: all bring too much."""
        if seq in talk.amended:
            talk.amended.discard(seq)  # this is about the copy that was sent before
            return True
        if not self._backlog.amend(seq, self._salvage):
            return False
        for frame in self._backlog.frames_from(seq + 1):
            if frame.seq >= talk.next_seq:
                break
            if self._backlog.amend(frame.seq, self._salvage):
                talk.amended.add(frame.seq)
        return True

    def _refused(self, message: wire.Reject, now: float) -> None:
        """The Hello itself was not taken."""
        error = LinkError(f"the server refused this run: {message.message}")
        self._lose(error, now, "protocol" if message.code in _PERMANENT else "unreachable")
        asked = _asked(message.retry_after_s)
        if asked is not None:
            self._retry_at = now + asked

    def _go_back(self, talk: _Talk, seq: int, hold_until: float) -> None:
        talk.next_seq = min(talk.next_seq, seq)
        talk.in_flight.clear()
        talk.in_flight_bytes = 0
        # The frames behind a busy one are told that they jump: no reason to hurry.
        self._hold_until = max(self._hold_until, hold_until)

    def _send(self, talk: _Talk, now: float) -> None:
        batch = []
        for frame in self._backlog.frames_from(talk.next_seq):
            size = len(frame.payload)
            if talk.in_flight_bytes and talk.in_flight_bytes + size > WINDOW_BYTES:
                break
            if not talk.in_flight:
                talk.heard_at = now  # the clock of the ack starts when there is something to acknowledge
            talk.in_flight.append((frame.last_seq, size))
            talk.in_flight_bytes += size
            talk.next_seq = frame.last_seq + 1
            batch.append(frame.payload)
        count = len(batch)
        if self._heartbeat is not None:
            batch.append(self._heartbeat)
            self._heartbeat = None
        if not batch:
            return
        try:
            talk.link.send(batch)
            self.sent_frames += count
        except LinkError as error:
            self._lose(error, now)

    def _lose(self, error: LinkError, now: float, trouble: Trouble = "unreachable") -> None:
        """Give the link up and decide when to try again."""
        self.close(abrupt=True)
        self.tries += 1
        self._hold_until = 0.0
        if isinstance(error, Unauthorized):
            trouble = "unauthorized"
        if self.failure is None or self.failure.trouble != trouble:
            self.failure = Failure(trouble, wire.clip(str(error), _MESSAGE_CHARS), now)
        wait = self._pause() if trouble == "unreachable" else RARE_RETRY_S * self._random.uniform(0.5, 1.0)
        self._retry_at = now + max(wait, _asked(error.retry_after_s) or 0.0)

    def _pause(self) -> float:
        """Return how long to wait after one more failure: doubling, with jitter, so that clients spread."""
        pause = min(FIRST_RETRY_S * 2.0 ** min(self._failures, 16), LAST_RETRY_S)
        self._failures += 1
        return pause * self._random.uniform(0.5, 1.0)


def _asked(seconds: float | None) -> float | None:
    """Return how long we are asked to wait, within reason; None where nothing sensible is asked."""
    return None if seconds is None or math.isnan(seconds) else min(max(seconds, 0.0), LONGEST_RETRY_S)


def _run(talk: _Talk, hello: bytes, wake: Callable[[], None]) -> None:
    """Run a link to its end; everything it has to say goes through the inbox."""
    deliver = partial(_deliver, talk, wake)
    error: LinkError | None = None
    try:
        talk.link.run(hello, deliver)
    except LinkError as lost:
        error = lost
    except Exception as surprise:
        error = LinkError(f"{type(surprise).__name__}: {surprise}")
    talk.inbox.append(_Closed(error))
    wake()


def _deliver(talk: _Talk, wake: Callable[[], None], message: bytes) -> None:
    talk.inbox.append(message)
    if not (talk.is_patient and message.startswith(_ACK)):
        wake()
