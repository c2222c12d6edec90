"""An incident whose diagnosis failed is told all the same: an alarm without a cause beats none. Pure."""

from __future__ import annotations

from msgspec.structs import replace

from trainvitals_server.case import Context
from trainvitals_server.diagnose import tell
from trainvitals_server.incident import Incident

MAX_WHY = 8


def tell_in_any_case(incident: Incident, context: Context) -> Incident:
    """Return the incident in words, or, where a mistake of ours is in the way of them, with its evidence."""
    try:
        return tell(incident, context)
    except Exception as error:  # whatever it is, it must not cost the alarm
        return plain(incident, error)


def plain(incident: Incident, error: Exception) -> Incident:
    """Return the incident with what is known without a diagnosis."""
    kind = incident.kind.replace("_", " ")
    evidence = [item.text for item in incident.evidence if item.text]
    failure = (
        f"no cause could be worked out: a mistake in trainvitals itself ({type(error).__name__}: {error})"
    )
    return replace(
        incident,
        verdict=f"{kind} since step {incident.onset_step}.",
        why=[*evidence[: MAX_WHY - 1], failure],
        next=["Look at the charts around the onset, and please report the mistake."],
    )
