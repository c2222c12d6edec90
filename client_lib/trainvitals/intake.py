"""Intake: the bounded queue between the training and the sender's thread.

Putting something in is a lock and an append. Rows leave at once when none have left for a while, else
together with those that come until then. When it is full the oldest rows in it go and a `Gap`
(`queue_full`) stands in their place; a layout never goes.
"""

from __future__ import annotations

import math
import threading
from collections import Counter, deque
from dataclasses import dataclass, field

from msgspec.structs import replace

from trainvitals import wire
from trainvitals.rows import Rows

# Rows leave no more often than this: a little less than the pause between two reads of the ring, so that what
# comes at that pace never waits.
BATCH_S = 0.08
MAX_ROWS = 65_536  # the thread empties the queue every 80 ms: bounds for a thread that cannot
MAX_BYTES = 64 << 20
MAX_ITEMS = 20_000

Draft = Rows | wire.Layout | wire.Event | wire.Bye | wire.Gap  # messages get their seq later


@dataclass(slots=True, eq=False)
class Ticket:
    """Somebody waits until everything is on the server; `result` says so, or that it will take longer.

    Who `listens` also waits a moment for what the server has to say of it.
    """

    result: bool | None = None
    tries: int | None = None
    listens: bool = False


@dataclass(slots=True)
class Delivery:
    """What the thread takes out at once."""

    drafts: list[Draft] = field(default_factory=list)
    heartbeat: wire.Heartbeat | None = None
    is_closing: bool = False
    is_retiring: bool = False
    is_news: bool = False  # there is a reason to act on it before the time that was agreed


