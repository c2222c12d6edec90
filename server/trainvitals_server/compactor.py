"""Compactor: turns judged frames into blocks, a bounded piece at a time, between the writes of the clients.

It never passes the detectors: a frame that the saved fold has not seen stays as it is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from trainvitals_server.errors import Busy, StorageFailed
from trainvitals_server.store import Store, streams
from trainvitals_server.store.blocks import compact
from trainvitals_server.store.runs import StreamKey

PAUSE_S = 2.0
LOOK_BACK_S = 60.0  # the detectors save their state some seconds after the last frame
MAX_COMPLAINTS = 100

_log = logging.getLogger(__name__)


class Compactor:
    """One task of the event loop. The work is done in the writer's thread."""

    def __init__(self, database: Store, clock: Callable[[], float]) -> None:
        self._database, self._clock = database, clock
        self._task: asyncio.Task[None] | None = None
        self._complaints: dict[str, None] = {}

    async def start(self) -> None:
        """Begin."""
        self._task = asyncio.create_task(self._run(), name="trainvitals-compactor")

    async def close(self) -> None:
        """End; a piece that was handed to the writer is finished by it."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        since = 0.0  # at first whatever an earlier server left
        while True:
            began_at = self._clock()
            try:
                await self._round(since)
                since = began_at - LOOK_BACK_S
            except (Busy, StorageFailed) as error:
                _log.debug("compaction waits: %s", error)
            except Exception as error:
                self._complain("any", error)
            await asyncio.sleep(PAUSE_S)

    async def _round(self, since: float) -> None:
        judged = await asyncio.to_thread(self._database.read, lambda c: streams.judged(c, since))
        for key, seq in judged:
            try:
                await self._compact(key, seq)
            except (Busy, StorageFailed):
                raise  # so it would be with the next one
            except Exception as error:  # its frames stay as they are; those of the others do not wait for it
                self._complain("/".join(map(str, key)), error)

    async def _compact(self, key: StreamKey, up_to_seq: int) -> None:
        while await asyncio.wrap_future(self._database.write(lambda c: compact(c, *key, up_to_seq))):
            pass

    def _complain(self, name: str, error: Exception) -> None:
        """Log the traceback, but not again every round."""
        problem = f"{name}: {error!r}"
        if problem in self._complaints:
            return
        _log.error("compaction failed: %s", problem, exc_info=error)
        self._complaints[problem] = None
        if len(self._complaints) > MAX_COMPLAINTS:
            self._complaints.clear()
