"""A failure of ours is one line in the log; what others raise on purpose goes through."""

from __future__ import annotations

import logging

import pytest

from trainvitals.guard import Guard


def test_a_failure_of_ours_does_not_leave_the_guard() -> None:
    guard = Guard()

    with guard:
        raise ValueError("ours")

    assert guard.is_off


def test_only_the_first_failure_is_told(caplog: pytest.LogCaptureFixture) -> None:
    guard = Guard()

    for _ in range(3):
        with caplog.at_level(logging.WARNING), guard:
            raise ValueError("ours")

    told = [(record.getMessage(), record.exc_info and record.exc_info[0]) for record in caplog.records]
    assert told == [("trainvitals failed and is off for this run; your training goes on", ValueError)]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_what_ends_the_program_on_purpose_passes_through(kind: type[BaseException]) -> None:
    guard = Guard()

    with pytest.raises(kind), guard:
        raise kind

    assert not guard.is_off


def test_success_leaves_the_reporter_on() -> None:
    guard = Guard()

    with guard:
        pass

    assert not guard.is_off
