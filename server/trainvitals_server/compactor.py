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

_log = logging.getLogger(__name__)


class Compactor:
    """One task of the event loop. The work is done in the writer's thread."""

    def __init__(self, database: Store, clock: Callable[[], float]) -> None:
        self._database, self._clock = database, clock
        self._task: asyncio.Task[None] | None = None

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
            except Exception:
                _log.exception("compaction failed")
            await asyncio.sleep(PAUSE_S)

    async def _round(self, since: float) -> None:
        judged = await asyncio.to_thread(self._database.read, lambda c: streams.judged(c, since))
        for key, seq in judged:
            await self._compact(key, seq)

    async def _compact(self, key: StreamKey, up_to_seq: int) -> None:
        while await asyncio.wrap_future(self._database.write(lambda c: compact(c, *key, up_to_seq))):
            pass
