"""Pipeline: the story of a frame. Stored, then acknowledged, shown and judged; incidents are told to people.

Lives on the event loop and never holds it: SQL runs in the writer's and the readers' threads, detectors in
theirs. Nothing is acknowledged or shown before it is committed.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from trainvitals import wire
from trainvitals_server.announcer import Announcer, Notify, Publisher
from trainvitals_server.batch import FrameRows, check_layers
from trainvitals_server.compactor import Compactor
from trainvitals_server.config import Config
from trainvitals_server.detector import Changed, Detector, EnqueueAlerts
from trainvitals_server.errors import Busy
from trainvitals_server.folding import Fold
from trainvitals_server.store import Store, runs, streams, summaries
from trainvitals_server.store.runs import Appended, StreamKey
from trainvitals_server.store.summaries import RunSummary
from trainvitals_server.watcher import Watcher

T = TypeVar("T")

MAX_PROMISE_S = 24 * 3600.0


@dataclass(slots=True, eq=False)
class Stream:
    """One open session, as its connection sees it."""

    key: StreamKey
    is_late: bool
    acked_seq: int
    stop_reason: str | None
    layouts: dict[int, tuple[wire.Layer, ...]] = field(default_factory=dict)


class Pipeline:
    """Takes frames in, lets incidents out. All methods belong to the event loop's thread."""

    def __init__(
        self,
        database: Store,
        hub: Publisher,
        *,
        config: Config,
        new_fold: Callable[[str], Fold],
        load_fold: Callable[[bytes], Fold],
        enqueue_alerts: EnqueueAlerts,
        wake_outbox: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self._database, self._config, self._clock = database, config, clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._announcer = Announcer(
            database, hub, base_url=config.base_url, wake_outbox=wake_outbox, clock=clock
        )
        self._compactor = Compactor(database, clock)
        self._detector = Detector(
            database,
            new_fold=new_fold,
            load_fold=load_fold,
            enqueue_alerts=enqueue_alerts,
            on_change=self._detected,
            clock=clock,
        )
        self._watcher = Watcher(database, enqueue_alerts=enqueue_alerts, on_change=self._watched, clock=clock)

    async def start(self) -> None:
        """Start to judge what is stored and what comes."""
        self._loop = asyncio.get_running_loop()
        self._detector.start()
        for part in (self._announcer, self._compactor, self._watcher):
            await part.start()

    async def close(self) -> None:
        """Stop, with every fold saved."""
        for part in (self._watcher, self._compactor, self._announcer):
            await part.close()
        await asyncio.to_thread(self._detector.close)

    async def open(self, hello: wire.Hello) -> Stream:
        """Open a session, or find it again.

        Raises:
            Busy, StorageFailed: nothing was opened.
        """
        now = self._clock()
        self._watcher.heard(StreamKey(hello.run_id, hello.rank, hello.session_id))
        stream = await self._write(lambda connection: _open(connection, hello, now))
        self._detector.wake(hello.run_id)
        self._announcer.run(hello.run_id)
        return stream

    async def accept(self, stream: Stream, frames: Sequence[wire.Sequenced]) -> Appended:
        """Store `frames` in order and return what became of them, once it is committed.

        Raises:
            Busy, StorageFailed: nothing was stored.
            NotFound: the run was deleted meanwhile.
        """
        self._watcher.heard(stream.key)
        taken, refusal = _checked(stream, frames)
        now, cap = self._clock(), self._config.max_series
        appended = await self._write(
            lambda connection: runs.append_frames(connection, *stream.key, taken, now, cap)
        )
        stream.acked_seq = appended.acked_seq
        if appended.stored:
            self._stored(stream, appended.stored)
        return appended if appended.reject else appended._replace(reject=refusal)

    def _stored(self, stream: Stream, frames: Sequence[wire.Sequenced]) -> None:
        for frame in frames:
            if isinstance(frame, wire.Layout):
                stream.layouts[frame.layout_id] = tuple(frame.layers)
            elif isinstance(frame, wire.Steps) and not stream.is_late:
                layers = stream.layouts.get(frame.layout_id, ())
                self._announcer.rows(stream.key, FrameRows(frame, layers))
        are_rows = all(isinstance(frame, wire.Steps) for frame in frames)
        self._detector.wake(stream.key.run_id, at_once=not are_rows)
        self._announcer.run(stream.key.run_id)

    def heartbeat(self, stream: Stream, heartbeat: wire.Heartbeat) -> None:
        """Note until when the session must be heard from again."""
        now = self._clock()
        promised_at = now + min(max(heartbeat.next_within_s, 0.0), MAX_PROMISE_S)
        self._watcher.heard(stream.key, promised_at)
        with contextlib.suppress(Busy):  # then frames are coming in, which says the same
            self._database.write(lambda c: runs.keep_promise(c, stream.key, promised_at, now))

    def listen(self, stream: Stream, notify: Notify) -> Callable[[], None]:
        """Say that the stream has a connection, for notices, until the returned function is called."""
        stop_listening = self._announcer.listen(stream.key, notify)
        self._watcher.joined(stream.key)

        def stop() -> None:
            stop_listening()
            self._watcher.left(stream.key)

        return stop

    async def request_stop(self, run_id: str, reason: str) -> None:
        """Ask the processes of a run to stop.

        Raises:
            NotFound: if there is no such run.
            Conflict: if it has ended.
        """
        await self._write(lambda connection: runs.request_stop(connection, run_id, reason))
        self._announcer.run(run_id)
        self._announcer.command(run_id, wire.Command(name="stop", reason=reason))

    async def patch(
        self, run_id: str, *, name: str | None, tags: Sequence[str] | None, notes: str | None
    ) -> RunSummary:
        """Change what a person may change of a run; return how it is now.

        Raises:
            NotFound: if there is no such run.
        """

        def change(connection: sqlite3.Connection) -> RunSummary:
            runs.patch_run(connection, run_id, name=name, tags=tags, notes=notes)
            return summaries.find_summaries(connection, [run_id])[0]

        summary = await self._write(change)
        self._announcer.run(run_id)
        return summary

    async def delete(self, run_id: str) -> None:
        """Forget a run and all that belongs to it.

        Raises:
            NotFound: if there is no such run.
        """
        await self._write(lambda connection: runs.delete_run(connection, run_id))
        self._detector.forget(run_id)
        self._announcer.gone(run_id)

    def steps_per_s(self, run_id: str) -> float | None:
        """Return how fast the run is just now, or None where nothing comes in."""
        return self._announcer.steps_per_s(run_id)

    def run_url(self, run_id: str) -> str:
        """Return the address of the run's page."""
        return self._announcer.run_url(run_id)

    async def _write(self, job: Callable[[sqlite3.Connection], T]) -> T:
        return await asyncio.wrap_future(self._database.write(job))

    def _detected(self, changed: Changed) -> None:
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop is closed: whoever listened is gone
            self._loop.call_soon_threadsafe(self._announcer.incidents, changed)

    def _watched(self, changed: Changed, run_ids: Iterable[str]) -> None:
        self._announcer.incidents(changed)
        for run_id in run_ids:
            self._announcer.run(run_id)


def _open(connection: sqlite3.Connection, hello: wire.Hello, now: float) -> Stream:
    key = StreamKey(hello.run_id, hello.rank, hello.session_id)
    acked_seq = runs.upsert_hello(connection, hello, now)
    reason = runs.stop_reason(connection, hello.run_id)
    return Stream(key, hello.late, acked_seq, reason, streams.load_layouts(connection, key))


def _checked(
    stream: Stream, frames: Sequence[wire.Sequenced]
) -> tuple[Sequence[wire.Sequenced], wire.Reject | None]:
    """Return the frames before the first that contradicts its layout, and its Reject."""
    layouts = dict(stream.layouts)
    for index, frame in enumerate(frames):
        if isinstance(frame, wire.Layout):
            layers = tuple(frame.layers)
            if layouts.setdefault(frame.layout_id, layers) != layers:
                return frames[:index], _redefinition(frame)
        elif isinstance(frame, wire.Steps):
            try:
                check_layers(frame, layouts.get(frame.layout_id, ()))
            except wire.MalformedFrame as error:
                reject = wire.Reject(code="malformed", message=str(error), seq=frame.seq)
                return frames[:index], reject
    return frames, None


def _redefinition(layout: wire.Layout) -> wire.Reject:
    # Rows that are stored already mean the layers it had before.
    text = f"layout {layout.layout_id} of this session has other layers; give new layers a new id"
    return wire.Reject(code="conflict", message=text, seq=layout.seq)
