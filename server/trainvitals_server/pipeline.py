"""Pipeline: the story of a frame. Stored, then acknowledged, shown and judged; incidents are told to people.

Lives on the event loop and never holds it: SQL runs in the writer's and the readers' threads, detectors in
theirs. Nothing is acknowledged or shown before it is committed.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol, TypeVar
from urllib.parse import quote

import msgspec

from trainvitals import wire
from trainvitals_server.batch import Batch, from_frame
from trainvitals_server.compactor import Compactor
from trainvitals_server.config import Config
from trainvitals_server.detector import Changed, Detector, EnqueueAlerts
from trainvitals_server.errors import Busy
from trainvitals_server.folding import Fold
from trainvitals_server.incident import Incident
from trainvitals_server.speed import Speedometer
from trainvitals_server.store import runs, streams, summaries
from trainvitals_server.store.database import Database
from trainvitals_server.store.runs import Appended, StreamKey
from trainvitals_server.store.summaries import RunSummary
from trainvitals_server.watcher import Watcher

T = TypeVar("T")

BOARD_S = 1.0  # how often the board hears of a run that goes on
MAX_PROMISE_S = 24 * 3600.0

Notify = Callable[[wire.ServerFrame], None]


class Publisher(Protocol):
    """The live hub, as far as it is written to."""

    def publish_rows(self, run_id: str, rank: int, batch: Batch) -> None:
        """Show rows."""

    def publish_incident(self, incident: Incident) -> None:
        """Show an incident that is new or changed."""

    def publish_run(self, run: RunSummary) -> None:
        """Show how a run is."""


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
        database: Database,
        hub: Publisher,
        *,
        config: Config,
        new_fold: Callable[[str], Fold],
        load_fold: Callable[[bytes], Fold],
        enqueue_alerts: EnqueueAlerts,
        wake_outbox: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self._database, self._hub, self._config, self._clock = database, hub, config, clock
        self._wake_outbox = wake_outbox
        self._speed = Speedometer()
        self._listeners: dict[StreamKey, list[Notify]] = {}
        self._changed_runs: dict[str, None] = {}  # the board has not heard of them yet
        self._board: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._compactor = Compactor(database, clock)
        self._watcher = Watcher(
            database, enqueue_alerts=enqueue_alerts, on_change=self._announce_lives, clock=clock
        )
        self._detector = Detector(
            database,
            new_fold=new_fold,
            load_fold=load_fold,
            enqueue_alerts=enqueue_alerts,
            on_change=self._announce_from_thread,
            clock=clock,
        )

    async def start(self) -> None:
        """Start judging what is stored and what comes."""
        self._loop = asyncio.get_running_loop()
        self._detector.start()
        await self._compactor.start()
        await self._watcher.start()
        self._board = asyncio.create_task(self._tell_board())

    async def close(self) -> None:
        """Stop, with every fold saved."""
        if self._board is not None:
            self._board.cancel()
        await self._compactor.close()
        await self._watcher.close()
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
        self._changed_runs[hello.run_id] = None
        return stream

    async def accept(self, stream: Stream, frames: Sequence[wire.Sequenced]) -> Appended:
        """Store `frames` in order and return what became of them, once it is committed.

        Raises:
            Busy, StorageFailed: nothing was stored.
            NotFound: the run was deleted meanwhile.
        """
        taken, batches, malformed = _decode(stream, frames)
        now, key = self._clock(), stream.key
        self._watcher.heard(key)
        appended = await self._write(
            lambda connection: runs.append_frames(connection, *key, taken, now, self._config.max_series)
        )
        stream.acked_seq = appended.acked_seq
        self._follow(stream, appended.stored, batches, now)
        return appended if appended.reject else appended._replace(reject=malformed)

    def _follow(
        self,
        stream: Stream,
        stored: Sequence[wire.Sequenced],
        batches: Mapping[int, Batch],
        now: float,
    ) -> None:
        if not stored:
            return
        key = stream.key
        for frame in stored:
            if isinstance(frame, wire.Layout):
                stream.layouts[frame.layout_id] = tuple(frame.layers)
            elif isinstance(frame, wire.Steps) and not stream.is_late:
                batch = batches[frame.seq]
                self._hub.publish_rows(key.run_id, key.rank, batch)
                self._speed.note(key.run_id, int(batch.steps[-1]), now)
        self._detector.wake(key.run_id)
        self._changed_runs[key.run_id] = None

    def heartbeat(self, stream: Stream, heartbeat: wire.Heartbeat) -> None:
        """Note until when the session must be heard from again."""
        now = self._clock()
        promised_at = now + min(max(heartbeat.next_within_s, 0.0), MAX_PROMISE_S)
        self._watcher.heard(stream.key, promised_at)
        with contextlib.suppress(Busy):  # then frames are coming in, which says the same
            self._database.write(lambda c: runs.keep_promise(c, stream.key, promised_at, now))

    def listen(self, stream: Stream, notify: Notify) -> Callable[[], None]:
        """Send notices about the stream to `notify` until the function that is returned is called."""
        listeners = self._listeners.setdefault(stream.key, [])
        listeners.append(notify)
        self._watcher.joined(stream.key)

        def stop() -> None:
            listeners.remove(notify)
            self._watcher.left(stream.key)
            if not listeners:
                self._listeners.pop(stream.key, None)

        return stop

    async def request_stop(self, run_id: str, reason: str) -> None:
        """Ask the processes of a run to stop.

        Raises:
            NotFound: if there is no such run.
        """
        await self._write(lambda connection: runs.request_stop(connection, run_id, reason))
        self._changed_runs[run_id] = None
        for key, listeners in self._listeners.items():
            if key.run_id == run_id:
                for notify in listeners:
                    notify(wire.Command(name="stop", reason=reason))

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
        self._changed_runs[run_id] = None
        return summary

    async def delete(self, run_id: str) -> None:
        """Forget a run and all that belongs to it.

        Raises:
            NotFound: if there is no such run.
        """
        await self._write(lambda connection: runs.delete_run(connection, run_id))
        self._detector.forget(run_id)

    def steps_per_s(self, run_id: str) -> float | None:
        """Return how fast the run is just now, or None where nothing comes in."""
        return self._speed.steps_per_s(run_id, self._clock())

    def changed(self, run_id: str) -> None:
        """Tell the board about the run within a second."""
        self._changed_runs[run_id] = None

    def run_url(self, run_id: str) -> str:
        """Return the address of the run's page."""
        return f"{self._config.base_url}/runs/{quote(run_id, safe='')}"

    async def _write(self, job: Callable[[sqlite3.Connection], T]) -> T:
        future: Future[T] = self._database.write(job)
        return await asyncio.wrap_future(future)

    def _announce_from_thread(self, changed: Changed) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._announce, changed)

    def _announce_lives(self, changed: Changed, run_ids: Iterable[str]) -> None:
        self._announce(changed)
        self._changed_runs.update(dict.fromkeys(run_ids))

    def _announce(self, changed: Changed) -> None:
        for incident, change in changed:
            self._hub.publish_incident(incident)
            self._changed_runs[incident.run_id] = None
            if change != "updated" and incident.severity != "info" and not incident.late:
                self._tell_client(incident)
        self._wake_outbox()

    def _tell_client(self, incident: Incident) -> None:
        notice = wire.IncidentNotice(
            incident_id=incident.id,
            kind=incident.kind,
            severity=incident.severity,
            state=incident.state,
            onset_step=incident.onset_step,
            detected_step=incident.detected_step,
            verdict=incident.verdict,
            url=f"{self.run_url(incident.run_id)}?incident={quote(incident.id, safe='')}",
        )
        for key, listeners in self._listeners.items():
            if (key.run_id, key.rank) == (incident.run_id, incident.rank):
                for notify in listeners:
                    notify(notice)

    async def _tell_board(self) -> None:
        while True:
            await asyncio.sleep(BOARD_S)
            run_ids, self._changed_runs = list(self._changed_runs), {}
            if run_ids:
                await self._publish_runs(run_ids)

    async def _publish_runs(self, run_ids: Sequence[str]) -> None:
        found = await asyncio.to_thread(
            self._database.read, lambda connection: summaries.find_summaries(connection, run_ids)
        )
        for summary in found:
            speed = self.steps_per_s(summary.run_id)
            self._hub.publish_run(msgspec.structs.replace(summary, steps_per_s=speed))


def _open(connection: sqlite3.Connection, hello: wire.Hello, now: float) -> Stream:
    key = StreamKey(hello.run_id, hello.rank, hello.session_id)
    acked_seq = runs.upsert_hello(connection, hello, now)
    reason = runs.stop_reason(connection, hello.run_id)
    return Stream(key, hello.late, acked_seq, reason, streams.load_layouts(connection, key))


def _decode(
    stream: Stream, frames: Sequence[wire.Sequenced]
) -> tuple[Sequence[wire.Sequenced], dict[int, Batch], wire.Reject | None]:
    """Return the frames before the first that contradicts its layout, their rows, and its Reject."""
    layouts, batches = dict(stream.layouts), {}
    for index, frame in enumerate(frames):
        if isinstance(frame, wire.Layout):
            layouts[frame.layout_id] = tuple(frame.layers)
        elif isinstance(frame, wire.Steps):
            try:
                batches[frame.seq] = from_frame(frame, layouts.get(frame.layout_id, ()))
            except wire.MalformedFrame as error:
                reject = wire.Reject(code="malformed", message=str(error), seq=frame.seq)
                return frames[:index], batches, reject
    return frames, batches, None
