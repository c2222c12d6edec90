"""Hosts: under which names this server may be spoken to. Pure.

A page of another site can make a browser send requests here, and by a domain of its own that suddenly
resolves to this machine (DNS rebinding) even read the answers. The names in `Host` and `Origin` give both
away. Loopback names are good on any port: `ssh -L 9000:localhost:8765` and editors forward them under others.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from urllib.parse import urlsplit

from trainvitals_server.config import Config


class HostRules:
    """Which host names and origins are ours."""

    def __init__(self, config: Config, machine_names: Iterable[str] = ()) -> None:
        """Take the names from the settings; beyond loopback those of the machine are good as well."""
        names = set(config.allowed_hosts) | {config.host.strip("[]")}
        if config.public_url:
            names.add(urlsplit(config.public_url).hostname or "")
        if not config.is_loopback:
            names |= set(machine_names)
        self._names = frozenset(name.lower().rstrip(".") for name in names if name)
        self._is_loopback_only = config.is_loopback

    def allows_host(self, authority: str) -> bool:
        """Return whether a `Host` header names us."""
        return self._allows(host_name(authority))

    def allows_origin(self, origin: str) -> bool:
        """Return whether an `Origin` header is that of a page of ours; `null` is not."""
        scheme, separator, authority = origin.partition("://")
        return bool(separator) and scheme.lower() in ("http", "https") and self.allows_host(authority)

    def _allows(self, name: str | None) -> bool:
        if not name:
            return False
        if name in self._names or is_loopback_name(name):
            return True
        # An address cannot be rebound: whoever typed it wanted this machine.
        return not self._is_loopback_only and _address(name) is not None


def host_name(authority: str) -> str | None:
    """Return the host in `host[:port]`, lower case and without brackets; None if it is malformed."""
    if any(mark in authority for mark in "/?#@\\ \t,%") or not authority.isascii():
        return None
    try:
        parts = urlsplit(f"//{authority}")
        parts.port  # noqa: B018 - raises on what is no port
    except ValueError:
        return None
    return (parts.hostname or "").rstrip(".") or None


def is_loopback_name(name: str) -> bool:
    """Return whether `name` can only mean the machine that asks."""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    address = _address(name)
    return address is not None and address.is_loopback


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None
