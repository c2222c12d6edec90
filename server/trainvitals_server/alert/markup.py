"""Markup: text from a training made harmless in Slack's and Discord's markup, and cut to their limits.

Run, layer and metric names come from the user's program: they may be 10,000 characters long, mention
everybody or spell a link. Pure.
"""

from __future__ import annotations

import re

ELLIPSIS = "…"
_FENCE = "```"
_CONTROLS = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]"
)  # the last ones turn text around
# An underscore inside a word marks nothing up, and people copy names such as learning_rate.
_SLACK_MARKS = re.compile(r"([*~`@]|(?<![^\W_])_|_(?![^\W_]))")
_DISCORD_MARKS = re.compile(r"([\\*_~`|>\[\]()<#:@-])")
_GAP = "\u200b"  # zero width: breaks a mention or a mark without being seen


def plain(text: str) -> str:
    """Return `text` without control characters."""
    return _CONTROLS.sub("", text)


def clip(text: str, limit: int) -> str:
    """Return at most `limit` units of `text`, cut with an ellipsis.

    A unit is one of UTF-16: both services count an emoji as two.
    """
    if len(text) <= limit // 2 or units(text) <= limit:
        return text
    kept = text.encode("utf-16-le", "surrogatepass")[: 2 * (limit - 1)].decode("utf-16-le", "ignore")
    return kept + ELLIPSIS


def slack(text: str, limit: int) -> str:
    """Return `text` as Slack's mrkdwn that shows it as it is, within `limit`."""
    safe = _slack_entities(plain(text))
    return _clip_whole(_SLACK_MARKS.sub(rf"\1{_GAP}", safe), limit, r"&[a-z]{0,3}$")


def slack_url(url: str) -> str:
    """Return `url` for the inside of Slack's `<url|text>`."""
    return _slack_entities(url).replace("|", "%7C")


def slack_code(text: str, limit: int) -> str:
    """Return `text` as a code block of Slack, to be copied: no gaps, an @ in code mentions nobody."""
    safe = _slack_entities(plain(text)).replace(_FENCE, "'''")
    return f"{_FENCE}\n{_clip_whole(safe, limit - 8, r'&[a-z]{0,3}$')}\n{_FENCE}"


def discord(text: str, limit: int) -> str:
    """Return `text` as Discord's markdown that shows it as it is, within `limit`."""
    safe = _DISCORD_MARKS.sub(r"\\\1", plain(text)).replace("@", f"@{_GAP}")
    return _clip_whole(safe, limit, r"\\$")


def discord_code(text: str, limit: int) -> str:
    """Return `text` as a block of Python of Discord, to be copied as it is."""
    safe = plain(text).replace(_FENCE, "'''")
    return f"{_FENCE}py\n{clip(safe, limit - 10)}\n{_FENCE}"


def _slack_entities(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _clip_whole(text: str, limit: int, half: str) -> str:
    """Clip, and take away the `half` of an escape that the cut left behind."""
    cut = clip(text, limit)
    if cut is text:
        return text
    return re.sub(half, "", cut.removesuffix(ELLIPSIS)) + ELLIPSIS


def units(text: str) -> int:
    """Return how long both services take `text` to be: its units of UTF-16."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2
