"""Policy: which message an incident's change sends to one endpoint. Pure; the caller keeps the alert's row.

One alert for each incident and endpoint: opened, escalated at most to `critical`, updated at most once for
each thing that comes to be at stake (`stakes`), resolved once. Critical goes out at once, also when it is
over by the time it is first heard of; a warning waits `GROUP_S`, and one that ends before that is never sent.
`info` and late incidents (an old spool that arrived) notify nobody.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trainvitals_server.alert.message import Event
from trainvitals_server.finding import Severity
from trainvitals_server.incident import Incident
from trainvitals_server.stakes import news_of

AlertState = Literal["pending", "firing", "resolved", "silenced"]

GROUP_S = 10.0  # a warning that is over, or worse, within this time is not worth two messages
COOL_DOWN_S = 600.0  # an incident that flaps is told again only after this calm
STORM_WINDOW_S = 600.0
STORM_LIMITS: dict[Severity, int] = {
    "warning": 20,
    "critical": 60,
}  # opened alerts of an endpoint in the window
_RANK: dict[Severity, int] = {"info": 0, "warning": 1, "critical": 2}


@dataclass(frozen=True, slots=True)
class Alert:
    """What one endpoint was told about one incident. `is_waiting`: its message has not left yet."""

    state: AlertState
    severity: Severity
    updated_at: float
    is_waiting: bool = False
    told: frozenset[str] = frozenset()  # its stakes


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do: take back the waiting message, queue `event` (None: nothing) and set the alert's state."""

    state: AlertState
    event: Event | None = None
    delay_s: float = 0.0
    cancel_waiting: bool = False


def decide(
    incident: Incident, alert: Alert | None, *, min_severity: Severity, opened_recently: int, now: float
) -> Decision | None:
    """Return what to do about `incident` at an endpoint that was told `alert` of it, or None: nothing."""
    if incident.late:
        return None
    if alert is None or alert.state in ("resolved", "silenced"):
        if _is_worth_opening(incident, alert, min_severity, now):
            return _open(incident, opened_recently)
        return None
    if incident.state != "open":
        event: Event | None = None if alert.is_waiting else "incident.resolved"
        return Decision("resolved", event, cancel_waiting=alert.is_waiting)
    if _RANK[incident.severity] > _RANK[alert.severity]:
        event = "incident.escalated"
    elif incident.severity != "info" and news_of(incident, alert.told):
        event = "incident.updated"
    else:
        return None
    return Decision(
        "firing", "incident.opened" if alert.is_waiting else event, cancel_waiting=alert.is_waiting
    )


def _is_worth_opening(incident: Incident, alert: Alert | None, least: Severity, now: float) -> bool:
    if incident.state == "withdrawn" or _RANK[incident.severity] < max(_RANK[least], _RANK["warning"]):
        return False
    if incident.state == "resolved":  # it began and ended between two looks: critical is told all the same
        return alert is None and incident.severity == "critical"
    if alert is None or _RANK[incident.severity] > _RANK[alert.severity]:
        return True
    return alert.state == "resolved" and now - alert.updated_at >= COOL_DOWN_S


def _open(incident: Incident, opened_recently: int) -> Decision:
    limit = STORM_LIMITS[incident.severity]
    if opened_recently >= limit:
        return Decision("silenced", "alerts.capped" if opened_recently == limit else None)
    if incident.severity == "critical":
        return Decision("firing" if incident.state == "open" else "resolved", "incident.opened")
    return Decision("pending", "incident.opened", delay_s=GROUP_S)
