from __future__ import annotations

import threading

import numpy as np

from client_rows import rows
from trainvitals import wire
from trainvitals.intake import Intake, Ticket
from trainvitals.rows import Rows

NAN = Rows(np.arange(1), np.zeros(1), {"loss": (np.array([np.nan]), None)})


def message(text: str = "") -> wire.Event:
    return wire.Event(seq=1, step=0, kind="message", data={"text": text})


def test_rows_leave_at_once_after_a_pause_and_in_company_while_more_come() -> None:
    intake = Intake(batch_s=0.05)
    intake.put(rows(0, 1), now=10.0)
    assert intake.due_at() == 10.0
    assert len(intake.take(10.0).drafts) == 1
    intake.put(rows(1, 2), now=10.01)
    intake.put(rows(2, 3), now=10.02)
    assert intake.due_at() == 10.05
    assert not intake.take(10.04).is_news
    assert len(intake.take(10.05).drafts) == 2
    assert intake.is_empty


def test_rows_that_come_no_faster_than_they_may_leave_never_wait() -> None:
    intake = Intake(batch_s=0.05)
    for now in (1.0, 1.06, 1.12):
        intake.put(rows(0, 1), now=now)
        assert len(intake.take(now).drafts) == 1


def test_a_row_that_turns_non_finite_and_an_event_do_not_wait() -> None:
    intake = Intake()
    intake.put(rows(0, 1), now=0.0)
    intake.take(0.0)
    intake.put(NAN, now=0.0)
    assert len(intake.take(0.0).drafts) == 1
    intake.put(message(), now=0.0)
    assert len(intake.take(0.0).drafts) == 1


def test_a_run_that_stays_non_finite_waits_like_any_other() -> None:
    intake = Intake()
    intake.put(NAN, now=0.0)
    intake.take(0.0)
    intake.put(NAN, now=0.0)
    assert intake.take(0.0).drafts == []


def test_when_it_is_full_the_oldest_rows_go_and_one_gap_stands_in_their_place() -> None:
    intake = Intake(max_rows=100)
    layout = wire.Layout(seq=1, layout_id=1)
    intake.put(layout, now=0.0)
    for first in range(0, 300, 10):
        intake.put(rows(first, first + 10), now=0.0)
    kept = intake.take(1.0).drafts
    gap = kept[1]
    assert kept[0] == layout
    assert isinstance(gap, wire.Gap)
    assert (gap.reason, gap.first_step, gap.last_step, gap.steps_lost) == ("queue_full", 0, 199, 200)
    assert [int(draft.steps[0]) for draft in kept[2:] if isinstance(draft, Rows)] == list(range(200, 300, 10))
    assert intake.dropped == {"queue_full": 200}


def test_memory_is_bounded_too() -> None:
    intake = Intake(max_bytes=10_000)
    for first in range(0, 10_000, 100):
        intake.put(rows(first, first + 100), now=0.0)
    kept = [draft for draft in intake.take(1.0).drafts if isinstance(draft, Rows)]
    assert sum(draft.nbytes for draft in kept) <= 10_000


def test_only_the_latest_heartbeat_is_kept() -> None:
    intake = Intake()
    intake.beat(wire.Heartbeat(next_within_s=1.0))
    intake.beat(wire.Heartbeat(next_within_s=2.0))
    assert intake.take(0.0).heartbeat == wire.Heartbeat(next_within_s=2.0)
    assert intake.take(0.0).heartbeat is None


def test_whoever_waits_gets_the_answer_to_their_ticket() -> None:
    intake = Intake()
    ticket, results = Ticket(), list[bool]()
    waiting = threading.Thread(target=lambda: results.append(intake.wait_for(ticket, 10.0)))
    waiting.start()
    while not intake.tickets:
        intake.wait(1.0)
    intake.answer(ticket, True)
    waiting.join(10.0)
    assert results == [True]
    assert not intake.wait_for(Ticket(), 0.0)
    assert not intake.tickets


def test_closing_lets_everything_out() -> None:
    intake = Intake()
    intake.put(rows(0, 1), now=0.0)
    intake.close()
    intake.wait(None)
    delivery = intake.take(0.0)
    assert delivery.is_closing
    assert len(delivery.drafts) == 1
