"""`trainvitals serve` with a clock in its event loop: how late the loop comes back to a task that sleeps.

python measured_server.py LAGS_FILE serve ...      writes the lags when it ends, see `bench.lag`
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI

from bench.lag import watched
from trainvitals_server import app, cli
from trainvitals_server.config import Config


def measure(into: Path) -> None:
    """Let every app that is made from now on keep its lags and write them to `into`."""
    create = app.create_app

    def create_measured(config: Config) -> FastAPI:
        made = create(config)
        inside = made.router.lifespan_context

        @asynccontextmanager
        async def lifespan(served: FastAPI) -> AsyncIterator[None]:
            async with watched(into), inside(served):
                yield

        made.router.lifespan_context = lifespan
        return made

    app.create_app = create_measured


if __name__ == "__main__":
    measure(Path(sys.argv[1]))
    sys.exit(cli.main(sys.argv[2:]))
