"""Watcher: asks every now and then who has not kept its promise, and stores and tells what that means.

It knows which sessions have a connection and when each was last heard, also where that could not be stored.
What it means is decided by `liveness`, which is pure.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from trainvitals_server.detector import Changed, EnqueueAlerts, save_changes
from trainvitals_server.errors import Busy, StorageFailed
from trainvitals_server.incident import Incident
from trainvitals_server.liveness import DEFAULT_PROMISE_S, Life, LifeState, state_of, watch
from trainvitals_server.store import Store, lives, streams
from trainvitals_server.store.lives import SessionRow
from trainvitals_server.store.runs import StreamKey

TICK_S = 2.0
LOOK_BACK_S = 3600.0  # sessions that ended longer ago are not looked at
# After a start nobody is judged before a client had time to find the server again: it tries every 30 s.
RECONNECT_S = 60.0
# A session that failed is judged once the detector has seen its last rows: they may hold the reason.
DETECTOR_S = 30.0  # but no longer than this
MAX_SIGNS = 10_000

# What a run is when its ranks differ: the first of these that one of them is.
_ORDER: Sequence[LifeState] = (
    "running", "stalled", "failed", "crashed", "interrupted", "stopped", "finished",
)  # fmt: skip

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Sign:
    """What this server has seen of a session. `is_connected` None: it came by POST, which says nothing."""

    heard_at: float
    promised_at: float | None = None
    connections: int = 0
    is_connected: bool | None = None
    left_at: float | None = None


class Watcher:
    """One task of the event loop, and what it must be told by the pipeline."""

    def __init__(
        self,
        database: Store,
        *,
        enqueue_alerts: EnqueueAlerts,
        on_change: Callable[[Changed, Iterable[str]], None],
        clock: Callable[[], float],
    ) -> None:
        self._database, self._enqueue_alerts = database, enqueue_alerts
        self._on_change, self._clock = on_change, clock
        self._started_at = clock()
        self._signs: OrderedDict[StreamKey, Sign] = OrderedDict()
        self._task: asyncio.Task[None] | None = None

    def heard(self, key: StreamKey, promised_at: float | None = None) -> None:
        """Note a word of a session, and until when it promised the next one."""
        now = self._clock()
        sign = self._signs.setdefault(key, Sign(now))
        self._signs.move_to_end(key)
        sign.heard_at = now
        sign.promised_at = promised_at or sign.promised_at
        if len(self._signs) > MAX_SIGNS:
            self._signs.popitem(last=False)

    def joined(self, key: StreamKey) -> None:
        """Note that a session has a connection."""
        self.heard(key)
        sign = self._signs[key]
        sign.connections += 1
        sign.is_connected = True

    def left(self, key: StreamKey) -> None:
        """Note that a connection of a session is gone."""
        sign = self._signs.get(key)
        if sign is not None:
            sign.connections -= 1
            sign.is_connected = sign.connections > 0
            sign.left_at = self._clock()

    async def start(self) -> None:
        """Begin to watch."""
        self._task = asyncio.create_task(self._run(), name="trainvitals-watcher")

    async def close(self) -> None:
        """End."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            try:
                await self._round(self._clock())
            except (Busy, StorageFailed) as error:
                _log.debug("watching waits: %s", error)
            except Exception:
                _log.exception("watching failed")

    async def _round(self, now: float) -> None:
        signs, started_at = dict(self._signs), self._started_at
        judgement = await asyncio.to_thread(
            self._database.read, lambda connection: judge(connection, signs, started_at, now)
        )
        if not judgement.changed and not judgement.states:
            return

        def save(connection: sqlite3.Connection) -> Changed:
            lives.save_states(connection, judgement.states)
            return save_changes(connection, judgement.changed, self._enqueue_alerts, now)

        self._on_change(await asyncio.wrap_future(self._database.write(save)), judgement.states)


class Judgement(NamedTuple):
    """Incidents that are new or changed, and the runs that are in another state than was stored."""

    changed: list[Incident]
    states: dict[str, str]


def judge(
    connection: sqlite3.Connection, signs: Mapping[StreamKey, Sign], started_at: float, now: float
) -> Judgement:
    """Return what is to be said at `now` of the sessions in the database."""
    rows = lives.watched_sessions(connection, now - LOOK_BACK_S)
    found = [_life(connection, row, signs.get(row.key), started_at, now) for row in rows]
    run_ids = {row.key.run_id for row in rows}
    judged = [life for life in found if not _is_unread(connection, life, now)]
    changed = watch(judged, lives.incidents_of_runs(connection, run_ids), now)
    return Judgement(changed, _states(rows, found, now))


def _is_unread(connection: sqlite3.Connection, life: Life, now: float) -> bool:
    if state_of(life, now) != "failed" or now - life.last_seen_at > DETECTOR_S:
        return False
    return not streams.has_folded(connection, StreamKey(life.run_id, life.rank, life.session_id))


def _life(
    connection: sqlite3.Connection, row: SessionRow, sign: Sign | None, started_at: float, now: float
) -> Life:
    last_seen_at = max(row.last_seen_at, sign.heard_at if sign else 0.0)
    promised_at = sign.promised_at if sign else None  # the latest counts, were it a shorter one
    if promised_at is None:
        promised_at = max(row.promised_at or last_seen_at + DEFAULT_PROMISE_S, started_at + RECONNECT_S)
    life = Life(
        *row.key,
        last_seen_at=last_seen_at,
        promised_at=promised_at,
        last_step=row.last_step,
        # A process that was started again is over, whatever became of it.
        status=row.status or ("interrupted" if row.is_superseded else None),
        is_connected=sign.is_connected if sign else None,
        left_at=sign.left_at if sign else None,
    )
    if state_of(life, now) in ("stalled", "crashed", "failed"):
        error, step = lives.bye_error(connection, row.key), lives.last_checkpoint_step(connection, row.key)
        return replace(life, error=error, last_checkpoint_step=step)
    return life


def _states(rows: Sequence[SessionRow], found: Sequence[Life], now: float) -> dict[str, str]:
    """Return the state of each run whose sessions, the latest of each rank, say another than is stored."""
    stored: dict[str, str] = {}
    said: dict[str, set[str]] = defaultdict(set)
    for row, life in zip(rows, found, strict=True):
        if not row.is_superseded:
            stored[life.run_id] = row.run_state
            said[life.run_id].add(state_of(life, now))
    states = {run_id: next(state for state in _ORDER if state in said[run_id]) for run_id in stored}
    return {run_id: state for run_id, state in states.items() if state != stored[run_id]}
