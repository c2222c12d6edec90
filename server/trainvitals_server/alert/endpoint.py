"""Endpoint: one address that alerts go to, and what a person may give as such. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args
from urllib.parse import SplitResult, urlsplit

import httpx

from trainvitals_server.errors import BadRequest
from trainvitals_server.finding import Severity

Format = Literal["generic", "slack", "discord"]
FORMATS: tuple[Format, ...] = get_args(Format)
MIN_SEVERITIES: tuple[Severity, ...] = ("warning", "critical")  # info is never sent
MAX_URL_CHARS = 2048

_SLACK_HOSTS = frozenset({"hooks.slack.com", "hooks.slack-gov.com"})
_DISCORD_HOSTS = frozenset({"discord.com", "discordapp.com", "canary.discord.com", "ptb.discord.com"})
_SHOWN_CHARS = 4  # of a secret, so that a person can tell two apart


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where alerts go. `disabled_at` is set while it is paused or gone; `disabled_why` says which."""

    endpoint_id: str
    url: str
    format: Format
    secret: str
    min_severity: Severity = "warning"
    created_at: float
    disabled_at: float | None = None
    disabled_why: str | None = None


def check_url(url: str) -> str:
    """Return `url` if a webhook can go there.

    Only its form is judged here: which machine it leads to is judged at each connection.

    Raises:
        BadRequest: if it is not http(s), has no host, or carries a user name.
    """
    if len(url) > MAX_URL_CHARS:
        raise BadRequest(f"a webhook's url has at most {MAX_URL_CHARS} characters, not {len(url)}")
    parts = _split(url)
    if parts.scheme not in ("http", "https"):
        raise BadRequest(f"a webhook's url begins with http:// or https://, not {url[:80]!r}")
    if not parts.hostname:
        raise BadRequest(f"a webhook's url names a host; {url[:80]!r} does not")
    if parts.username is not None or parts.password is not None:
        raise BadRequest("a webhook's url must not carry a user name or password: they would be logged")
    try:
        host = httpx.URL(url).host  # as it will be asked for
    except (httpx.InvalidURL, UnicodeError) as error:
        raise BadRequest(f"{url[:80]!r} is no url: {error}") from None
    if "%" in host or " " in host:
        raise BadRequest(f"{url[:80]!r} is no url: its host is no name")
    return url


def guess_format(url: str) -> Format:
    """Return the form that the service behind `url` reads."""
    parts = _split(url)
    if parts.hostname in _SLACK_HOSTS:
        return "slack"
    if parts.hostname in _DISCORD_HOSTS and parts.path.startswith("/api/"):
        return "discord"
    return "generic"


def mask_secret(secret: str) -> str:
    """Return enough of a secret to tell it from another one."""
    return secret[: len("whsec_") + _SHOWN_CHARS] + "..."


def mask_url(endpoint: Endpoint) -> str:
    """Return the address to show.

    Slack's and Discord's end in what lets anybody post there, and so may what stands behind a `?` or `#`.
    """
    parts, end = _split(endpoint.url), f"...{endpoint.url[-_SHOWN_CHARS:]}"
    if endpoint.format != "generic":
        return f"{parts.scheme}://{parts.netloc}/{end}"
    if parts.query or parts.fragment:
        return f"{parts.scheme}://{parts.netloc}{parts.path}?{end}"
    return endpoint.url


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - raises on what is no port
    except ValueError as error:
        raise BadRequest(f"{url[:80]!r} is no url: {error}") from None
    return parts
