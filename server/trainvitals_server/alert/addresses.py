"""Addresses: may a webhook go to this one? Pure, and about resolved addresses only, never about names.

A name is judged by what it resolves to at the moment of the connection: strings such as `0x7f000001`, `127.1`
or a domain that answers with a private address all end here as an address.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence

from trainvitals_server.errors import ConfigError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

LOOPBACK: tuple[Network, ...] = (ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("::1/128"))
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_COMPATIBLE = ipaddress.ip_network("::/96")
# Ways to spell or reach an inner IPv4 address that Python's `is_global` does not see through, and the public
# address that is the host's own control plane at one cloud.
_REFUSED: tuple[tuple[Network, str], ...] = (
    (ipaddress.ip_network("64:ff9b:1::/48"), "local NAT64"),
    (ipaddress.ip_network("2002::/16"), "6to4"),
    (ipaddress.ip_network("2001::/32"), "Teredo"),
    (ipaddress.ip_network("fec0::/10"), "site-local"),
    (ipaddress.ip_network("192.88.99.0/24"), "6to4"),
    (ipaddress.ip_network("192.0.0.0/24"), "cloud metadata"),  # private only since some Python 3.11
    (ipaddress.ip_network("168.63.129.16/32"), "cloud metadata"),
)


def parse_networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Return the networks that the operator allows.

    Raises:
        ConfigError: if one of them is no network.
    """
    networks = []
    for text in texts:
        try:
            networks.append(ipaddress.ip_network(text, strict=False))
        except ValueError:
            raise ConfigError(
                f"webhook_allow_networks takes networks such as 10.0.0.0/8, not {text!r}"
            ) from None
    return tuple(networks)


def refusal(text: str, allowed: Sequence[Network] = ()) -> str | None:
    """Return why no webhook may go to the address `text`, or None: it may."""
    try:
        address = _unwrap(ipaddress.ip_address(text.partition("%")[0]))
    except ValueError:
        return "no address"
    if any(address in network for network in allowed):
        return None
    for network, word in _REFUSED:
        if address in network:
            return word
    return _kind(address)


def _kind(address: Address) -> str | None:
    if address.is_multicast:
        return "multicast"
    if address.is_unspecified:
        return "unspecified"
    if address.is_loopback:
        return "loopback"
    if address.is_link_local:
        return "link-local"
    if address.is_reserved:
        return "reserved"
    return None if address.is_global else "private"


def _unwrap(address: Address) -> Address:
    """Return the IPv4 address inside a mapped, compatible or NAT64 one, which is where it leads."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    low = int(address) & 0xFFFFFFFF
    if address in _NAT64 or (address in _COMPATIBLE and low > 1):  # :: and ::1 are themselves
        return ipaddress.IPv4Address(low)
    return address
