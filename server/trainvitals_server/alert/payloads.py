"""Payloads: a message in the form that a service reads: generic JSON, Slack blocks, a Discord embed. Pure.

Each stays within its service's limits whatever the names in it, and none of them can mention anybody.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec

from trainvitals_server import codec
from trainvitals_server.alert import markup
from trainvitals_server.alert.endpoint import Format
from trainvitals_server.alert.message import Message
from trainvitals_server.alert.story import Story, page_url, tell

MAX_GENERIC_BYTES = 65_536  # receivers commonly take 64 KiB to 1 MiB
_CUTS = (
    (2_000, 30),
    (400, 10),
    (100, 4),
)  # characters a text, items a list: the next one where the last is too big
_SLACK_HEADER, _SLACK_SECTION = 150, 3_000
_DISCORD_TITLE, _DISCORD_DESCRIPTION, _DISCORD_FIELD, _DISCORD_TOTAL = 256, 2_000, 1_000, 6_000
_DISCORD_LEAST = 50  # what is left below this is not worth a field
_COLOURS = {"critical": 0xD32F2F, "warning": 0xF57C00, "info": 0x1976D2}
_COLOUR_OVER = 0x388E3C
_MAX_KEYS = 64  # of an object; an incident has fewer


def render(message: Message, form: Format, base_url: str) -> bytes:
    """Return the body to post; the same message gives the same bytes."""
    return _FORMS[form](message, base_url)


def generic(message: Message, base_url: str) -> bytes:
    """Return `{"type", "timestamp", "data"}`; a NaN or infinity in it is a string, a missing value null."""
    story = tell(message, base_url)
    incident: dict[str, Any] | None = None
    if message.incident is not None:
        incident = msgspec.to_builtins(message.incident)
        del incident["findings"]  # internal, and on the page
        for seen in incident["evidence"]:
            seen.setdefault("value", None)  # missing, which is not NaN
    data = {
        "text": story.headline,
        "url": page_url(message, base_url),
        "run": message.run,
        "incident": incident,
    }
    envelope = msgspec.to_builtins({"type": message.event, "timestamp": _time(message.at), "data": data})
    for chars, items in _CUTS:
        body = codec.dumps(_cut(envelope, chars, items))
        if len(body) <= MAX_GENERIC_BYTES:
            break
    return body


def slack(message: Message, base_url: str) -> bytes:
    """Return Block Kit."""
    story = tell(message, base_url)
    header = {"type": "plain_text", "text": markup.clip(markup.plain(story.headline), _SLACK_HEADER)}
    blocks: list[dict[str, Any]] = [{"type": "header", "text": header}]
    blocks.extend(_section(_slack_paragraph(title, text)) for title, text in story.paragraphs)
    if story.snippet:
        blocks.append(_section(markup.slack_code(story.snippet, _SLACK_SECTION)))
    blocks.append(_section(f"<{markup.slack_url(story.url)}|Open the page>"))
    return codec.dumps({"text": markup.slack(story.headline, _SLACK_SECTION), "blocks": blocks})


def discord(message: Message, base_url: str) -> bytes:
    """Return one embed that mentions nobody."""
    story = tell(message, base_url)
    embed: dict[str, Any] = {
        "title": markup.discord(story.headline, _DISCORD_TITLE),
        "url": story.url,
        "timestamp": _time(message.at),
        "color": _colour(message),
        **_discord_text(story),
    }
    return codec.dumps({"embeds": [embed], "allowed_mentions": {"parse": []}})


def _discord_text(story: Story) -> dict[str, Any]:
    left = _DISCORD_TOTAL - _DISCORD_TITLE
    texts: dict[str, Any] = {"fields": []}
    for title, text in story.paragraphs:
        if not title:
            texts["description"] = markup.discord(text, _DISCORD_DESCRIPTION)
            left -= markup.units(texts["description"])
        elif left > _DISCORD_LEAST:
            value = markup.discord(text, min(_DISCORD_FIELD, left - len(title)))
            texts["fields"].append({"name": title, "value": value})
            left -= len(title) + markup.units(value)
    if story.snippet and left > _DISCORD_LEAST:
        code = markup.discord_code(story.snippet, min(_DISCORD_FIELD, left - len("Fix")))
        texts["fields"].append({"name": "Fix", "value": code})
    return texts


def _slack_paragraph(title: str, text: str) -> str:
    heading = f"*{title}*\n" if title else ""
    return heading + markup.slack(text, _SLACK_SECTION - len(heading))


def _section(text: str) -> dict[str, Any]:
    return {"type": "section", "text": {"type": "mrkdwn", "text": text, "verbatim": True}}


def _colour(message: Message) -> int:
    incident = message.incident
    if incident is None:
        return _COLOURS["info"]
    return _COLOURS[incident.severity] if incident.state == "open" else _COLOUR_OVER


def _cut(value: Any, chars: int, items: int) -> Any:  # noqa: ANN401 - any JSON
    if isinstance(value, str):
        return markup.clip(value, chars)
    if isinstance(value, list):
        return [_cut(item, chars, items) for item in value[:items]]
    if isinstance(value, dict):
        pairs = list(value.items())[:_MAX_KEYS]
        return {markup.clip(key, chars): _cut(item, chars, items) for key, item in pairs}
    return value


_FORMS: dict[Format, Callable[[Message, str], bytes]] = {
    "generic": generic,
    "slack": slack,
    "discord": discord,
}


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
