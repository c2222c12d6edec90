"""A server that only acknowledges: `python -m bench.sink` prints its address and serves until it is ended.

It stands for a server on another machine: what the client costs by itself.
"""

from __future__ import annotations

import asyncio
import sys

from websockets.asyncio.server import ServerConnection, serve

from trainvitals import wire


async def _answer(socket: ServerConnection) -> None:
    async for data in socket:
        frame = wire.decode_client(data if isinstance(data, bytes) else data.encode())
        if isinstance(frame, wire.Hello):
            await socket.send(wire.encode(wire.Welcome(acked_seq=0)))
        elif not isinstance(frame, wire.Heartbeat):
            end = frame.last_seq if isinstance(frame, wire.Gap) else frame.seq
            await socket.send(wire.encode(wire.Ack(acked_seq=end)))


async def _serve() -> None:
    async with serve(_answer, "127.0.0.1", 0, compression=None) as server:
        port = server.sockets[0].getsockname()[1]
        sys.stdout.write(f"listening on http://127.0.0.1:{port}\n")
        sys.stdout.flush()
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve())
