"""Ingest: frames come in over a websocket, or as one POST of the same bytes, and are answered.

`Conversation` knows the protocol and no socket; the two routes below move its bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response
from starlette.websockets import WebSocket, WebSocketDisconnect

from trainvitals import wire
from trainvitals_server.errors import BadRequest, Busy, NotFound, StorageFailed, TooLarge
from trainvitals_server.pipeline import Pipeline, Stream
from trainvitals_server.services import services_of

PACKET_TYPE = "application/octet-stream"
QUEUED_MESSAGES = 16  # read ahead while the writer commits; then the socket is not read
SLICE_BYTES = 256 << 10  # decoded before the event loop sees to others: about a millisecond
BUSY_RETRY_S = 0.02
STORAGE_RETRY_S = 5.0
QUEUED_ANSWERS = 64
# Websocket close codes, RFC 6455 and the IANA registry
NORMAL_CLOSURE, SERVICE_RESTART, TRY_AGAIN_LATER = 1000, 1012, 1013

router = APIRouter()


class Conversation:
    """One client's messages in order, whatever carries them.

    Where `take` raises Busy or StorageFailed, the caller may give it the same messages again: what it had
    stored of them already are duplicates then.
    """

    def __init__(self, pipeline: Pipeline, on_open: Callable[[Stream], None] | None = None) -> None:
        self._pipeline, self._on_open = pipeline, on_open
        self._stream: Stream | None = None

    async def take(self, messages: Iterable[bytes | memoryview]) -> list[wire.ServerFrame]:
        """Store what the messages bring and return the answers, in order."""
        answers: list[wire.ServerFrame] = []
        frames: list[wire.Sequenced] = []
        sliced = 0
        for message in messages:
            sliced += len(message)
            if sliced > SLICE_BYTES:
                sliced = len(message)
                await asyncio.sleep(0)
            try:
                frame = wire.decode_client(message)
            except wire.WireError as error:
                answers += await self._store(frames)
                answers.append(_reject(error, message))
                frames = []
                continue
            if isinstance(frame, wire.Hello):
                answers += await self._store(frames)
                answers += await self._open(frame)
                frames = []
            elif self._stream is None:
                answers.append(wire.Reject(code="malformed", message="the first frame must be a Hello"))
            elif isinstance(frame, wire.Heartbeat):
                self._pipeline.heartbeat(self._stream, frame)
            else:
                frames.append(frame)
        return answers + await self._store(frames)

    async def _open(self, hello: wire.Hello) -> list[wire.ServerFrame]:
        self._stream = await self._pipeline.open(hello)
        if self._on_open is not None:
            self._on_open(self._stream)
        url = self._pipeline.run_url(hello.run_id)
        answers: list[wire.ServerFrame] = [wire.Welcome(acked_seq=self._stream.acked_seq, dashboard_url=url)]
        if self._stream.stop_reason is not None:
            answers.append(wire.Command(name="stop", reason=self._stream.stop_reason))
        return answers

    async def _store(self, frames: Sequence[wire.Sequenced]) -> list[wire.ServerFrame]:
        if not frames or self._stream is None:
            return []
        appended = await self._pipeline.accept(self._stream, frames)
        ack = wire.Ack(acked_seq=appended.acked_seq)
        return [ack, appended.reject] if appended.reject else [ack]


class _Peek(msgspec.Struct):
    seq: int | None = None


_peek = msgspec.msgpack.Decoder(_Peek)


def _reject(error: wire.WireError, message: bytes | memoryview) -> wire.Reject:
    seq = None
    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        seq = _peek.decode(message).seq  # so that the client knows which frame to give up
    code: Any = error.code
    return wire.Reject(code=code, message=wire.clip(str(error), wire.MAX_TEXT_CHARS), seq=seq)


@router.post("/api/v1/ingest", include_in_schema=False)
async def ingest_packet(request: Request) -> Response:
    """Take one packet of frames, the first of them a Hello; answer with a packet."""
    try:
        messages = list(wire.split_packet(await _read_body(request)))
    except wire.OversizedFrame as error:
        raise TooLarge(str(error)) from error
    except wire.WireError as error:
        raise BadRequest(str(error)) from error
    answers = await Conversation(services_of(request).pipeline).take(messages)
    return Response(wire.join_packet(map(wire.encode, answers)), media_type=PACKET_TYPE)


async def _read_body(request: Request) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > wire.MAX_PACKET_BYTES:
            raise wire.OversizedFrame(f"a packet beyond the limit of {wire.MAX_PACKET_BYTES} bytes")
    return bytes(body)


@router.websocket("/api/v1/ingest")
async def ingest_socket(websocket: WebSocket) -> None:
    """Take frames, one a message; answer them, and send notices as they come."""
    await websocket.accept()
    await _Socket(websocket, services_of(websocket).pipeline).serve()


class _Socket:
    """Moves the bytes of one conversation over a websocket."""

    def __init__(self, websocket: WebSocket, pipeline: Pipeline) -> None:
        self._websocket, self._pipeline = websocket, pipeline
        self._incoming: asyncio.Queue[bytes | None] = asyncio.Queue(QUEUED_MESSAGES)
        self._outgoing: asyncio.Queue[wire.ServerFrame | None] = asyncio.Queue(QUEUED_ANSWERS)
        self._listening = contextlib.ExitStack()

    async def serve(self) -> None:
        """Return when what was received is stored and either side is done."""
        tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._write())]
        try:
            code = await self._converse()
            await self._outgoing.put(None)
            await tasks[1]
            with contextlib.suppress(RuntimeError, WebSocketDisconnect):
                await self._websocket.close(code)
        finally:
            self._listening.close()
            for task in tasks:
                task.cancel()

    async def _read(self) -> None:
        while True:
            message = await self._websocket.receive()
            if message["type"] == "websocket.disconnect":
                await self._incoming.put(None)
                return
            data = message.get("bytes")
            await self._incoming.put(data if data is not None else message["text"].encode())

    async def _converse(self) -> int:
        """Answer until there is nothing more to come; return the code to close with."""
        conversation = Conversation(self._pipeline, on_open=self._listen)
        while True:
            messages, is_over = await self._next_messages()
            try:
                answers = await self._take(conversation, messages)
            except StorageFailed as error:
                await self._outgoing.put(
                    wire.Reject(code="storage", message=error.message, retry_after_s=STORAGE_RETRY_S)
                )
                return TRY_AGAIN_LATER
            except NotFound:
                return SERVICE_RESTART  # its run was deleted: it may say Hello again
            for answer in answers:
                await self._outgoing.put(answer)
            if is_over:
                return NORMAL_CLOSURE

    async def _next_messages(self) -> tuple[list[bytes], bool]:
        """Return what has come in, at least one message, and whether it was the last."""
        messages = [await self._incoming.get()]
        while not self._incoming.empty():
            messages.append(self._incoming.get_nowait())
        return [message for message in messages if message is not None], None in messages

    async def _take(self, conversation: Conversation, messages: list[bytes]) -> list[wire.ServerFrame]:
        while True:
            try:
                return await conversation.take(messages)
            except Busy:
                await asyncio.sleep(BUSY_RETRY_S)  # meanwhile nobody reads the socket: the client slows down

    def _listen(self, stream: Stream) -> None:
        self._listening.close()
        self._listening.callback(self._pipeline.listen(stream, self._notify))

    def _notify(self, notice: wire.ServerFrame) -> None:
        with contextlib.suppress(asyncio.QueueFull):  # it does not read; the page shows it all the same
            self._outgoing.put_nowait(notice)

    async def _write(self) -> None:
        is_gone = False
        while (answer := await self._outgoing.get()) is not None:
            if not is_gone:
                try:
                    await self._websocket.send_bytes(wire.encode(answer))
                except (WebSocketDisconnect, RuntimeError):
                    is_gone = True  # what it sent is stored all the same
