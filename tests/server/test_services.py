"""What the parts of one server share: readers, of which heavy reads leave some to the others."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from sqlite3 import Connection
from typing import TypeVar

import httpx2 as httpx
import pytest

from recorded import Recorder
from trainvitals_server.app import create_app
from trainvitals_server.config import Config
from trainvitals_server.services import HEAVY_READS, Services
from trainvitals_server.store.database import Database

T = TypeVar("T")
pytestmark = pytest.mark.anyio
TIMEOUT_S = 20.0
URL = "http://127.0.0.1:8765"


class SlowDatabase(Database):
    """A database on which each read takes until it is let go, while `is_slow`."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.is_slow = True
        self.let_go, self.begun = threading.Event(), threading.Semaphore(0)
        self.slow_reads = 0

    def read(self, query: Callable[[Connection], T]) -> T:
        def slow_query(connection: Connection) -> T:
            if self.is_slow:
                self.slow_reads += 1
                self.begun.release()
                assert self.let_go.wait(TIMEOUT_S)
            return query(connection)

        return super().read(slow_query)


@pytest.mark.parametrize("path", ["/series", "/export.csv"])
async def test_many_heavy_reads_leave_a_reader_to_the_others(tmp_path: Path, path: str) -> None:
    app = create_app(Config(host="127.0.0.1", port=8765, data=tmp_path / "app"))
    database = SlowDatabase(tmp_path / "slow.db")
    Recorder(database, run_id="run").steps([0, 1], {"loss": [1.0, 2.0]})
    services: Services = app.state.services
    app.state.services = replace(services, database=database)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=URL) as client:
        heavy = [asyncio.create_task(client.get(f"/api/v1/runs/run{path}")) for _ in range(24)]
        for _ in range(HEAVY_READS):
            assert await asyncio.to_thread(database.begun.acquire, timeout=TIMEOUT_S)
        database.is_slow = False
        try:
            light = await asyncio.wait_for(client.get("/api/v1/runs"), TIMEOUT_S / 2)
        finally:
            database.let_go.set()
        assert light.json()["total"] == 1
        assert database.slow_reads == HEAVY_READS
        assert [answer.status_code for answer in await asyncio.gather(*heavy)] == [200] * 24
    database.close()
    services.database.close()
