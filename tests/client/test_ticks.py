"""Calls of `step`, shared out among the rows that functions wrote."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainvitals.ticks import Ticks


def ticks(*seconds: float) -> Ticks:
    """Return calls that took so long, one after the other from 0 on, each with a metric of its number."""
    made = Ticks()
    for number, one in enumerate(seconds):
        made.add(sum(seconds[: number + 1]), one, {"call": number})
    return made


def test_a_call_for_each_row_is_that_rows() -> None:
    share = ticks(1.0, 2.0, 4.0).take(3, now=9.0)
    assert share.seconds is not None
    assert share.ends.tolist() == [1.0, 3.0, 7.0]
    assert share.seconds.tolist() == [1.0, 2.0, 4.0]
    assert share.metrics == [{"call": 0}, {"call": 1}, {"call": 2}]


def test_rows_of_one_call_share_its_time_and_the_last_has_its_metrics() -> None:
    share = ticks(3.0, 6.0).take(6, now=9.0)
    assert share.seconds is not None
    assert share.ends.tolist() == [3.0] * 3 + [9.0] * 3
    assert share.seconds.tolist() == [1.0] * 3 + [2.0] * 3
    assert share.metrics == [{}, {}, {"call": 0}, {}, {}, {"call": 1}]


def test_calls_without_a_row_belong_to_the_next_that_has_one() -> None:
    share = ticks(1.0, 1.0, 1.0, 2.0, 2.0, 2.0).take(2, now=9.0)
    assert share.seconds is not None
    assert share.ends.tolist() == [3.0, 9.0]
    assert share.seconds.tolist() == [3.0, 6.0]
    assert share.metrics == [{"call": 2}, {"call": 5}]


def test_joined_calls_are_one() -> None:
    made = ticks(1.0, 2.0)
    made.join()
    assert len(made) == 1
    share = made.take(1, now=9.0)
    assert share.seconds is not None
    assert (share.ends.tolist(), share.seconds.tolist()) == ([3.0], [3.0])
    assert share.metrics == [{"call": 1}]


def test_without_a_call_the_rows_are_of_now_and_no_time_is_made_up() -> None:
    share = Ticks().take(2, now=9.0)
    assert share.ends.tolist() == [9.0, 9.0]
    assert share.seconds is None


@given(st.lists(st.floats(0.001, 10.0), min_size=1, max_size=30), st.integers(1, 60))
def test_no_time_is_lost_or_made_up(seconds: list[float], rows: int) -> None:
    share = ticks(*seconds).take(rows, now=1e6)
    assert share.seconds is not None
    assert share.seconds.sum() == pytest.approx(sum(seconds))
    assert (np.diff(share.ends) >= 0).all()
    assert share.ends[-1] == pytest.approx(sum(seconds))
