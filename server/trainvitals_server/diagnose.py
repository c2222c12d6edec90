"""From an incident and its context to words: verdict, why, next, ranked causes, usable weights. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from trainvitals.wire import Environment, Layer
from trainvitals_server.detect.rates import RateSummary
from trainvitals_server.incident import Incident


@dataclass(frozen=True, slots=True)
class Context:
    """What is known about the run beside its rows."""

    environment: Environment = Environment()
    layers: tuple[Layer, ...] = ()
    checkpoints: tuple[int, ...] = ()
    rates: RateSummary = RateSummary()


def tell(incident: Incident, context: Context) -> Incident:
    """Return the incident in words."""
    return replace(incident, verdict=f"{incident.kind} since step {incident.onset_step}")
