"""Promises, the server's clock, and what is said about sessions that do not keep them."""

from __future__ import annotations

from dataclasses import replace

import pytest

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
