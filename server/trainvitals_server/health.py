"""Health: `/livez` says that the process answers, `/readyz` that it can take and keep frames."""

from __future__ import annotations

import asyncio
import sqlite3

from fastapi import APIRouter
from starlette.requests import Request

from trainvitals_server.errors import StorageFailed
from trainvitals_server.responses import JsonResponse
from trainvitals_server.services import services_of

WRITER_TIMEOUT_S = 5.0

router = APIRouter()


@router.get("/livez")
async def livez() -> JsonResponse:
    """The process is alive."""
    return JsonResponse({"status": "ok"})


@router.get("/readyz")
async def readyz(request: Request) -> JsonResponse:
    """The database can be written: 200; else 503 with the reason."""
    database = services_of(request).database
    try:
        await asyncio.wait_for(asyncio.wrap_future(database.write(_touch)), WRITER_TIMEOUT_S)
    except TimeoutError:
        raise StorageFailed(f"the writer did not commit within {WRITER_TIMEOUT_S:g} s") from None
    return JsonResponse({"status": "ok", "waiting_writes": database.waiting})


def _touch(connection: sqlite3.Connection) -> None:
    # Writes a page for good: a full disk shows here, not only when the next frame comes.
    connection.execute("CREATE TABLE IF NOT EXISTS probe (at REAL)")
