"""The guard between a webhook's name and the socket: one resolution, judged, and that very address used."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Sequence

import httpx
import pytest

from alert_receiver import receiver
from trainvitals_server.alert.addresses import LOOPBACK
from trainvitals_server.alert.transport import AddressRefused, GuardedTransport

pytestmark = pytest.mark.anyio


class Names:
    """A name server: each question about a host takes the next of its answers."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    async def resolve(self, host: str, port: int) -> list[str]:
        self.asked.append(host)
        return list(self.answers.pop(0))


async def _post(transport: GuardedTransport, url: str) -> httpx.Response:
    async with httpx.AsyncClient(transport=transport, trust_env=False) as client:
        return await client.post(url, content=b"{}")


async def test_the_connection_goes_to_the_judged_address_under_the_name_of_the_url() -> None:
    with receiver() as hook:
        names = Names(["127.0.0.1"])
        port = httpx.URL(hook.url).port
        answer = await _post(
            GuardedTransport(LOOPBACK, resolve=names.resolve), f"http://hooks.example:{port}/x"
        )
        assert answer.status_code == 204
        assert hook.take().headers["host"] == f"hooks.example:{port}"
        assert names.asked == ["hooks.example"]


async def test_a_name_that_leads_inside_is_refused_before_any_connection() -> None:
    with receiver() as hook:
        port = httpx.URL(hook.url).port
        with pytest.raises(AddressRefused, match=r"rebound\.example leads to 127\.0\.0\.1 \(loopback\)"):
            await _post(
                GuardedTransport((), resolve=Names(["127.0.0.1"]).resolve), f"http://rebound.example:{port}/"
            )
        assert hook.received.empty()


async def test_a_second_answer_of_the_name_server_has_no_effect() -> None:
    # A rebinding name server says something harmless first, then loopback. Nobody asks it twice.
    with receiver() as hook:
        names = Names(["203.0.113.9"], ["127.0.0.1"])
        port = httpx.URL(hook.url).port
        with pytest.raises(AddressRefused):
            await _post(GuardedTransport((), resolve=names.resolve), f"http://rebound.example:{port}/")
        assert names.asked == ["rebound.example"]
        assert hook.received.empty()


async def test_an_address_inside_among_good_ones_is_left_out() -> None:
    with receiver() as hook:
        names = Names(["10.0.0.1", "169.254.169.254", "127.0.0.1"])
        port = httpx.URL(hook.url).port
        answer = await _post(
            GuardedTransport(LOOPBACK, resolve=names.resolve), f"http://mixed.example:{port}/"
        )
        assert answer.status_code == 204


async def test_the_next_address_is_tried_when_one_takes_no_connection() -> None:
    with receiver() as hook:
        names = Names(["127.0.0.2", "127.0.0.1"])  # the receiver listens on the second only
        port = httpx.URL(hook.url).port
        answer = await _post(GuardedTransport(LOOPBACK, resolve=names.resolve), f"http://two.example:{port}/")
        assert answer.status_code == 204


@pytest.mark.parametrize("host", ["0x7f000001", "127.1", "2130706433", "[::ffff:127.0.0.1]", "localhost"])
async def test_no_spelling_of_loopback_gets_through_the_real_resolver(host: str) -> None:
    with receiver() as hook:
        with pytest.raises(AddressRefused):
            await _post(GuardedTransport(()), f"http://{host}:{httpx.URL(hook.url).port}/")
        assert hook.received.empty()


async def test_a_name_that_does_not_exist_is_a_connection_error() -> None:
    async def resolve(host: str, port: int) -> list[str]:
        raise socket.gaierror("no such name")

    with pytest.raises(httpx.ConnectError, match=r"cannot resolve nowhere\.invalid: no such name"):
        await _post(GuardedTransport((), resolve=resolve), "https://nowhere.invalid/")


async def test_tls_asks_for_the_name_of_the_url_and_not_for_the_address() -> None:
    asked: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sni_callback = lambda _socket, name, _context: asked.set_result(name)
    server = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    transport = GuardedTransport(LOOPBACK, resolve=Names(["127.0.0.1"]).resolve)
    try:
        with pytest.raises(httpx.TransportError):  # the server has no certificate: the greeting is enough
            await _post(transport, f"https://hooks.example:{port}/")
        assert await asyncio.wait_for(asked, 10) == "hooks.example"
    finally:
        server.close()
        await server.wait_closed()


def test_the_error_names_every_address_and_what_to_set() -> None:
    error = AddressRefused("a.example", [("10.0.0.1", "private"), (str(ipaddress.ip_address(1)), "reserved")])
    assert str(error) == (
        "a.example leads to 10.0.0.1 (private), 0.0.0.1 (reserved): allow its network in the setting"
        " webhook_allow_networks"
    )
