"""Hub: who watches which run, and a bounded queue of what each browser must still be sent.

Lives on the event loop: none of its methods may be called from another thread, and none of them waits. Rows
are merged for some milliseconds and shown to all; a browser that cannot follow is told to read again
(`resync`) instead of being waited for. A browser that comes back is told what it missed, from a ring of
recent messages.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from trainvitals_server import codec
from trainvitals_server.batch import Readable
from trainvitals_server.errors import Busy, TooLarge
from trainvitals_server.incident import Incident
from trainvitals_server.live_message import Message, Note, Rows, group_by_layers, size_of
from trainvitals_server.store.summaries import RunSummary

ROWS_EVERY_S = 0.05  # 20 messages of rows a second: more than an eye or a chart can follow
QUEUE_MESSAGES = 256  # more than 10 s of one run: who is further behind reads again
MAX_BROWSERS = 512
MAX_SUBSCRIPTIONS = 64
RING_BYTES = 4 << 20  # for each run
RINGS_BYTES = 64 << 20  # for all of them


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a browser wants of one run; `rank` None means all ranks."""

    series: frozenset[str]
    rank: int | None = None


class Browser:
    """One open page. `next()` yields what to send it."""

    def __init__(self, queue_messages: int) -> None:
        self.runs: dict[str, Subscription] = {}
        self.is_board = False
        self.resyncs = 0
        self._limit = queue_messages
        self._queue: deque[str] = deque()
        self._is_closed = False
        self._news = asyncio.Event()

    @property
    def waiting(self) -> int:
        """How many messages are waiting to be sent."""
        return len(self._queue)

    def offer(self, text: str) -> bool:
        """Queue a message; False if there is no room for it."""
        if len(self._queue) >= self._limit:
            return False
        self._queue.append(text)
        self._news.set()
        return True

    def resync(self, cursor: int) -> None:
        """Forget what waits, and tell the page to read all that it shows again."""
        self.resyncs += 1
        self._queue.clear()
        watched: list[str | None] = [*self.runs, *([None] if self.is_board else [])]
        self._queue.extend(_resync(run_id, cursor) for run_id in watched)
        self._news.set()

    async def next(self) -> str | None:
        """Wait for the next message; None means that the hub has closed."""
        while not self._queue:
            if self._is_closed:
                return None
            self._news.clear()
            await self._news.wait()
        return self._queue.popleft()

    def close(self) -> None:
        """Let `next()` end once the queue is empty."""
        self._is_closed = True
        self._news.set()


@dataclass(slots=True)
class _Ring:
    """Recent messages of one run; those up to `forgotten` are not all there any more."""

    forgotten: int
    messages: deque[Message] = field(default_factory=deque)
    size: int = 0

    def append(self, message: Message) -> None:
        self.messages.append(message)
        self.size += message.size
        while self.size > RING_BYTES:
            oldest = self.messages.popleft()
            self.size -= oldest.size
            self.forgotten = oldest.cursor

    def after(self, cursor: int) -> Iterator[Message]:
        return (message for message in self.messages if message.cursor > cursor)


