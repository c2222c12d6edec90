"""Which addresses a webhook may go to: a table, and what the operator allows."""

from __future__ import annotations

import socket

import pytest

from trainvitals_server.alert.addresses import LOOPBACK, parse_networks, refusal
from trainvitals_server.errors import ConfigError

REFUSED = [
    "127.0.0.1", "127.8.8.8", "0.0.0.0", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1",
    "169.254.169.254", "169.254.170.2", "100.64.0.1", "100.100.100.200", "168.63.129.16", "192.0.0.192",
    "192.88.99.1", "192.0.2.1", "198.18.0.1", "203.0.113.5", "224.0.0.1", "239.1.2.3", "240.0.0.1",
    "255.255.255.255",
    "::", "::1", "fe80::1", "fe80::1%eth0", "fec0::1", "fc00::1", "fd00:ec2::254", "ff02::1", "2001:db8::1",
    "::ffff:10.0.0.1", "::ffff:127.0.0.1", "::ffff:169.254.169.254", "::10.0.0.1", "::7f00:1",
    "64:ff9b::a00:1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::808:808",
    "2002:a00:1::", "2002:7f00:1::1", "2002:808:808::1", "2001:0:808:808::1",
]  # fmt: skip
PUBLIC = ["8.8.8.8", "93.184.216.34", "172.32.0.1", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"]


@pytest.mark.parametrize("address", REFUSED)
def test_no_webhook_goes_inside(address: str) -> None:
    assert refusal(address) is not None


@pytest.mark.parametrize("address", PUBLIC)
def test_webhooks_go_to_public_addresses(address: str) -> None:
    assert refusal(address) is None


@pytest.mark.parametrize(
    "name", ["0x7f000001", "127.1", "2130706433", "0177.0.0.1", "017700000001", "localhost", "0"]
)
def test_every_spelling_of_loopback_is_judged_by_what_it_resolves_to(name: str) -> None:
    found = socket.getaddrinfo(name, 80, type=socket.SOCK_STREAM)
    assert [entry[4][0] for entry in found if refusal(str(entry[4][0])) is None] == []


def test_what_is_no_address_is_refused() -> None:
    assert refusal("hooks.example.org") is not None


def test_the_operator_allows_networks() -> None:
    allowed = parse_networks(["10.1.0.0/16", "fd12::/16"])
    assert refusal("10.1.2.3", allowed) is None
    assert refusal("::ffff:10.1.2.3", allowed) is None
    assert refusal("fd12::7", allowed) is None
    assert refusal("10.2.0.1", allowed) == "private"
    assert refusal("127.0.0.1", allowed) == "loopback"


def test_loopback_can_be_allowed_as_a_whole() -> None:
    assert [refusal(address, LOOPBACK) for address in ("127.0.0.1", "::1", "::ffff:127.0.0.1")] == [None] * 3
    assert refusal("169.254.169.254", LOOPBACK) == "link-local"


def test_a_network_that_is_none_is_a_settings_error() -> None:
    with pytest.raises(ConfigError, match=r"10\.0\.0\.0/8, not 'intranet'"):
        parse_networks(["intranet"])
