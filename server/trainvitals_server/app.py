"""create_app: which parts a server is made of, in which order they start and stop. Nothing else."""

from __future__ import annotations

import asyncio
import importlib
import importlib.metadata
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from trainvitals_server.alert.outbox import Outbox
from trainvitals_server.config import DATABASE_FILE, Config, data_directory
from trainvitals_server.fold import RunFold
from trainvitals_server.hub import Hub
from trainvitals_server.pipeline import Pipeline
from trainvitals_server.responses import JsonResponse, install_error_handlers
from trainvitals_server.services import Services
from trainvitals_server.store.alerts import enqueue_alerts
from trainvitals_server.store.database import Database

# Each has a `router` or an `install(app, services)`; pages come last, for they take every other path.
_PARTS = ("ingest", "health", "commands", "queries", "live", "alert.routes", "access", "pages")


def create_app(config: Config) -> FastAPI:
    """Return the server of `config`; its database is open, its threads start with its lifespan.

    Raises:
        ConfigError: if the database cannot be used.
    """
    services = _open_services(config)
    app = FastAPI(
        title="trainvitals",
        version=importlib.metadata.version("trainvitals"),
        default_response_class=JsonResponse,
        docs_url=None,  # FastAPI's pages load scripts from elsewhere
        redoc_url=None,
        lifespan=_lifespan,
    )
    app.state.services = services
    install_error_handlers(app)
    for name in _PARTS:
        _install(app, services, f"trainvitals_server.{name}")
    return app


def _install(app: FastAPI, services: Services, name: str) -> None:
    part = importlib.import_module(name)
    if hasattr(part, "install"):
        part.install(app, services)
    else:
        app.include_router(part.router)


def _open_services(config: Config) -> Services:
    folder = data_directory(config)
    folder.mkdir(parents=True, exist_ok=True)
    database = Database(folder / DATABASE_FILE)
    hub, outbox = Hub(), Outbox(database, config)
    pipeline = Pipeline(
        database,
        hub,
        config=config,
        new_fold=RunFold,
        load_fold=RunFold.load,
        enqueue_alerts=enqueue_alerts,
        wake_outbox=outbox.wake,
        clock=time.time,
    )
    return Services(config, database, hub, pipeline, outbox, time.time)


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    services: Services = app.state.services
    await services.outbox.start()
    await services.pipeline.start()
    try:
        yield
    finally:
        await services.pipeline.close()
        services.hub.close()
        await services.outbox.close()
        await asyncio.to_thread(services.database.close)
