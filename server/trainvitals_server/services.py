"""Services: the long-lived parts of one server, handed to every router as `request.app.state.services`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from starlette.requests import HTTPConnection

from trainvitals_server.config import Config
from trainvitals_server.store.database import Database

if TYPE_CHECKING:
    from trainvitals_server.alert.outbox import Outbox
    from trainvitals_server.hub import Hub
    from trainvitals_server.pipeline import Pipeline

# Series and exports that are read at one time: less than there are readers and threads, so that the board, a
# run's page and the detectors never wait behind them.
HEAVY_READS = 2


@dataclass(frozen=True, slots=True)
class Services:
    """What a route may use. `config.port` is the one in use, also where port 0 was asked for."""

    config: Config
    database: Database
    hub: Hub
    pipeline: Pipeline
    outbox: Outbox
    clock: Callable[[], float]  # unix seconds
    heavy_reads: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(HEAVY_READS))


def services_of(connection: HTTPConnection) -> Services:
    """Return the services of the server that took this request or websocket."""
    return cast(Services, connection.app.state.services)
