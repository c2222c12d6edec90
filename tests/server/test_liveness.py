"""Promises, the server's clock, and what is said about sessions that do not keep them."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from trainvitals_server.incident import Incident
from trainvitals_server.liveness import CRASH_AFTER_S, GRACE_S, Life, state_of, watch

LIFE = Life("run", 0, "session", last_seen_at=100.0, promised_at=110.0, last_step=42)
STALLED_AT = 110.0 + GRACE_S + 1
CRASHED_AT = 110.0 + CRASH_AFTER_S + 1


def test_a_kept_promise_says_nothing() -> None:
    assert watch([LIFE], [], 109.0) == []


def test_a_promise_just_missed_is_forgiven() -> None:
    assert state_of(LIFE, 110.0 + GRACE_S) == "running"


def test_a_broken_promise_is_a_stall_at_the_last_step() -> None:
    (incident,) = watch([LIFE], [], STALLED_AT)
    assert (incident.kind, incident.severity, incident.onset_step) == ("run_stalled", "warning", 42)


def test_a_stall_is_told_once() -> None:
    known = watch([LIFE], [], STALLED_AT)
    assert watch([LIFE], known, STALLED_AT + 5) == []


def test_long_silence_escalates_the_same_incident() -> None:
    known = watch([LIFE], [], STALLED_AT)
    (incident,) = watch([LIFE], known, CRASHED_AT)
    assert (incident.id, incident.severity) == (known[0].id, "critical")


def test_a_closed_connection_and_a_broken_promise_are_a_crash() -> None:
    (incident,) = watch([replace(LIFE, is_connected=False)], [], STALLED_AT)
    assert incident.kind == "run_crashed"


def test_a_word_resolves_the_stall() -> None:
    known = watch([LIFE], [], STALLED_AT)
    heard = replace(LIFE, last_seen_at=STALLED_AT, promised_at=STALLED_AT + 10, last_step=50)
    (incident,) = watch([heard], known, STALLED_AT + 1)
    assert (incident.state, incident.id) == ("resolved", known[0].id)


def test_a_second_stall_is_another_incident() -> None:
    first = watch([LIFE], [], STALLED_AT)
    heard = replace(LIFE, last_seen_at=STALLED_AT, promised_at=STALLED_AT + 10, last_step=50)
    known = watch([heard], first, STALLED_AT + 1)
    (second,) = watch([heard], known, STALLED_AT + 10 + GRACE_S + 1)
    assert second.id != first[0].id


def test_a_failed_session_is_a_crash_with_its_error() -> None:
    (incident,) = watch([replace(LIFE, status="failed", error="ValueError: no")], [], 101.0)
    assert incident.kind == "run_crashed"
    assert "ValueError: no" in incident.verdict


FAILED = replace(LIFE, status="failed", error="ValueError: no")
NAN = Incident(
    id="1", run_id="run", kind="sudden_nan", severity="critical", onset_step=40, detected_step=40,
    session_id="session",
)  # fmt: skip


def test_a_crash_after_an_open_critical_incident_is_its_consequence() -> None:
    (incident,) = watch([FAILED], [NAN], 101.0)
    assert (incident.id, incident.kind, incident.findings[-1].kind) == ("1", "sudden_nan", "run_crashed")
    assert incident.revision == NAN.revision + 1
    assert watch([FAILED], [incident], 102.0) == []


def test_the_ranks_that_fail_after_another_rank_broke_down_are_its_consequence() -> None:
    lives = [FAILED, replace(FAILED, rank=1, session_id="other"), replace(FAILED, rank=2, session_id="third")]
    (incident,) = watch(lives, [NAN], 101.0)
    assert [finding.facts["rank"] for finding in incident.findings] == [0, 1, 2]
    assert watch(lives, [incident], 102.0) == []


@pytest.mark.parametrize(
    "other",
    [
        msgspec.structs.replace(NAN, severity="warning"),
        msgspec.structs.replace(NAN, state="resolved"),
        msgspec.structs.replace(NAN, session_id="an earlier one"),
        msgspec.structs.replace(NAN, late=True),
    ],
)
def test_a_crash_beside_another_story_is_an_incident_of_its_own(other: Incident) -> None:
    (incident,) = watch([FAILED], [other], 101.0)
    assert (incident.kind, incident.severity) == ("run_crashed", "critical")


def test_a_stall_that_becomes_a_crash_pages_nobody_who_knows_why() -> None:
    (stall,) = watch([LIFE], [NAN], STALLED_AT)
    assert stall.kind == "run_stalled"
    (incident,) = watch([LIFE], [NAN, stall], CRASHED_AT)
    assert (incident.id, incident.findings[-1].kind) == ("1", "run_crashed")


@pytest.mark.parametrize("status", ["finished", "interrupted", "stopped"])
def test_an_end_that_was_meant_is_no_incident(status: str) -> None:
    ended = replace(LIFE, status=status)  # type: ignore[arg-type]
    assert watch([ended], [], CRASHED_AT) == []


def test_a_late_session_is_left_alone() -> None:
    assert watch([replace(LIFE, is_late=True)], [], CRASHED_AT) == []


def test_a_session_that_never_promised_gets_a_minute() -> None:
    silent = replace(LIFE, promised_at=None)
    assert state_of(silent, 159.0) == "running"
    assert state_of(silent, 160.0 + GRACE_S + 1) == "stalled"
