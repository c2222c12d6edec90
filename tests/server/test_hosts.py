"""Under which names the server may be spoken to."""

from __future__ import annotations

import pytest

from trainvitals_server.config import Config
from trainvitals_server.hosts import HostRules, host_name

SHARED = HostRules(Config(host="0.0.0.0"), machine_names=("GPU1",))
LOCAL = HostRules(Config(), machine_names=("gpu1",))


@pytest.mark.parametrize(
    ("authority", "name"),
    [
        ("localhost:8765", "localhost"),
        ("LocalHost.", "localhost"),
        ("[::1]:80", "::1"),
        ("[::1]", "::1"),
        ("a.example:", "a.example"),
        ("", None),
        (":80", None),
        ("[::1", None),
        ("::1", None),
        ("a:b", None),
        ("a:99999", None),
        ("a@b", None),
        ("a/b", None),
        ("a\\b", None),
        ("a b", None),
        ("a,b", None),
        ("a?b", None),
        ("a#b", None),
        ("a%41", None),
        ("löcalhost", None),
        ("ｌocalhost", None),
    ],
)
def test_a_host_is_read_strictly(authority: str, name: str | None) -> None:
    assert host_name(authority) == name


def test_the_names_of_the_machine_are_good_beyond_loopback_only() -> None:
    assert SHARED.allows_host("gpu1:8765")
    assert not LOCAL.allows_host("gpu1:8765")


def test_an_address_is_good_beyond_loopback_only() -> None:
    for address in ("10.0.0.7:8765", "[fd00::7]:8765"):
        assert SHARED.allows_host(address)
        assert not LOCAL.allows_host(address)


def test_a_server_answers_to_the_address_it_was_given() -> None:
    assert HostRules(Config(host="gpu1.example.org")).allows_host("gpu1.example.org:8765")


@pytest.mark.parametrize(
    "origin",
    [
        "",
        "null",
        "localhost",
        "file://localhost",
        "chrome-extension://localhost",
        "http://",
        "http:localhost",
    ],
)
def test_only_pages_from_the_web_have_an_origin_of_ours(origin: str) -> None:
    assert not LOCAL.allows_origin(origin)
