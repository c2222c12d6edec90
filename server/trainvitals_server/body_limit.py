"""BodyLimit: no request may bring more than a limit, or take for ever, whatever route it goes to.

Routes that take JSON read the whole body into memory before they look at it. A body that comes slowly has
time as long as it comes: only one that has stopped is given up.
"""

from __future__ import annotations

import asyncio

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trainvitals import wire

# Nothing that is sent here needs more than a packet of frames; one that is a little too long is refused by
# the ingest itself.
MAX_BODY_BYTES = wire.MAX_PACKET_BYTES + wire.MAX_FRAME_BYTES
GRACE_S = 60.0  # for a stall of the network
LEAST_BYTES_PER_S = 1000.0  # over the whole body, beyond the grace: a tenth of the slowest mobile network
_CLOSE = {"Connection": "close"}  # the rest of the body must not be taken for a request


class BodyLimit:
    """ASGI middleware: ends a request as a 413 once its body is too long, as a 408 once it has stopped."""

    def __init__(
        self,
        app: ASGIApp,
        limit: int = MAX_BODY_BYTES,
        *,
        grace_s: float = GRACE_S,
        least_bytes_per_s: float = LEAST_BYTES_PER_S,
    ) -> None:
        self._app, self._limit = app, limit
        self._grace_s, self._least_bytes_per_s = grace_s, least_bytes_per_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the connection on, with its body counted."""
        if scope["type"] == "http":
            receive = self._counted(receive)
        await self._app(scope, receive, send)

    def _counted(self, receive: Receive) -> Receive:
        began_at = asyncio.get_running_loop().time()
        received, is_complete = 0, False

        async def receive_counted() -> Message:
            nonlocal received, is_complete
            if is_complete:
                return await receive()  # which waits for the client to go away
            deadline = began_at + self._grace_s + received / self._least_bytes_per_s
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(408, f"the body stopped after {received} bytes", _CLOSE) from None
            received += len(message.get("body", b""))
            is_complete = not message.get("more_body", False)
            if received > self._limit:
                raise HTTPException(413, f"a body beyond the limit of {self._limit} bytes", _CLOSE)
            return message

        return receive_counted
