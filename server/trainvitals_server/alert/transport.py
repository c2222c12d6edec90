"""GuardedTransport: resolves a webhook's host, judges the addresses, and connects to one it judged.

The name is resolved once and the connection goes to that very address, so that a second answer of the name
server (DNS rebinding) has no effect. Host header and TLS name stay those of the url.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Sequence

import httpx

from trainvitals_server.alert.addresses import Network, refusal

Resolve = Callable[[str, int], Awaitable[list[str]]]
LOOK_UP_S = 3.0
_MAX_ADDRESSES = 4  # tried of a host that has many


class AddressRefused(httpx.TransportError):
    """The host leads only to addresses that no webhook may go to."""

    def __init__(self, host: str, reasons: Sequence[tuple[str, str]]) -> None:
        super().__init__("")
        self.host = host
        self.reasons = tuple(reasons)

    def __str__(self) -> str:
        found = ", ".join(f"{address} ({reason})" for address, reason in self.reasons) or "no address"
        return f"{self.host} leads to {found}: allow its network in the setting webhook_allow_networks"


async def resolve(host: str, port: int) -> list[str]:
    """Return the addresses of `host`, in the order to try them."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class GuardedTransport(httpx.AsyncBaseTransport):
    """Sends to public addresses and to the networks that the operator allowed."""

    def __init__(self, allowed: Sequence[Network], *, resolve: Resolve = resolve) -> None:
        self._inner: httpx.AsyncHTTPTransport | None = None
        self._allowed = tuple(allowed)
        self._resolve = resolve

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send `request` to the first of its host's judged addresses that takes the connection."""
        host = request.url.raw_host.decode("ascii")
        port = request.url.port or (443 if request.url.scheme == "https" else 80)
        if self._inner is None:  # reading the root certificates takes longer than the loop may stand still
            self._inner = await asyncio.to_thread(_new_transport)
        problem: httpx.TransportError | None = None
        for address in await self.judged(host, port):
            try:
                return await self._inner.handle_async_request(_pinned(request, host, address))
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                problem = error
        assert problem is not None
        raise problem

    async def aclose(self) -> None:
        """Close what is open."""
        if self._inner is not None:
            await self._inner.aclose()

    async def judged(self, host: str, port: int) -> list[str]:
        """Return the addresses of `host` that a message may go to; raise where there is none."""
        try:
            addresses = await self._resolve(host, port)
        except OSError as error:
            raise httpx.ConnectError(f"cannot resolve {host}: {error}") from error
        reasons = {address: refusal(address, self._allowed) for address in addresses}
        good = [address for address, reason in reasons.items() if reason is None]
        if not good:
            raise AddressRefused(host, [(address, reason or "") for address, reason in reasons.items()])
        return good[:_MAX_ADDRESSES]


async def why_not(url: str, allowed: Sequence[Network]) -> str | None:
    """Return why no message would get to `url` as things are, or None."""
    parts = httpx.URL(url)
    try:
        async with asyncio.timeout(LOOK_UP_S):
            await GuardedTransport(allowed).judged(parts.raw_host.decode("ascii"), parts.port or 443)
    except TimeoutError:
        return f"{parts.host} is not found within {LOOK_UP_S:.0f} s"
    except httpx.TransportError as error:
        return str(error)
    return None


def _new_transport() -> httpx.AsyncHTTPTransport:
    # A connection is never used again: the pool tells hosts apart by address, and two names of one address
    # must not share a TLS session.
    return httpx.AsyncHTTPTransport(limits=httpx.Limits(max_keepalive_connections=0))


def _pinned(request: httpx.Request, host: str, address: str) -> httpx.Request:
    extensions = dict(request.extensions)
    if not _is_address(host):
        extensions["sni_hostname"] = host
    return httpx.Request(
        request.method,
        request.url.copy_with(host=address),
        headers=request.headers,
        stream=request.stream,
        extensions=extensions,
    )


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True
