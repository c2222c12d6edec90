"""The live websocket: a browser subscribes to runs or to the board, and is sent JSON as things happen.

Only moves texts between a socket and the hub.
"""

from __future__ import annotations

import asyncio
import contextlib

import msgspec
from fastapi import APIRouter
from starlette.websockets import WebSocket, WebSocketDisconnect

from trainvitals_server import codec
from trainvitals_server.errors import BadRequest, Busy, ServerError
from trainvitals_server.hub import Browser, Hub, Subscription
from trainvitals_server.services import services_of

__all__ = ["Hub", "router"]

MAX_REQUEST_CHARS = 1 << 16
TRY_AGAIN, RESTARTING = 1013, 1012  # websocket close codes

router = APIRouter()


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """One run and some of its series, or the board; `cursor` is the last message that the page has seen."""

    run_id: str | None = None
    series: list[str] = []
    rank: int | None = None
    cursor: int | None = None
    board: bool = False


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What a browser says."""

    subscribe: Target | None = None
    unsubscribe: Target | None = None


_decoder = msgspec.json.Decoder(Request)


@router.websocket("/api/v1/live")
async def live(websocket: WebSocket) -> None:
    """Show runs as they happen."""
    hub = services_of(websocket).hub
    await websocket.accept()
    try:
        browser = hub.join()
    except Busy as error:
        await websocket.close(TRY_AGAIN, error.message)
        return
    sender = asyncio.create_task(_send(websocket, browser))
    try:
        await _receive(websocket, hub, browser)
    finally:
        hub.leave(browser)
        sender.cancel()
        await asyncio.gather(sender, return_exceptions=True)


async def _send(websocket: WebSocket, browser: Browser) -> None:
    with contextlib.suppress(WebSocketDisconnect, RuntimeError):  # it went away in between
        while (text := await browser.next()) is not None:
            await websocket.send_text(text)
        await websocket.close(RESTARTING, "the server is shutting down")


async def _receive(websocket: WebSocket, hub: Hub, browser: Browser) -> None:
    while True:
        message = await websocket.receive()
        if message["type"] == "websocket.disconnect":
            return
        try:
            follow(hub, browser, parse(message.get("text") or ""))
        except ServerError as error:
            browser.offer(_error(error))


def parse(text: str) -> Request:
    """Return what a browser said.

    Raises:
        BadRequest: if it is no message of this protocol.
    """
    if len(text) > MAX_REQUEST_CHARS:
        raise BadRequest(f"a message of {len(text)} characters; the limit is {MAX_REQUEST_CHARS}")
    try:
        request = _decoder.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise BadRequest(f"not a message of this protocol: {error}") from error
    for target in (request.subscribe, request.unsubscribe):
        if target is not None and not target.board and not target.run_id:
            raise BadRequest('name a "run_id", or "board": true')
    if request.subscribe is None and request.unsubscribe is None:
        raise BadRequest('say "subscribe" or "unsubscribe"')
    return request


def follow(hub: Hub, browser: Browser, request: Request) -> None:
    """Do what a browser asks.

    Raises:
        TooLarge: if it asks for too much.
    """
    gone, wanted = request.unsubscribe, request.subscribe
    if gone is not None:
        browser.is_board = browser.is_board and not gone.board
        browser.runs.pop(gone.run_id or "", None)
    if wanted is not None:
        browser.is_board = browser.is_board or wanted.board
        if wanted.run_id:
            series = Subscription(frozenset(wanted.series), wanted.rank)
            hub.subscribe(browser, wanted.run_id, series, wanted.cursor)


def _error(error: ServerError) -> str:
    return codec.dumps({"t": "error", "code": error.code, "message": error.message}).decode()
