"""`trainvitals serve` with a clock in its event loop: how late the loop comes back to a task that sleeps.

python measured_server.py LAGS_FILE serve ...      writes the lags in seconds when it ends, as float64
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
from fastapi import FastAPI

from trainvitals_server import app, cli
from trainvitals_server.config import Config

SLEEP_S = 0.005


async def watch(lags: list[float]) -> None:
    """Note how much later than asked each sleep ends."""
    while True:
        asked = time.perf_counter() + SLEEP_S
        await asyncio.sleep(SLEEP_S)
        lags.append(time.perf_counter() - asked)


def measure(into: Path) -> None:
    """Let every app that is made from now on keep its lags and write them to `into`."""
    create = app.create_app

    def create_measured(config: Config) -> FastAPI:
        made = create(config)
        inside = made.router.lifespan_context

        @asynccontextmanager
        async def lifespan(served: FastAPI) -> AsyncIterator[None]:
            lags: list[float] = []
            task = asyncio.create_task(watch(lags))
            async with inside(served):
                yield
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            into.write_bytes(np.asarray(lags).tobytes())

        made.router.lifespan_context = lifespan
        return made

    app.create_app = create_measured


if __name__ == "__main__":
    measure(Path(sys.argv[1]))
    sys.exit(cli.main(sys.argv[2:]))
