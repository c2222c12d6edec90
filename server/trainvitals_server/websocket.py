"""Websocket: uvicorn's protocol, but an answer in place of the upgrade (401, 403) is no mistake to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

if TYPE_CHECKING:
    from uvicorn._types import ASGISendEvent


class Websocket(WebSocketsSansIOProtocol):
    """Knows a refused handshake as one that is over; uvicorn itself logs two errors for each."""

    async def send(self, message: ASGISendEvent) -> None:
        """Take what the application says."""
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body", False):
            self.handshake_complete = True