class Intake:
    """Thread-safe; the training puts, one thread takes."""

    def __init__(
        self, *, max_rows: int = MAX_ROWS, max_bytes: int = MAX_BYTES, batch_s: float = BATCH_S
    ) -> None:
        self.dropped: Counter[str] = Counter()
        self.tickets: list[Ticket] = []
        self.batch_s = batch_s
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self._changed = threading.Condition()  # reentrant: a finalizer may close us from inside
        self._drafts: deque[Draft] = deque()
        self._rows = 0
        self._bytes = 0
        self._heartbeat: wire.Heartbeat | None = None
        self._oldest_at: float | None = None
        self._left_at = -math.inf  # when drafts were taken last
        self._is_signalled = False
        self._is_closing = False
        self._is_retiring = False
        self._was_finite = True

    def put(self, draft: Draft, now: float) -> None:
        """Add something; rows that turn non-finite, and anything that is no row, are not kept waiting."""
        is_urgent = not isinstance(draft, Rows)
        if isinstance(draft, Rows):
            is_finite = draft.is_finite
            is_urgent = self._was_finite and not is_finite
            self._was_finite = is_finite
        with self._changed:
            self._drafts.append(draft)
            if isinstance(draft, Rows):
                self._rows += len(draft)
                self._bytes += draft.nbytes
            while self._is_full() and self._drop_oldest():
                pass
            is_first = self._oldest_at is None
            if is_first:
                self._oldest_at = now
            self._is_signalled |= is_urgent
            if is_first or is_urgent:
                self._changed.notify_all()

    def beat(self, heartbeat: wire.Heartbeat) -> None:
        """Replace the heartbeat that is to be sent next."""
        with self._changed:
            self._heartbeat = heartbeat
            self._is_signalled = True
            self._changed.notify_all()

    def signal(self) -> None:
        """Wake the thread: there is something to hear, or to answer."""
        with self._changed:
            self._is_signalled = True
            self._changed.notify_all()

    def close(self) -> None:
        """Ask the thread to end."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()

    def retire(self) -> None:
        """Ask the thread to end once the server has everything: nobody is left to put something in."""
        with self._changed:
            self._is_retiring = True
            self._is_signalled = True
            self._changed.notify_all()

    def reopen(self) -> None:
        """Let a new thread begin."""
        with self._changed:
            self._is_closing = False

    def count(self, reason: str, rows: int) -> None:
        """Count rows that are lost."""
        with self._changed:
            self.dropped[reason] += rows

    def due_at(self) -> float | None:
        """Return when what is in the queue may leave."""
        with self._changed:
            return self._due_at()

    def wait(self, timeout_s: float | None) -> None:
        """Block the thread until something is urgent, the queue begins to fill, or the time is over."""
        with self._changed:
            if self._is_signalled or self._is_closing:
                return
            self._changed.wait(timeout_s)

    def take(self, now: float) -> Delivery:
        """Return what is due, and forget it; everything when something is urgent or the thread must end."""
        with self._changed:
            due_at = self._due_at()
            delivery = Delivery(
                heartbeat=self._heartbeat, is_closing=self._is_closing, is_retiring=self._is_retiring
            )
            is_urgent = self._is_signalled or self._is_closing or self._is_retiring or bool(self.tickets)
            delivery.is_news = is_urgent or (due_at is not None and now >= due_at)
            if delivery.is_news and self._drafts:
                delivery.drafts = list(self._drafts)
                self._drafts.clear()
                self._rows = self._bytes = 0
                self._oldest_at, self._left_at = None, now
            self._is_signalled = False
            self._heartbeat = None
            return delivery

    @property
    def is_empty(self) -> bool:
        """Return whether nothing waits here."""
        return not self._drafts

    def wait_for(self, ticket: Ticket, timeout_s: float) -> bool:
        """Block a caller until its ticket is answered; return the answer, False when the time is over."""
        with self._changed:
            self.tickets.append(ticket)
            self._is_signalled = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: ticket.result is not None, timeout_s)
            if ticket in self.tickets:
                self.tickets.remove(ticket)
            return bool(ticket.result)

    def answer(self, ticket: Ticket, result: bool) -> None:
        """Answer somebody who waits."""
        with self._changed:
            ticket.result = result
            if ticket in self.tickets:
                self.tickets.remove(ticket)
            self._changed.notify_all()

    def _due_at(self) -> float | None:
        return None if self._oldest_at is None else max(self._oldest_at, self._left_at + self.batch_s)

    def _is_full(self) -> bool:
        too_many = self._rows > self._max_rows or len(self._drafts) > MAX_ITEMS
        return too_many or self._bytes > self._max_bytes

    def _drop_oldest(self) -> bool:
        """Put a gap in the place of the oldest rows; of the oldest event where there are no rows."""
        drafts = self._drafts
        found = next((i for i, draft in enumerate(drafts) if isinstance(draft, Rows)), None)
        if found is None:
            found = next((i for i, draft in enumerate(drafts) if isinstance(draft, wire.Event)), None)
        if found is None:
            return False
        victim = drafts[found]
        gap = wire.Gap(seq=1, last_seq=1, reason="queue_full")
        if isinstance(victim, Rows):
            first, last = int(victim.steps[0]), int(victim.steps[-1])
            gap = replace(gap, first_step=first, last_step=last, steps_lost=len(victim))
            self._rows -= len(victim)
            self._bytes -= victim.nbytes
        self.dropped["queue_full"] += max(gap.steps_lost, 1)
        before = drafts[found - 1] if found else None
        if isinstance(before, wire.Gap) and before.reason == "queue_full":
            drafts[found - 1] = merged(before, gap)
            del drafts[found]
        else:
            drafts[found] = gap
        return True


def merged(first: wire.Gap, second: wire.Gap) -> wire.Gap:
    """Return one gap for two neighbours."""
    firsts = [gap.first_step for gap in (first, second) if gap.first_step is not None]
    lasts = [gap.last_step for gap in (first, second) if gap.last_step is not None]
    return replace(
        first,
        last_seq=max(first.last_seq, second.last_seq),
        first_step=min(firsts, default=None),
        last_step=max(lasts, default=None),
        steps_lost=first.steps_lost + second.steps_lost,
    )
