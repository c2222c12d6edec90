"""Which message a change of an incident sends: the rules, one sentence each."""

from __future__ import annotations

from dataclasses import replace as with_fields

import pytest
from msgspec.structs import replace

from alert_samples import INCIDENT, at_stake
from trainvitals_server.alert.policy import (
    COOL_DOWN_S,
    GROUP_S,
    STORM_LIMITS,
    Alert,
    Decision,
    decide,
)
from trainvitals_server.finding import Severity
from trainvitals_server.incident import Incident
from trainvitals_server.stakes import stakes_of

CRITICAL = INCIDENT
WARNING = replace(INCIDENT, severity="warning")
INFO = replace(INCIDENT, severity="info")
FIRING_WARNING = Alert("firing", "warning", updated_at=0.0)
WAITING_WARNING = Alert("pending", "warning", updated_at=0.0, is_waiting=True)


def _decide(
    incident: Incident,
    alert: Alert | None = None,
    *,
    least: Severity = "warning",
    opened: int = 0,
    now: float = 1.0,
) -> Decision | None:
    return decide(incident, alert, min_severity=least, opened_recently=opened, now=now)


def test_critical_goes_out_at_once() -> None:
    assert _decide(CRITICAL) == Decision("firing", "incident.opened", delay_s=0.0)


def test_a_warning_waits_for_its_group() -> None:
    assert _decide(WARNING) == Decision("pending", "incident.opened", delay_s=GROUP_S)


def test_critical_that_is_over_when_it_is_first_heard_of_is_told_all_the_same() -> None:
    over = replace(CRITICAL, state="resolved")
    assert _decide(over) == Decision("resolved", "incident.opened")
    assert _decide(over, Alert("resolved", "critical", updated_at=0.0)) is None
    assert _decide(replace(CRITICAL, state="withdrawn")) is None
    assert _decide(replace(WARNING, state="resolved")) is None


@pytest.mark.parametrize("least", ["info", "warning", "critical"])
def test_info_is_never_sent(least: Severity) -> None:
    assert _decide(INFO, least=least) is None


def test_an_endpoint_for_critical_only_hears_of_no_warning() -> None:
    assert _decide(WARNING, least="critical") is None


def test_a_late_incident_notifies_nobody() -> None:
    assert _decide(replace(CRITICAL, late=True)) is None
    assert _decide(replace(CRITICAL, late=True), FIRING_WARNING) is None


def test_one_alert_for_one_incident() -> None:
    assert _decide(WARNING, FIRING_WARNING) is None
    assert _decide(CRITICAL, Alert("firing", "critical", updated_at=0.0)) is None


def test_an_escalation_is_told_at_once() -> None:
    assert _decide(CRITICAL, FIRING_WARNING) == Decision("firing", "incident.escalated")


def test_what_comes_to_be_at_stake_is_told_once() -> None:
    told = Alert("firing", "critical", updated_at=0.0, told=frozenset(stakes_of(CRITICAL)))
    sinking = at_stake(CRITICAL, sinks=True)
    assert _decide(sinking, told) == Decision("firing", "incident.updated")
    assert _decide(sinking, with_fields(told, told=frozenset(stakes_of(sinking)))) is None


def test_an_escalation_is_not_told_again_as_an_update() -> None:
    assert _decide(at_stake(CRITICAL, sinks=True), FIRING_WARNING) == Decision("firing", "incident.escalated")


def test_what_is_at_stake_before_a_warning_left_is_told_with_it_at_once() -> None:
    sinking = at_stake(WARNING, sinks=True)
    assert _decide(sinking, WAITING_WARNING) == Decision("firing", "incident.opened", cancel_waiting=True)


def test_news_of_what_is_late_silenced_over_or_mere_information_is_not_told() -> None:
    sinking = at_stake(CRITICAL, sinks=True)
    told = Alert("firing", "critical", updated_at=0.0)
    assert _decide(replace(sinking, late=True), told) is None
    assert _decide(replace(sinking, severity="info"), told) is None
    for state in ("silenced", "resolved"):
        assert _decide(sinking, with_fields(told, state=state)) is None


def test_a_warning_that_grows_worse_before_it_left_is_told_once_as_critical() -> None:
    assert _decide(CRITICAL, WAITING_WARNING) == Decision("firing", "incident.opened", cancel_waiting=True)


def test_a_warning_that_is_over_before_it_left_is_never_told() -> None:
    over = replace(WARNING, state="resolved")
    assert _decide(over, WAITING_WARNING) == Decision("resolved", None, cancel_waiting=True)


@pytest.mark.parametrize("state", ["resolved", "withdrawn"])
def test_the_end_of_what_was_told_is_told(state: str) -> None:
    assert _decide(replace(WARNING, state=state), FIRING_WARNING) == Decision("resolved", "incident.resolved")


def test_the_end_is_told_even_if_the_severity_fell_to_info() -> None:
    over = replace(INFO, state="resolved")
    assert _decide(over, FIRING_WARNING) == Decision("resolved", "incident.resolved")


def test_an_incident_that_flaps_is_told_again_only_after_calm() -> None:
    told = Alert("resolved", "warning", updated_at=0.0)
    assert _decide(WARNING, told, now=COOL_DOWN_S - 1) is None
    assert _decide(WARNING, told, now=COOL_DOWN_S) == Decision("pending", "incident.opened", delay_s=GROUP_S)


def test_an_escalation_passes_the_cool_down() -> None:
    told = Alert("resolved", "warning", updated_at=0.0)
    assert _decide(CRITICAL, told, now=1.0) == Decision("firing", "incident.opened")


@pytest.mark.parametrize("incident", [WARNING, CRITICAL])
def test_a_storm_is_told_once_and_then_silenced(incident: Incident) -> None:
    limit = STORM_LIMITS[incident.severity]
    below = _decide(incident, opened=limit - 1)
    assert below is not None
    assert below.event == "incident.opened"
    assert _decide(incident, opened=limit) == Decision("silenced", "alerts.capped")
    assert _decide(incident, opened=limit + 1) == Decision("silenced", None)


def test_warnings_alone_do_not_silence_what_is_critical() -> None:
    decision = _decide(CRITICAL, opened=STORM_LIMITS["warning"] + 5)
    assert decision is not None
    assert decision.event == "incident.opened"


def test_the_end_of_what_was_silenced_is_not_told() -> None:
    silenced = with_fields(FIRING_WARNING, state="silenced")
    assert _decide(replace(WARNING, state="resolved"), silenced) is None
