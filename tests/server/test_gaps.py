"""What clients lost: told for the range that is shown, and never more than a chart can show."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recorded import Recorder, open_database
from trainvitals.wire import Gap
from trainvitals_server.store.database import Database
from trainvitals_server.store.gaps import LostSteps, load_gaps, merge_gaps


@pytest.fixture
def database() -> Iterator[Database]:
    with open_database() as opened:
        yield opened


def lost(first: int | None, last: int | None, reason: str = "queue_full", steps_lost: int = 1) -> LostSteps:
    return LostSteps(first_step=first, last_step=last, reason=reason, steps_lost=steps_lost)


def test_gaps_of_the_range_are_told(database: Database) -> None:
    one, other = Recorder(database), Recorder(database, rank=1, session_id="s1")
    one.send(Gap(seq=1, last_seq=1, reason="ring_overflow", first_step=10, last_step=19, steps_lost=10))
    one.send(Gap(seq=2, last_seq=4, reason="queue_full", first_step=50, last_step=60, steps_lost=11))
    other.send(Gap(seq=1, last_seq=1, reason="killed"))
    ring, queue, killed = (
        lost(10, 19, "ring_overflow", 10),
        lost(50, 60, steps_lost=11),
        lost(None, None, "killed", 0),
    )
    for start, stop, expected in ((15, 30, [ring]), (19, 50, [ring]), (20, 51, [queue]), (61, 99, [])):
        assert database.read(partial(load_gaps, run_id="run-1", rank=0, start=start, stop=stop)) == expected
    assert database.read(lambda c: load_gaps(c, "run-1")) == [ring, queue, killed]


GAPS = st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 40)), min_size=1, max_size=60)


@given(GAPS, st.integers(1, 10))
def test_merged_gaps_cover_every_gap_and_count_every_step(spans: list[tuple[int, int]], limit: int) -> None:
    gaps = [lost(first, first + length, steps_lost=length + 1) for first, length in spans]
    merged = merge_gaps(gaps, limit)
    assert len(merged) <= limit
    assert sum(gap.steps_lost for gap in merged) == sum(gap.steps_lost for gap in gaps)
    shaded = [(gap.first_step or 0, gap.last_step or 0) for gap in merged]
    for first, length in spans:
        assert any(low <= first and first + length <= high for low, high in shaded)


def test_few_gaps_stay_as_they_are() -> None:
    gaps = [lost(5, 6), lost(None, None), lost(1, 2)]
    assert merge_gaps(gaps, 3) == gaps


def test_a_merged_gap_names_each_reason_once() -> None:
    gaps = [lost(1, 1, "a"), lost(2, 2, "b"), lost(3, 3, "a"), lost(None, None)]
    assert [gap.reason for gap in merge_gaps(gaps, 1)] == ["queue_full", "a, b"]
