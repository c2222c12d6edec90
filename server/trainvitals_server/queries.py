"""Queries: what the page and scripts read: runs, one run, its series, its incidents, its raw rows.

Every read runs in a worker thread, and so does the spelling of a long answer. Those that may take long stand
in a queue of their own.
"""

from __future__ import annotations

import asyncio
import math
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Annotated, Any, TypeVar
from urllib.parse import quote

import msgspec
from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import StreamingResponse

from trainvitals import wire
from trainvitals_server import export
from trainvitals_server.answer import tell_answer
from trainvitals_server.errors import BadRequest
from trainvitals_server.responses import JsonResponse
from trainvitals_server.series import NEVER
from trainvitals_server.services import Services, services_of
from trainvitals_server.store.board import (
    RunFilter,
    count_incidents,
    load_board,
    load_sparkline,
    require_run,
)
from trainvitals_server.store.events import load_events
from trainvitals_server.store.export import ExportPlan, plan_export
from trainvitals_server.store.gaps import load_gaps
from trainvitals_server.store.incidents import list_incidents
from trainvitals_server.store.reading import DEFAULT_PIXELS, read_series
from trainvitals_server.store.summaries import PAGE, find_run

T = TypeVar("T")
Json = dict[str, Any]
MAX_NAMES = 64  # series of one answer
MAX_PIXELS = 10_000
Names = Annotated[str | None, Query(max_length=16_000)]
Rank = Annotated[int, Query(ge=0, le=wire.MAX_NUMBER)]

router = APIRouter(prefix="/api/v1/runs", tags=["runs"])


@router.get("")
async def list_runs(
    request: Request,
    project: str | None = None,
    group: str | None = None,
    state: str | None = None,
    tag: str | None = None,
    q: str | None = None,
    limit: Annotated[int, Query(ge=1, le=PAGE)] = PAGE,
    offset: Annotated[int, Query(ge=0, le=wire.MAX_NUMBER)] = 0,
) -> JsonResponse:
    """Runs that match, the newest first; `q` is a text in a name, id, project, group or tag."""
    services = services_of(request)
    wanted = RunFilter(project, group, state, tag, q)
    page = await _read(services, lambda connection: load_board(connection, wanted, limit, offset))
    speed = services.pipeline.steps_per_s
    runs = [msgspec.structs.replace(run, steps_per_s=speed(run.run_id)) for run in page.runs]
    return await _spell({"runs": runs, "total": page.total, "limit": limit, "offset": offset})


@router.get("/{run_id}")
async def get_run(request: Request, run_id: str) -> JsonResponse:
    """One run: the fields of the board, its environment, layers, sessions, names of series, gaps."""
    services = services_of(request)

    def query(connection: sqlite3.Connection) -> Json:
        return {
            **msgspec.structs.asdict(find_run(connection, run_id)),
            "incidents": count_incidents(connection, run_id),
            "sparkline": load_sparkline(connection, run_id),
            "gaps": load_gaps(connection, run_id),
        }

    found = await _read(services, query)
    return await _spell({**found, "steps_per_s": services.pipeline.steps_per_s(run_id)})


@router.get("/{run_id}/series")
async def get_series(
    request: Request,
    run_id: str,
    names: Names = None,
    first: Annotated[float | None, Query(alias="from")] = None,
    last: Annotated[float | None, Query(alias="to")] = None,
    pixels: Annotated[int, Query(ge=2, le=MAX_PIXELS)] = DEFAULT_PIXELS,
    rank: Rank = 0,
    session: str | None = None,
) -> JsonResponse:
    """Series over the steps `from` .. `to` (both included), raw where they are few, else in buckets."""
    services = services_of(request)
    start, stop = _steps(first, last)
    cursor = services.hub.cursor  # before the read: what comes after it is sent by the live socket

    def query(connection: sqlite3.Connection) -> JsonResponse:
        require_run(connection, run_id)
        wanted = _split(names) or _all_names(connection, run_id)
        answer = read_series(connection, run_id, wanted, start, stop, pixels, rank, session)
        return JsonResponse(tell_answer(answer, cursor))

    return await _read_heavy(services, query)


