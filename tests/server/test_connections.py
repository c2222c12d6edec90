"""Connections that say nothing, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import resource
from collections.abc import AsyncIterator, Iterator

import pytest
import uvicorn
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.server import ServerState

from trainvitals_server.body_limit import BodyLimit
from trainvitals_server.connections import PromptProtocol, connections_for, raise_file_limit

pytestmark = pytest.mark.anyio
TIMEOUT_S = 20.0
PATIENCE_S = 0.3
HEAD = b"POST /taken HTTP/1.1\r\nHost: x\r\nContent-Length: 8\r\n\r\n"


class Hasty(PromptProtocol):
    request_s = PATIENCE_S


async def measure_body(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with the length of the body; to /refused without looking at it."""
    request = Request(scope, receive)
    length = 0 if request.url.path == "/refused" else len(await request.body())
    await Response(str(length))(scope, receive, send)


@contextlib.asynccontextmanager
async def serving(app: ASGIApp) -> AsyncIterator[int]:
    config = uvicorn.Config(app, http=Hasty, log_level="critical")
    config.load()
    state = ServerState()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Hasty(config, state, {}), "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await server.wait_closed()


async def until_closed(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(TIMEOUT_S):
        return await reader.read()


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: lo"])
async def test_a_connection_without_a_whole_request_is_closed(sent: bytes) -> None:
    async with serving(measure_body) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        assert await until_closed(reader) == b""
        writer.close()


async def test_bytes_that_keep_coming_do_not_make_a_header_wait_for_ever() -> None:
    async def dribble(writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            writer.write(b"GET / HTTP/1.1\r\nX: ")
            while True:
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(PATIENCE_S / 10)

    async with serving(measure_body) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        dribbling = asyncio.create_task(dribble(writer))
        with contextlib.suppress(ConnectionError):
            assert await until_closed(reader) == b""
        dribbling.cancel()
        writer.close()


async def test_the_rest_of_a_body_that_nobody_wanted_is_not_awaited_for_ever() -> None:
    async with serving(measure_body) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HEAD.replace(b"taken", b"refused") + b"1")
        answer = await until_closed(reader)
        assert answer.startswith(b"HTTP/1.1 200 ")
        writer.close()


async def test_a_request_that_takes_long_and_its_slow_body_are_not_cut_off() -> None:
    async with serving(measure_body) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HEAD)
        for _ in range(8):
            await asyncio.sleep(PATIENCE_S / 4)
            writer.write(b"1")
        async with asyncio.timeout(TIMEOUT_S):
            assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
        writer.close()


async def test_a_body_that_has_stopped_is_answered_and_its_connection_closed() -> None:
    async with serving(_told(BodyLimit(measure_body, grace_s=PATIENCE_S))) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HEAD + b"123")
        answer = await until_closed(reader)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert answer.endswith(b"the body stopped after 3 bytes")
        writer.close()


def _told(app: ASGIApp) -> ASGIApp:
    from starlette.middleware.exceptions import ExceptionMiddleware

    return ExceptionMiddleware(app)


async def test_a_body_has_the_more_time_the_more_of_it_has_come() -> None:
    limit = BodyLimit(measure_body, grace_s=PATIENCE_S, least_bytes_per_s=1.0 / PATIENCE_S)
    async with serving(_told(limit)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HEAD)
        for _ in range(8):
            await asyncio.sleep(PATIENCE_S / 2)
            writer.write(b"1")
        async with asyncio.timeout(TIMEOUT_S):
            assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
        writer.close()


@pytest.fixture
def few_files() -> Iterator[int]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (300, hard))
    yield hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_limit_of_files_is_raised_as_far_as_it_goes(few_files: int) -> None:
    files = raise_file_limit()
    assert files > 300
    assert files == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert files == few_files or files == 65_536


def test_some_files_are_left_for_what_is_no_connection() -> None:
    assert [connections_for(files) for files in (65_536, 1024, 128)] == [65_408, 896, 64]
