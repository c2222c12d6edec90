"""Story: the parts of a message that a person reads, the same for every chat service. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

from trainvitals_server.alert.message import Message, headline
from trainvitals_server.codec import spell_number
from trainvitals_server.finding import Evidence
from trainvitals_server.incident import Cause, Incident, Weights

MAX_URL_CHARS = 2_000  # Discord takes 2,048; our own run ids are short
_MAX_LINES = 6  # of each list: a chat message is a summary, the page has the rest


@dataclass(frozen=True, slots=True)
class Story:
    """Headline, paragraphs with their titles, one snippet, and where to read on."""

    headline: str
    paragraphs: tuple[tuple[str, str], ...]
    snippet: str
    url: str


def tell(message: Message, base_url: str) -> Story:
    """Return what to say, with a link to the run's page (or the board) below `base_url`."""
    incident = message.incident
    url = page_url(message, base_url)
    if incident is None:
        return Story(headline(message), (), "", url)
    cause = incident.causes[0] if incident.causes else None
    paragraphs = [
        ("", incident.verdict),
        ("New", _sentence(message.text)),
        ("Why", _bullets(incident.why)),
        ("Seen", _bullets([_seen(item) for item in incident.evidence])),
        ("Next", _bullets(incident.next)),
        ("Cause", _cause(cause)),
        ("Where", _where(incident)),
    ]
    told = tuple((title, text) for title, text in paragraphs if text)
    return Story(headline(message), told, cause.snippet if cause else "", url)


def page_url(message: Message, base_url: str) -> str:
    """Return the address of the run's page; of the board where there is no run."""
    board = base_url.rstrip("/") + "/"
    page = f"{board}runs/{quote(message.run.run_id, safe='')}" if message.run else board
    return page if len(page) <= MAX_URL_CHARS else board


def _sentence(text: str) -> str:
    return text and f"{text[0].upper()}{text[1:]}."


def _bullets(lines: list[str]) -> str:
    return "\n".join(f"• {line}" for line in lines[:_MAX_LINES])


def _seen(evidence: Evidence) -> str:
    if evidence.series is None or evidence.value is None or evidence.step is None:
        return evidence.text
    return f"{evidence.text} ({evidence.series} {spell_number(evidence.value)} at step {evidence.step})"


def _cause(cause: Cause | None) -> str:
    if cause is None:
        return ""
    return f"{cause.cause.replace('_', ' ')} ({cause.confidence:.0%}). {cause.fix}".strip()


def _where(incident: Incident) -> str:
    parts = [f"onset step {incident.onset_step}", f"detected at step {incident.detected_step}"]
    if incident.nonfinite_step is not None:
        parts.append(f"non-finite at step {incident.nonfinite_step}")
    if incident.layer:
        parts.append(f"layer {incident.layer}")
    return ", ".join([*parts, _weights(incident.weights)])


def _weights(weights: Weights) -> str:
    if weights.usable is None:
        return "weights not judged"
    if weights.usable:
        return "weights usable"
    since = "" if weights.bad_since is None else f" since step {weights.bad_since}"
    last = weights.last_checkpoint_step
    return f"weights bad{since}" + ("" if last is None else f", last checkpoint at step {last}")
