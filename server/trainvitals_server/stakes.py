"""Stakes: what an incident can come to mean after it was told, so that it is worth a second word. Pure.

A change of severity is not one of them: that is told as such.
"""

from __future__ import annotations

from collections.abc import Collection

from trainvitals_server.finding import Finding
from trainvitals_server.incident import Incident

WEIGHTS_GOOD = "weights_good"  # no news by itself: only who was told so is told that it is over
WEIGHTS_LOST = "weights_lost"
SCALE_SINKS = "scale_sinks"
SCALE_IS_ZERO = "scale_is_zero"
CAUSE_PROVEN = "cause_proven"  # by the replay of the failing step, which takes longer than the first word

PROVEN = 0.9  # a confidence from which on a cause is stated


def stakes_of(incident: Incident) -> dict[str, str]:
    """Return what is at stake by now, each with the sentence that tells it."""
    found: dict[str, str] = {}
    collapse = _collapse(incident)
    if collapse is not None and collapse.facts.get("loss_scale") == 0.0:
        found[SCALE_IS_ZERO] = "the loss scale is 0: the next good step writes NaN into every weight"
    elif collapse is not None and isinstance(left := collapse.facts.get("steps_to_scale_zero"), float):
        found[SCALE_SINKS] = f"the loss scale is sinking, and at this pace is 0 in about {left:.0f} steps"
    if cause := _proven_cause(incident):
        found[CAUSE_PROVEN] = f"its cause is found: {cause}"
    weights = incident.weights
    if weights.usable:
        found[WEIGHTS_GOOD] = ""
    elif weights.usable is False:
        since = "" if weights.bad_since is None else f" since step {weights.bad_since}"
        found[WEIGHTS_LOST] = f"the weights are not usable any more{since}"
    return found


def news_of(incident: Incident, told: Collection[str]) -> str:
    """Return in one sentence what `incident` means beyond what was `told` of it, or an empty text."""
    stakes = stakes_of(incident)
    news = [text for stake, text in stakes.items() if text and stake not in told]
    if WEIGHTS_LOST in stakes and WEIGHTS_GOOD not in told:
        news = [text for text in news if text != stakes[WEIGHTS_LOST]]
    return "; ".join(news)


def _proven_cause(incident: Incident) -> str:
    """Return what the replay of the failing step proves, with its place, or an empty text."""
    if incident.first_bad_operation is None or not incident.causes:
        return ""
    best = incident.causes[0]
    return best.supports[0] if best.confidence >= PROVEN and best.supports else ""


def _collapse(incident: Incident) -> Finding | None:
    """Return the last word on the loss scale, unless it is that all is well again."""
    told = [finding for finding in incident.findings if finding.kind == "loss_scale_collapse"]
    is_over = incident.state != "open" or not told or told[-1].phase in ("resolve", "withdraw")
    return None if is_over else told[-1]
