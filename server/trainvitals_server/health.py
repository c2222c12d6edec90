"""Health: `/livez` says that the process answers, `/readyz` that it can take and keep frames."""

from __future__ import annotations

import asyncio
import sqlite3

from fastapi import APIRouter
from starlette.requests import Request

from trainvitals_server.errors import StorageFailed
from trainvitals_server.responses import JsonResponse
from trainvitals_server.services import services_of
from trainvitals_server.store import Store

WRITER_TIMEOUT_S = 5.0
CHECK_BYTES = 1 << 20  # beyond what the write-ahead log may have left over

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
        async with asyncio.timeout(WRITER_TIMEOUT_S):
            await _check_writer(database)
    except TimeoutError:
        raise StorageFailed(f"the writer did not commit within {WRITER_TIMEOUT_S:g} s") from None
    return JsonResponse({"status": "ok", "waiting_writes": database.waiting})


async def _check_writer(database: Store) -> None:
    await asyncio.wrap_future(database.write(_do_nothing))  # does the thread answer?
    if database.failure is None:
        return
    # The last write failed. Perhaps no client dares to try again, so we do, with as much as they send.
    await asyncio.wrap_future(database.write(_write_something))
    await asyncio.wrap_future(database.write(_remove_it))


def _do_nothing(_connection: sqlite3.Connection) -> None:
    pass


def _write_something(connection: sqlite3.Connection) -> None:
    connection.execute("CREATE TABLE IF NOT EXISTS write_check (bytes BLOB)")
    connection.execute("INSERT INTO write_check VALUES (zeroblob(?))", (CHECK_BYTES,))


def _remove_it(connection: sqlite3.Connection) -> None:
    connection.execute("DROP TABLE IF EXISTS write_check")
