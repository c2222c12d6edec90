"""BodyLimit: no request may bring more than a limit, whatever route it goes to and however it is sent.

Routes that take JSON read the whole body into memory before they look at it.
"""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trainvitals import wire

# Nothing that is sent here needs more than a packet of frames; one that is a little too long is refused by
# the ingest itself.
MAX_BODY_BYTES = wire.MAX_PACKET_BYTES + wire.MAX_FRAME_BYTES


class BodyLimit:
    """ASGI middleware: lets a request end as a 413 once its body is too long."""

    def __init__(self, app: ASGIApp, limit: int = MAX_BODY_BYTES) -> None:
        self._app, self._limit = app, limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the connection on, with its body counted."""
        received = 0

        async def receive_counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._limit:
                raise HTTPException(413, f"a body beyond the limit of {self._limit} bytes")
            return message

        await self._app(scope, receive_counted if scope["type"] == "http" else receive, send)
