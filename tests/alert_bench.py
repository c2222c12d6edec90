"""An outbox at work: real database, real receiver, and a clock that only the test moves."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from standardwebhooks import Webhook

from alert_receiver import Receiver, receiver
from alert_samples import INCIDENT, SECRET, add_run_and_endpoint, endpoint
from trainvitals_server.alert.outbox import Outbox
from trainvitals_server.config import Config
from trainvitals_server.incident import Incident
from trainvitals_server.store import alerts, outbox
from trainvitals_server.store.database import Database, Job

T = TypeVar("T")
CONFIG = Config(port=8765)


@dataclass
class Bench:
    """A database, an outbox, and a receiver that `hook1` leads to. `now` is the clock."""

    database: Database
    hook: Receiver
    outbox: Outbox
    now: float

    async def save(self, incident: Incident = INCIDENT, change: str = "new") -> int:
        """Do what the pipeline does when an incident was saved."""
        now = self.now
        count = await self.write(lambda c: alerts.enqueue_alerts(c, incident, change, now))
        self.outbox.wake()
        return count

    async def write(self, job: Job[T]) -> T:
        return await asyncio.wrap_future(self.database.write(job))

    async def take(self) -> tuple[dict[str, Any], dict[str, str]]:
        """Return the next message that arrived, verified, and its headers."""
        got = await asyncio.to_thread(self.hook.take)
        stamp = int(got.headers["webhook-timestamp"])
        return _verified(got.body, got.headers, stamp, self.now), got.headers

    async def settled(self) -> None:
        """Wait until nothing is due and every try that began is recorded."""
        async with asyncio.timeout(10):
            while await asyncio.to_thread(self.database.read, self._is_busy):
                await asyncio.sleep(0)

    def _is_busy(self, c: sqlite3.Connection) -> bool:
        due = outbox.next_due(c, [])
        found = outbox.list_messages(c, None, 100)
        return (due is not None and due <= self.now) or any(_is_on_its_way(message) for message in found)

    async def advance(self, seconds: float) -> None:
        self.now += seconds
        self.outbox.wake()
        await self.settled()

    def messages(self) -> list[dict[str, Any]]:
        return self.database.read(lambda c: outbox.list_messages(c, None, 100))


def _is_on_its_way(message: dict[str, Any]) -> bool:
    return bool(message["tries"]) and (
        not message["attempts"] or message["attempts"][-1]["try"] < message["tries"]
    )


def _verified(body: bytes, headers: dict[str, str], stamp: int, now: float) -> dict[str, Any]:
    assert abs(stamp - now) <= 1
    # The verifier compares with the wall clock, and ours stands still: let it sign, and compare.
    at = datetime.fromtimestamp(stamp, UTC)
    assert headers["webhook-signature"] == Webhook(SECRET).sign(headers["webhook-id"], at, body.decode())
    answer: dict[str, Any] = json.loads(body)
    return answer


@asynccontextmanager
async def running_bench(
    database: Database, config: Config = CONFIG, **fields: object
) -> AsyncIterator[Bench]:
    with receiver() as hook:
        bench = Bench(database, hook, None, now=1_800_000_000.0)  # type: ignore[arg-type]  # set below
        bench.outbox = new_outbox(bench, config)
        add = endpoint(hook.url, **fields)  # type: ignore[arg-type]  # fields of tests
        database.write(lambda c: add_run_and_endpoint(c, add)).result()
        await bench.outbox.start()
        try:
            yield bench
        finally:
            hook.hold.set()
            await bench.outbox.close()


def new_outbox(bench: Bench, config: Config = CONFIG) -> Outbox:
    return Outbox(bench.database, config, clock=lambda: bench.now, unit=lambda: 0.5)
