"""What may be an endpoint, and what of it is shown."""

from __future__ import annotations

import pytest

from alert_samples import SECRET, endpoint
from trainvitals_server.alert.endpoint import Format, check_url, guess_format, mask_secret, mask_url
from trainvitals_server.errors import BadRequest


@pytest.mark.parametrize(
    ("url", "form"),
    [
        ("https://hooks.slack.com/services/T/B/x", "slack"),
        ("https://HOOKS.slack.com/workflows/x", "slack"),
        ("https://discord.com/api/webhooks/1/x", "discord"),
        ("https://discord.com/channels/1", "generic"),
        ("https://hooks.slack.com.evil.example/services/x", "generic"),
        ("https://example.org/?to=https://hooks.slack.com/", "generic"),
    ],
)
def test_the_host_tells_the_format(url: str, form: Format) -> None:
    assert guess_format(url) == form


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:9/", "https://example.org", "http://[::1]:80/x?y#z", "HTTP://a/"]
)
def test_what_can_be_posted_to_is_accepted(url: str) -> None:
    assert check_url(url) == url


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("", "begins with http:// or https://, not ''"),
        ("example.org", "begins with"),
        ("file:///etc/passwd", "begins with"),
        ("gopher://example.org", "begins with"),
        ("http://", "names a host"),
        ("http://:80/", "names a host"),
        ("http://a:b@example.org/", "must not carry a user name"),
        ("http://@example.org/", "must not carry a user name"),
        ("http://example.org:99999/", "is no url"),
        ("http://[::1/", "is no url"),
        ("http://a b/", "its host is no name"),
        ("http://%31%32%37.0.0.1/", "its host is no name"),
        ("http://xn--/", "is no url"),
        ("http://example.org/\0", "is no url"),
        ("http://a/" + "x" * 2040, "at most 2048 characters, not 2049"),
    ],
)
def test_what_cannot_is_refused_with_the_reason(url: str, reason: str) -> None:
    with pytest.raises(BadRequest, match=reason):
        check_url(url)


def test_a_masked_secret_tells_two_apart_and_signs_nothing() -> None:
    assert mask_secret(SECRET) == "whsec_MDEy..."


def test_only_the_addresses_that_are_secrets_are_masked() -> None:
    assert mask_url(endpoint("https://example.org/hook")) == "https://example.org/hook"
    slack = endpoint("https://hooks.slack.com/services/T/B/secret", format="slack")
    assert mask_url(slack) == "https://hooks.slack.com/...cret"
    assert mask_url(endpoint("https://example.org/hook?token=secret")) == "https://example.org/hook?...cret"
    assert mask_url(endpoint("https://example.org/hook#secret")) == "https://example.org/hook?...cret"