@router.get("/{run_id}/incidents")
async def get_incidents(request: Request, run_id: str) -> JsonResponse:
    """The incidents of a run, in order of detection."""

    def query(connection: sqlite3.Connection) -> JsonResponse:
        require_run(connection, run_id)
        return JsonResponse({"incidents": list_incidents(connection, run_id)})

    return await _read(services_of(request), query)


@router.get("/{run_id}/events")
async def get_events(
    request: Request, run_id: str, kind: wire.EventKind | None = None, rank: Rank = 0
) -> JsonResponse:
    """What happened once, in order of time: ends of epochs, validations, checkpoints, messages."""

    def query(connection: sqlite3.Connection) -> JsonResponse:
        require_run(connection, run_id)
        return JsonResponse({"events": load_events(connection, run_id, rank, kind)})

    return await _read(services_of(request), query)


@router.get("/{run_id}/export.csv")
async def export_csv(request: Request, run_id: str, names: Names = None, rank: Rank = 0) -> StreamingResponse:
    """Every raw row of the main line; a missing value is an empty cell."""
    return await _export(request, run_id, names, rank, export.write_csv, "text/csv; charset=utf-8", "csv")


@router.get("/{run_id}/export.jsonl")
async def export_jsonl(
    request: Request, run_id: str, names: Names = None, rank: Rank = 0
) -> StreamingResponse:
    """Every raw row of the main line, an object a line; a missing value has no key."""
    return await _export(request, run_id, names, rank, export.write_jsonl, "application/jsonl", "jsonl")


async def _export(
    request: Request,
    run_id: str,
    names: str | None,
    rank: int,
    write: export.Write,
    media_type: str,
    suffix: str,
) -> StreamingResponse:
    services = services_of(request)

    def query(connection: sqlite3.Connection) -> ExportPlan:
        require_run(connection, run_id)
        return plan_export(connection, run_id, _split(names) or None, rank)

    plan = await _read_heavy(services, query)
    lines = _pace(services, write(plan, export.tables(services.database, plan)))
    name = f"attachment; filename*=UTF-8''{quote(run_id, safe='')}.{suffix}"
    return StreamingResponse(lines, media_type=media_type, headers={"Content-Disposition": name})


async def _read(services: Services, query: Callable[[sqlite3.Connection], T]) -> T:
    return await asyncio.to_thread(services.database.read, query)


async def _read_heavy(services: Services, query: Callable[[sqlite3.Connection], T]) -> T:
    async with services.heavy_reads:
        return await _read(services, query)


async def _pace(services: Services, lines: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Yield `lines`, each read in its turn; nobody waits while a slow client takes one."""
    while True:
        async with services.heavy_reads:
            line = await asyncio.to_thread(next, lines, None)
        if line is None:
            return
        yield line


async def _spell(answer: Json) -> JsonResponse:
    return await asyncio.to_thread(JsonResponse, answer)


def _all_names(connection: sqlite3.Connection, run_id: str) -> list[str]:
    rows = connection.execute(
        "SELECT name FROM series WHERE run_id = ? AND NOT per_layer ORDER BY name LIMIT ?",
        (run_id, MAX_NAMES),
    )
    return [name for (name,) in rows]


def _split(names: str | None) -> list[str]:
    found = [name for name in (names or "").split(",") if name]
    if len(found) > MAX_NAMES:
        raise BadRequest(f"{len(found)} series; ask for at most {MAX_NAMES} at once")
    return found


def _steps(first: float | None, last: float | None) -> tuple[int, int]:
    """Return the steps first .. last as a half-open range; the page zooms to fractions of a step."""
    low, high = max(first or 0.0, 0.0), math.inf if last is None else last
    if math.isnan(low) or math.isnan(high) or low >= NEVER:
        raise BadRequest("`from` and `to` are steps")
    stop = NEVER if high >= NEVER else math.floor(max(high, -1.0)) + 1
    return math.ceil(low), stop
