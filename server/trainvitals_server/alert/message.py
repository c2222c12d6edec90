"""Message: what is to be said about an incident, before any service's form is given to it.

The outbox keeps it; the form and the link are made when it is sent, so that a redelivery of an old message
carries today's address of the page.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from trainvitals.titles import title_of
from trainvitals_server.finding import Severity
from trainvitals_server.incident import Incident

Event = Literal[
    "incident.opened", "incident.escalated", "incident.updated", "incident.resolved", "alerts.capped", "test"
]  # fmt: skip

_MARKS: dict[Severity, str] = {"critical": "\U0001f534", "warning": "\U0001f7e0", "info": "\U0001f535"}
_TEST = "trainvitals can reach this address: alerts will arrive here."


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """Which run it is about, in the names a person gave."""

    run_id: str
    project: str = ""
    name: str = ""


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to tell. `incident` and `run` are absent in a test and in the notice of a storm.

    `text` is what those say, and in an update what is new.
    """

    event: Event
    at: float
    run: Run | None = None
    incident: Incident | None = None
    text: str = ""


def trial_message(now: float) -> Message:
    """Return what the test button sends."""
    return Message(event="test", at=now, text=_TEST)


def capped_message(now: float, opened: int, window_s: float) -> Message:
    """Return the one notice that further alerts are held back."""
    text = (
        f"{opened} alerts within {window_s / 60:g} minutes: further ones are only on the page until it calms"
        " down."
    )
    return Message(event="alerts.capped", at=now, text=text)


def headline(message: Message) -> str:
    """Return one line: how bad, what, where, since when."""
    incident = message.incident
    if incident is None:
        return message.text
    what = title_of(incident.kind)
    where = f"in {run_title(message)}, since step {incident.onset_step}"
    news = f": {message.text}" if message.text else ""
    return f"{_opening(message.event, incident)} {what} {where}{news}"


def run_title(message: Message) -> str:
    """Return the run's name as people know it."""
    run = message.run
    if run is None:
        return ""
    return f"{run.project} / {run.name or run.run_id}" if run.project else run.name or run.run_id


def _opening(event: Event, incident: Incident) -> str:
    if incident.state == "withdrawn":
        return "✅ Withdrawn, a false alarm:"
    if event == "incident.resolved":
        return "✅ Passed:"
    mark = _MARKS[incident.severity]
    if incident.state == "resolved":  # it began and ended between two looks
        return f"{mark} {incident.severity}, passed by now:"
    word = {"incident.escalated": "Now ", "incident.updated": "Still "}.get(event, "")
    return f"{mark} {word}{incident.severity}:"
