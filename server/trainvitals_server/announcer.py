"""Announcer: tells those who listen what was committed: the pages, the board, the clients' own terminals.

Lives on the event loop. The board hears of a run that goes on once a second, of everything else at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol
from urllib.parse import quote

import msgspec

from trainvitals import wire
from trainvitals_server.batch import FrameRows, Readable, last_step
from trainvitals_server.detector import Changed
from trainvitals_server.incident import Incident
from trainvitals_server.speed import Speedometer
from trainvitals_server.stakes import stakes_of
from trainvitals_server.store import Store
from trainvitals_server.store.board import load_board_runs
from trainvitals_server.store.runs import StreamKey
from trainvitals_server.store.summaries import RunSummary

BOARD_S = 1.0
MAX_UNTOLD = 1024  # runs that changed while nobody looked

Notify = Callable[[wire.ServerFrame], None]

_log = logging.getLogger(__name__)


class Publisher(Protocol):
    """The live hub, as far as it is written to."""

    @property
    def browsers(self) -> int:
        """How many pages are open."""

    def publish_rows(self, run_id: str, rank: int, rows: Readable) -> None:
        """Show rows."""

    def publish_incident(self, incident: Incident) -> None:
        """Show an incident that is new or changed."""

    def publish_run(self, run: RunSummary) -> None:
        """Show how a run is."""

    def publish_gone(self, run_id: str) -> None:
        """Say that a run was deleted."""


class Announcer:
    """Everything that is said about a run, and who hears it."""

    def __init__(
        self,
        database: Store,
        hub: Publisher,
        *,
        base_url: str,
        wake_outbox: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self._database, self._hub, self._base_url = database, hub, base_url
        self._wake_outbox, self._clock = wake_outbox, clock
        self._speed = Speedometer()
        self._listeners: dict[StreamKey, list[Notify]] = {}
        self._changed: dict[str, None] = {}  # runs the board has not heard of yet
        self._gone: set[str] = set()  # runs deleted while the board was about to hear of them
        self._board: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to tell the board."""
        self._board = asyncio.create_task(self._tell_board(), name="trainvitals-board")

    async def close(self) -> None:
        """End."""
        if self._board is not None:
            self._board.cancel()
            await asyncio.gather(self._board, return_exceptions=True)

    def listen(self, key: StreamKey, notify: Notify) -> Callable[[], None]:
        """Send what a session's process should know to `notify`, until the returned function is called."""
        listeners = self._listeners.setdefault(key, [])
        listeners.append(notify)

        def stop() -> None:
            listeners.remove(notify)
            if not listeners:
                self._listeners.pop(key, None)

        return stop

    def rows(self, key: StreamKey, rows: FrameRows) -> None:
        """Show rows on the pages of their run."""
        self._hub.publish_rows(key.run_id, key.rank, rows)
        self._speed.note(key.run_id, last_step(rows.frame), self._clock())

    def incidents(self, changed: Changed) -> None:
        """Show incidents on the pages, tell the processes concerned, and let the alerts go."""
        for incident, change in changed:
            self._hub.publish_incident(incident)
            self.run(incident.run_id)
            if change != "updated" and incident.severity != "info" and not incident.late:
                self._tell_process(incident, is_worse=change == "worsened")
        self._wake_outbox()

    def run(self, run_id: str) -> None:
        """Tell the board, soon, how the run is."""
        self._changed[run_id] = None

    def gone(self, run_id: str) -> None:
        """Tell the board and the run's pages that it was deleted."""
        self._changed.pop(run_id, None)
        self._gone.add(run_id)
        self._hub.publish_gone(run_id)

    def command(self, run_id: str, command: wire.Command) -> None:
        """Hand a command to every process of the run that is connected."""
        for key, listeners in list(self._listeners.items()):
            if key.run_id == run_id:
                for notify in listeners:
                    notify(command)

    def steps_per_s(self, run_id: str) -> float | None:
        """Return how fast the run is just now, or None where nothing comes in."""
        return self._speed.steps_per_s(run_id, self._clock())

    def run_url(self, run_id: str) -> str:
        """Return the address of the run's page."""
        return f"{self._base_url}/runs/{quote(run_id, safe='')}"

    def _tell_process(self, incident: Incident, *, is_worse: bool) -> None:
        notice = wire.IncidentNotice(
            incident_id=incident.id,
            kind=incident.kind,
            severity=incident.severity,
            state=incident.state,
            onset_step=incident.onset_step,
            detected_step=incident.detected_step,
            verdict=incident.verdict,
            news="; ".join(filter(None, stakes_of(incident).values())) if is_worse else "",
            url=f"{self.run_url(incident.run_id)}?incident={quote(incident.id, safe='')}",
        )
        key = StreamKey(incident.run_id, incident.rank, incident.session_id)
        for notify in self._listeners.get(key, ()):
            notify(notice)

    async def _tell_board(self) -> None:
        while True:
            await asyncio.sleep(BOARD_S)
            try:
                await self._publish_changed()
            except Exception:
                _log.exception("telling the board failed")

    async def _publish_changed(self) -> None:
        if not self._hub.browsers and len(self._changed) <= MAX_UNTOLD:
            return  # whoever opens a page next is told then
        run_ids, self._changed = list(self._changed), {}
        self._gone.clear()
        if not run_ids:
            return
        found = await asyncio.to_thread(self._database.read, lambda c: load_board_runs(c, run_ids))
        for summary in found:
            if summary.run_id in self._gone:
                continue
            speed = self.steps_per_s(summary.run_id)
            self._hub.publish_run(msgspec.structs.replace(summary, steps_per_s=speed))