class Hub:
    """Passes on what is published to the browsers that subscribed to it."""

    def __init__(
        self,
        *,
        queue_messages: int = QUEUE_MESSAGES,
        rows_every_s: float = ROWS_EVERY_S,
        first_cursor: int | None = None,
    ) -> None:
        """Begin with `first_cursor`, by default the time: above every cursor of an earlier server."""
        self._first_cursor = time.time_ns() // 1_000_000 if first_cursor is None else first_cursor
        self._cursor = self._first_cursor
        self._queue_messages, self._rows_every_s = queue_messages, rows_every_s
        self._browsers: dict[Browser, None] = {}
        self._pending: dict[tuple[str, int], list[Readable]] = {}
        self._rings: OrderedDict[str, _Ring] = OrderedDict()
        self._rings_size = 0
        self._forgotten = self._first_cursor  # up to here, runs without a ring may have had messages
        self._is_closed = False

    @property
    def cursor(self) -> int:
        """The cursor of the latest message; what is committed after this was read comes with a higher one."""
        return self._cursor

    @property
    def browsers(self) -> int:
        """How many pages are open."""
        return len(self._browsers)

    def publish_rows(self, run_id: str, rank: int, rows: Readable) -> None:
        """Show rows that are committed, merged with those that come within the next milliseconds."""
        key = (run_id, rank)
        waiting = self._pending.get(key)
        if waiting is not None:
            waiting.append(rows)
        elif not self._is_closed:
            self._pending[key] = [rows]
            asyncio.get_running_loop().call_soon(self._flush, key)

    def publish_incident(self, incident: Incident) -> None:
        """Show an incident that is new or changed."""
        body = {"t": "incident", "run_id": incident.run_id, "incident": incident}
        self._publish(self._note(incident.run_id, body), for_board=True)

    def publish_run(self, run: RunSummary) -> None:
        """Show how a run is, to the board and to its own pages."""
        self._publish(self._note(run.run_id, {"t": "run", "run_id": run.run_id, "run": run}), for_board=True)

    def publish_gone(self, run_id: str) -> None:
        """Say that a run was deleted; rows of it that wait are not shown any more."""
        for key, waiting in self._pending.items():
            if key[0] == run_id:
                waiting.clear()
        self._publish(self._note(run_id, {"t": "gone", "run_id": run_id}), for_board=True)

    def join(self) -> Browser:
        """Return a new browser; call `leave` when it is gone.

        Raises:
            Busy: if there are too many, or the hub has closed.
        """
        if self._is_closed or len(self._browsers) >= MAX_BROWSERS:
            raise Busy(f"{len(self._browsers)} pages are open")
        browser = Browser(self._queue_messages)
        self._browsers[browser] = None
        browser.offer(_text({"t": "hello", "cursor": self._cursor}))
        return browser

    def leave(self, browser: Browser) -> None:
        """Forget a browser."""
        self._browsers.pop(browser, None)

    def subscribe(
        self, browser: Browser, run_id: str, wanted: Subscription, cursor: int | None = None
    ) -> None:
        """Show a run to a browser, from now on, or from what followed `cursor` on.

        Raises:
            TooLarge: if it has too many subscriptions.
        """
        if run_id not in browser.runs and len(browser.runs) >= MAX_SUBSCRIPTIONS:
            raise TooLarge(f"a page may watch {MAX_SUBSCRIPTIONS} runs")
        browser.runs[run_id] = wanted
        if cursor is None:
            return
        ring = self._rings.get(run_id)
        forgotten = self._forgotten if ring is None else ring.forgotten
        if not forgotten <= cursor <= self._cursor:
            self._send(browser, _resync(run_id, self._cursor))
            return
        for message in ring.after(cursor) if ring else ():
            if not self._send(browser, message.text_for(wanted.series, wanted.rank)):
                return

    def close(self) -> None:
        """Let every browser end."""
        self._is_closed = True
        for browser in self._browsers:
            browser.close()

    def _flush(self, key: tuple[str, int]) -> None:
        waiting = self._pending.pop(key)
        if not waiting or self._is_closed:
            return
        for parts in group_by_layers(waiting):
            self._cursor += 1
            self._publish(Rows(self._cursor, *key, parts, size_of(parts)))
        # Until then everything that comes is merged.
        self._pending[key] = []
        asyncio.get_running_loop().call_later(self._rows_every_s, self._flush, key)

    def _note(self, run_id: str, body: dict[str, object]) -> Note:
        self._cursor += 1
        return Note(self._cursor, run_id, _text({**body, "cursor": self._cursor}))

    def _publish(self, message: Message, for_board: bool = False) -> None:
        self._remember(message)
        for browser in self._browsers:
            wanted = browser.runs.get(message.run_id)
            if wanted is not None:
                self._send(browser, message.text_for(wanted.series, wanted.rank))
            elif for_board and browser.is_board and isinstance(message, Note):
                self._send(browser, message.text)

    def _send(self, browser: Browser, text: str | None) -> bool:
        if text is None or browser.offer(text):
            return True
        browser.resync(self._cursor)
        return False

    def _remember(self, message: Message) -> None:
        ring = self._rings.pop(message.run_id, None) or _Ring(self._forgotten)
        self._rings[message.run_id] = ring
        self._rings_size -= ring.size
        ring.append(message)
        self._rings_size += ring.size
        while self._rings_size > RINGS_BYTES and len(self._rings) > 1:
            _, quiet = self._rings.popitem(last=False)
            self._rings_size -= quiet.size
            self._forgotten = max(self._forgotten, quiet.messages[-1].cursor)


def _resync(run_id: str | None, cursor: int) -> str:
    return _text({"t": "resync", "run_id": run_id, "cursor": cursor})


def _text(body: dict[str, object]) -> str:
    return codec.dumps(body).decode()
